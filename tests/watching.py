"""A live page over a directory with one run, and how tests ask for it."""

import contextlib
import threading
import urllib.error
import urllib.request

from made_runs import settings, write_run

from sphere.report.watch import Page, server


@contextlib.contextmanager
def serving(folder, host):
    """A server on a free port over a directory with one run."""
    write_run(folder / "runs" / "a", settings(), stop_at=2000)
    (folder / "secret").write_text("not served")
    started = server(Page([folder / "runs"]), host, 0)
    thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield folder / "runs", f"http://{f'[{host}]' if ':' in host else host}:{started.server_address[1]}"
    finally:
        started.shutdown()
        thread.join()
        started.server_close()


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
