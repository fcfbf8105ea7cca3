"""`sphere watch`: the page, live. There is a path for the page and one for its version; no file is read by name.

The version is a hash of names, sizes and times of the records below the watched directories. The page asks for it
every two seconds and reloads when it has changed.
"""

import hashlib
import ipaddress
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sphere.report.elements import element, joined
from sphere.report.load import load
from sphere.report.page import render

WATCHED = ("config.json", "metrics.jsonl", "episodes.jsonl")
LOCAL = ("127.0.0.1", "::1", "localhost")
CLIENTS = 32
"""Connections at a time; a page holds one for a moment every two seconds."""
TIMEOUT = 30
"""Seconds in which a request must come and its answer be taken."""


def version(paths: Sequence[Path]) -> str:
    """Changes when a record grows, appears or goes."""
    digest = hashlib.sha256()
    for path in paths:
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(set(files) & set(WATCHED)):
                try:
                    found = os.stat(os.path.join(folder, name))
                except OSError:
                    continue  # gone between the listing and the look
                digest.update(
                    f"{folder}\0{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
                )
    return digest.hexdigest()[:16]


class Page:
    """The page of some directories, made again only when their records have changed."""

    def __init__(self, paths: Sequence[Path], score: str | None = None):
        self.paths, self.score = list(paths), score
        self._lock = threading.Lock()
        self._made: tuple[str, bytes] = ("", b"")

    def html(self) -> bytes:
        with self._lock:
            now = version(self.paths)
            if self._made[0] != now:
                self._made = (now, self._render(now).encode("utf-8", "backslashreplace"))
            return self._made[1]

    def _render(self, now: str) -> str:
        try:
            return render(load(self.paths, self.score), now)
        except Exception as error:  # no run yet, or one of a kind that nobody thought of: say so, and look again
            words = joined(
                element("title", "sphere watch"), element("h1", "Nothing to show yet"), element("p", str(error))
            )
            return f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2">{words}'


def expected_host(header: str, public: bool) -> bool:
    """Whether a request was meant for this server. A page elsewhere may point its own name at this machine and read
    along; its requests carry that name. An address cannot be pointed anywhere."""
    name = header.rsplit(":", 1)[0] if not header.endswith("]") else header
    name = name.strip("[]").lower()
    if name in LOCAL or not public:
        return name in LOCAL
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return name in (socket.gethostname().lower(), socket.getfqdn().lower())


class Server(ThreadingHTTPServer):
    """With a limit on clients, and silent about those that leave in the middle."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.clients = 0
        self._count = threading.Lock()
        super().__init__((host, port), handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self.clients < CLIENTS

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._count:
            self.clients += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._count:
                self.clients -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone or slow is no fault of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def server(page: Page, host: str, port: int, *, public: bool = False) -> "Server":
    """Not yet serving; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            super().setup()
            self._within(TIMEOUT)  # also for one that sends a byte now and then

        def finish(self) -> None:
            self._cut.cancel()
            super().finish()

        def do_GET(self) -> None:
            self._cut.cancel()  # the page may take longer to make
            if not expected_host(self.headers.get("Host") or "", public):
                self.send_error(HTTPStatus.FORBIDDEN, "not served under this name")
            elif self.path in ("/", "/index.html"):
                self._answer(page.html(), "text/html; charset=utf-8")
            elif self.path == "/version":
                self._answer(version(page.paths).encode(), "text/plain; charset=utf-8")
            else:
                self.send_error(HTTPStatus.NOT_FOUND, "there is only the page")

        def _within(self, seconds: float) -> None:
            """The connection ends then, whatever its other side does."""
            self._cut = threading.Timer(seconds, _hang_up, [self.connection])
            self._cut.daemon = True
            self._cut.start()

        def _answer(self, body: bytes, kind: str) -> None:
            self._within(TIMEOUT)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A line per request every two seconds would bury everything else."""

    try:
        return Server(host, port, Handler)
    except (OSError, OverflowError) as error:  # the latter: a port beyond 65535
        raise OSError(
            f"cannot serve on {host}:{port} ({getattr(error, 'strerror', None) or error}); choose another --port, or "
            "0 for a free one; --host is an address of this machine"
        ) from None


def watch(
    paths: Sequence[Path], host: str = "127.0.0.1", port: int = 8000, score: str | None = None, *, public: bool = False
) -> None:
    """Serve until Ctrl-C. `public`: to other machines too."""
    if not host.strip():
        raise ValueError("--host is empty, which would mean every address of this machine; name one, as 127.0.0.1")
    if host not in LOCAL and not public:
        raise ValueError(f"--host {host} lets other machines see the runs; add --public if that is what you want")
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"{path} is no directory; name one that sphere train writes to, or one above it")
    with server(Page(paths, score), host, port, public=public) as serving:
        name = f"[{host}]" if ":" in host else host
        print(
            f"watching {', '.join(map(str, paths))} on http://{name}:{serving.server_address[1]}/ (Ctrl-C ends it)",
            flush=True,
        )
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print()
