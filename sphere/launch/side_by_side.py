"""Several fleets at the same time on this machine, each in a process of its own.

A fleet of a few runs uses neither a GPU nor all cores: while its runs learn, its simulators wait. Each fleet starts
fewer simulators, but none is bound to certain cores, so cores that one fleet does not use serve the others.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sphere.envs.worker import exit_with_parent
from sphere.launch.jobs import Job, work
from sphere.launch.launchers import Failure, say
from sphere.training.loop import Interrupted
from sphere.training.progress import plural
from sphere.training.sentences import DEBUG, in_a_sentence
from sphere.training.settings import from_json, to_json

STOPPED = 130  # exit code of a fleet that was stopped by a signal and has saved its state


class Child:
    """A fleet in a process of its own. Its output is printed under its name."""

    def __init__(self, job: Job, at_once: int) -> None:
        self.job, self.last = job, "no output"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sphere.launch.side_by_side", str(os.getpid())],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            process_group=0,  # Ctrl-C in the terminal reaches us only
        )
        config = dataclasses.replace(job.config, sharing=at_once)
        assert self.process.stdin is not None
        with self.process.stdin as told:
            json.dump([to_json(config), str(job.directory)], told)
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as said:
            for line in said:
                self.last = line.rstrip()
                say(f"{self.job.directory.name}: {self.last}")

    def ended(self) -> int | None:
        """Its exit code, once all of its output is printed."""
        if self.process.poll() is not None:
            self.listener.join(10)
        return self.process.returncode


def launch(jobs: Sequence[Job], at_once: int) -> list[Failure]:
    """Train all of them, `at_once` at a time. A failure does not stop the other fleets."""
    waiting, running, failed = deque(jobs), list[Child](), list[Failure]()
    with _stoppable():
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.popleft()
                    say(f"{job.directory.name}: {plural(len(job.config.runs), 'run')}, {job.state}")
                    running.append(Child(job, at_once))
                for child in [child for child in running if child.ended() is not None]:
                    running.remove(child)
                    failed += _failures(child)
                time.sleep(0.1)
        except (KeyboardInterrupt, Interrupted) as reason:
            _stop(running)
            told = str(reason) or stopped(running)
            raise Interrupted(f"{told}; continue with the same command") from None
        finally:
            for child in running:  # no process outlives this function
                child.process.kill()
                child.process.wait()
    return failed


def _failures(child: Child) -> list[Failure]:
    code, name = child.ended(), child.job.directory.name
    if code == 0:
        return []
    if code == STOPPED:  # by a signal to this one: stop and save the others too, and start no more
        raise Interrupted(f"{name} was stopped")
    reason = child.last if code == 1 else f"exit code {code}: {child.last}"
    say(f"{name}: failed")
    return [Failure(child.job, reason)]


def stopped(running: Sequence[Child]) -> str:
    """What became of fleets that were stopped: one that had not begun yet had nothing to save."""
    saved = sum(child.process.returncode in (0, STOPPED) for child in running)
    if saved == len(running):
        return f"{plural(saved, 'fleet')} stopped and saved"
    rest = plural(len(running) - saved, "fleet")
    return f"{plural(saved, 'fleet')} stopped and saved, {rest} stopped before there was anything new to save"


def _stop(running: list[Child]) -> None:
    """Let all of them finish their iteration and save."""
    for child in running:
        child.process.terminate()
    for child in running:
        child.process.wait()
        child.listener.join(10)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, unless there is a handler for them."""

    def handle(*_: Any) -> None:
        raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    both = (signal.SIGTERM, signal.SIGHUP)
    mine = [one for one in both if here and signal.getsignal(one) is signal.SIG_DFL]
    for one in mine:
        signal.signal(one, handle)
    try:
        yield
    finally:
        for one in mine:
            signal.signal(one, signal.SIG_DFL)


def main() -> None:
    """The child process: its argument is the parent's process id; settings and directory come from standard input."""
    exit_with_parent(int(sys.argv[1]))
    config, directory = json.load(sys.stdin)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU is shared
    code = 0
    try:
        work(Job(from_json(config), Path(directory)))
    except Interrupted:
        code = STOPPED
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        print(in_a_sentence(error), file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code)  # a thread may still be compiling, and an interpreter that ends under it crashes


if __name__ == "__main__":
    main()
