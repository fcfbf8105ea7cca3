"""A process that steps environments: what runs in it (`main`), and the doorbell by which it waits for the learner.

A worker is a fresh interpreter on this very file: neither jax nor the learner's `__main__` is imported there,
so a script needs no `if __name__ == "__main__"`.

The doorbell tells the other side that a step is wanted or done: counters in shared memory. While both sides are awake,
a step costs no system call. A side that has waited for a while says that it sleeps and waits on a pipe; the other then
sends a byte along. A request may slip through between the last look at the counters and "I sleep", so a side that has
just fallen asleep looks again after some milliseconds.
"""

import math
import mmap
import os
import platform
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphere.envs.batch import Share

SPIN = 1e-3
"""Seconds that a worker stays awake for the next step: waking a sleeping process may take longer than the step. It
offers its core to others meanwhile."""

PARENT_CHECK = 0.5
"""Seconds between a worker's looks at whether the learner still lives."""

IN_ORDER = platform.machine() in ("x86_64", "AMD64")
"""Stores become visible in order. Elsewhere a counter might arrive before the data that it announces: no doorbells."""

SIZE = 128
"""Bytes of a doorbell: what each side writes has a cache line of its own."""

REQUESTED, LEARNER_SLEEPS, DONE, WORKER_SLEEPS = 0, 1, 8, 9
"""Places of the counters and flags in it."""

LOOKS = 100
"""Looks at a counter between two offers of the core to others; together about ten microseconds."""

FIRST_NAP, NAP = 0.005, 1.0
"""Seconds after which a sleeper looks again, the first time and later."""


class Doorbell:
    """That of worker `index` in a file of doorbells."""

    def __init__(self, file: int, index: int) -> None:
        whole = mmap.mmap(file, os.fstat(file).st_size)
        self.words = memoryview(whole).cast("q")[index * SIZE // 8 : (index + 1) * SIZE // 8]

    def request(self) -> bool:
        """Request a step; returns whether the worker sleeps and needs a byte."""
        self.words[REQUESTED] += 1
        return bool(self.words[WORKER_SLEEPS])

    def pending(self) -> bool:
        return self.words[REQUESTED] != self.words[DONE]

    def complete(self) -> bool:
        """The step is done; returns whether the learner sleeps and needs a byte."""
        self.words[DONE] += 1
        return bool(self.words[LEARNER_SLEEPS])

    def spin(self, pending: bool, seconds: float, interrupted: Callable[[], object] = lambda: False) -> bool:
        """Wait awake until a step is requested (`pending`) or done (not `pending`); False: too long, or interrupted."""
        words = self.words
        end = time.perf_counter() + seconds
        while True:
            for _ in range(LOOKS):
                if (words[REQUESTED] != words[DONE]) == pending:
                    return True
            if interrupted() or time.perf_counter() > end:
                return False
            os.sched_yield()

    def sleep(self, pending: bool, pipe: Any, seconds: float) -> bool | None:
        """The same asleep: True when it is so, None when the pipe has something to read, False after `seconds`."""
        who = WORKER_SLEEPS if pending else LEARNER_SLEEPS  # the one waits for requests, the other for their end
        end = time.monotonic() + seconds
        nap = FIRST_NAP
        self.words[who] = 1
        try:
            while self.pending() != pending:
                if pipe.poll(1000 * min(nap, seconds)):
                    return None
                if time.monotonic() > end:
                    return False
                nap = NAP
            return True
        finally:
            self.words[who] = 0


def serve(share: "Share", commands: Connection, replies: Connection, doorbell: Doorbell | None) -> None:
    """The worker's end of `Process`: carry out commands until the pipe closes."""
    read, write = commands.fileno(), replies.fileno()
    waiting = select.poll()
    waiting.register(read, select.POLLIN)
    try:
        while kind := os.read(read, 1) if doorbell is None else _next(doorbell, read, waiting):
            try:
                if kind == b"s":
                    share.step()
                else:
                    command, arguments = commands.recv()
                    answer = getattr(share, command)(*arguments)
            except BaseException:
                kind, answer = b"!", traceback.format_exc()
            if kind == b"s":
                if doorbell is None or doorbell.complete():
                    os.write(write, b".")
            else:  # "c" or "!"
                os.write(write, kind)
                replies.send(answer)
            if (
                kind == b"!"
            ):  # the pool closes; and by the doorbell a failed step would look as if it were still to be done
                break
    except BrokenPipeError:
        pass  # the learner has gone
    finally:
        share.leave()


def _next(doorbell: Doorbell, read: int, waiting: Any) -> bytes:
    """The next command: a step by the doorbell, anything else by the pipe; nothing when the pipe has closed."""
    if doorbell.spin(True, SPIN, lambda: waiting.poll(0)):
        return b"s"
    while doorbell.sleep(True, waiting, math.inf) is not True:
        kind = os.read(read, 1)
        if kind != b"s":  # that byte only wakes
            return kind
    return b"s"


def exit_with_parent(parent: int) -> None:
    """End this process when its parent is gone, even in the middle of a step.

    The closed pipe says so first, unless a forked sibling of the learner still holds it open.
    PR_SET_PDEATHSIG would not do: it fires when the parent's *thread* ends.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Arguments: the learner's process id, files of commands and replies, the file of doorbells (-1: none) and the
    number of ours in it, and the learner's `sys.path`."""
    # Each may come to all processes at once; the learner decides when to leave.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent, read, write, doorbells, index = map(int, sys.argv[1:6])
    exit_with_parent(parent)
    sys.path[:] = sys.argv[6].split(os.pathsep)
    # Found by its place, in case the learner's directory has changed since. It imports nothing by itself: jax stays
    # out.
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from sphere.envs.batch import Share

    del sys.path[0]
    doorbell = None if doorbells < 0 else Doorbell(doorbells, index)
    serve(Share(), Connection(read, writable=False), Connection(write, readable=False), doorbell)


if __name__ == "__main__":
    main()
