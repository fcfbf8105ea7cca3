"""Other processes: tests wait for what happens, never for a time, and what they start has ended when they end."""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PATIENCE = 1500.0
"""Seconds after which a wait counts as a hang and the test fails. Nothing else is decided by it."""

_MARK = "SPHERE_TEST_PROCESS"
_started: list[tuple[subprocess.Popen, str]] = []


def start(words: Iterable[str], env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen:
    """A process with a session of its own. It and all that it starts are ended with the test (conftest.py), if not
    before."""
    mark = f"{_MARK}={uuid.uuid4()}"
    env = dict(os.environ if env is None else env) | dict([mark.split("=")])
    process = subprocess.Popen(list(words), env=env, start_new_session=True, text=True, **options)
    _started.append((process, mark))
    return process


def ended(process: subprocess.Popen) -> str:
    """What a process has said by its end."""
    return process.communicate(timeout=PATIENCE)[0]


def until(condition: Callable[[], Any], process: subprocess.Popen | None = None) -> Any:
    """What `condition` says once that is true. `process`: it happens there, so its end ends the wait."""
    limit = time.monotonic() + PATIENCE
    while not (found := condition()):
        if process is not None and process.poll() is not None and not (found := condition()):
            raise AssertionError(f"the process left with {process.returncode} before:\n{process.communicate()[0]}")
        assert time.monotonic() < limit, f"not so after {PATIENCE:.0f} s"
        time.sleep(0.01)
    return found


def end_all() -> None:
    """Kill what `start` has started and all that came of it: children, and what has left them but bears their mark."""
    while _started:
        end(*_started.pop())


def end(process: subprocess.Popen, mark: str | None = None) -> None:
    """Kill a process and all that came of it."""
    while left := _of(process, mark):
        for pid in left:
            _kill(pid)
        time.sleep(0.01)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _of(process: subprocess.Popen, mark: str | None) -> set[int]:
    first = {process.pid} if process.poll() is None else set()  # else its number may be another's by now
    marked = {pid for pid in _parents() if mark in _words(pid, "environ")}
    return {pid for one in first | marked for pid in (one, *descendants(one)) if alive(pid)}


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _stat(pid: int | str) -> list[str]:
    """State and parent of a process, and more; of one that is gone, nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _words(pid: int, file: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _parents() -> dict[int, int]:
    found = {int(path.name): _stat(path.name) for path in Path("/proc").glob("[0-9]*")}
    return {pid: int(stat[1]) for pid, stat in found.items() if stat}


def descendants(pid: int) -> set[int]:
    known, found = _parents(), {pid}
    while more := {child for child, parent in known.items() if parent in found} - found:
        found |= more
    return found - {pid}


def children(pid: int) -> set[int]:
    """Those that live."""
    return {child for child, parent in _parents().items() if parent == pid and alive(child)}


def title(pid: int) -> str:
    return " ".join(_words(pid, "cmdline"))


def alive(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


def wait_until_gone(pids: Iterable[int]) -> None:
    """A zombie is gone."""
    pids = set(pids)
    until(lambda: not any(map(alive, pids)))
