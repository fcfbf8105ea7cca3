"""The processes that step environments: the learner's handle on one (`Process`) and what runs in it (`main`).

A worker is a fresh interpreter on this very file: neither jax nor the learner's `__main__` is imported there,
so a script needs no `if __name__ == "__main__"`.
"""

import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from sphere.envs.batch import Share
    from sphere.envs.bell import Bell

GRACE = 2.0
"""Seconds that a worker gets to leave by itself when its pool closes."""

SPIN = 1e-3
"""Seconds that a worker stays awake for the next step: waking a sleeping process may take longer than the step. Its core is
there for others meanwhile."""

PARENT_CHECK = 0.5
"""Seconds between a worker's looks at whether the learner still lives."""

# One BLAS thread each; should a suite bring jax in after all, it must not take the learner's GPU.
ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ENVIRONMENT |= {"JAX_PLATFORMS": "cpu"}


class WorkerError(RuntimeError):
    """A worker process raised, died or hung. The pool is closed."""


@runtime_checkable
class Worker(Protocol):
    """Who steps a share of the environments: `Local` or a `Process`."""

    def send(self, command: str, *arguments: Any) -> None: ...
    def receive(self) -> Any: ...
    def hang_up(self) -> None: ...
    def join(self, deadline: float) -> None: ...


class Local:
    """A share in this process; it works when it is asked for the answer."""

    def __init__(self, share: "Share") -> None:
        self.share = share

    def send(self, command: str, *arguments: Any) -> None:
        self.work = command, arguments

    def receive(self) -> Any:
        command, arguments = self.work
        return getattr(self.share, command)(*arguments)

    def hang_up(self) -> None:
        self.share.leave()

    def join(self, deadline: float) -> None:
        pass


class Process:
    """A share in a worker process. A step is a ring of its bell, or one byte each way; all else is pickled behind a byte.

    `bells`: the file of all bells, if there are any; `spin`: seconds that the learner stays awake for the end of a step.
    """

    def __init__(self, label: str, memory: int, timeout: float, bells: int | None, index: int, spin: float) -> None:
        from sphere.envs.bell import Bell  # here: as a worker's script, this file runs before there is a package

        self.label, self.doing, self.spin = label, "start", spin
        self.bell = None if bells is None else Bell(bells, index)
        self.timeout = min(timeout, 1e6)  # poll counts milliseconds in 32 bits
        read, self.commands = Pipe(duplex=False)
        self.replies, write = Pipe(duplex=False)
        ends = (read.fileno(), write.fileno())
        words = (os.getpid(), *ends, -1 if bells is None else bells, index)
        self.process = subprocess.Popen(
            # -P: else this file's folder would be on the path, and our metaworld.py would hide the package.
            [sys.executable, "-P", __file__, *map(str, words), os.pathsep.join(sys.path)],
            stdin=subprocess.DEVNULL,
            pass_fds=(*ends, memory, *([] if bells is None else [bells])),
            env=os.environ | ENVIRONMENT,
            process_group=0,  # Ctrl-C in the terminal reaches the learner only, from the first instruction on
        )
        read.close()
        write.close()
        self.ready = select.poll()
        self.ready.register(self.replies.fileno(), select.POLLIN)

    def send(self, command: str, *arguments: Any) -> None:
        self.doing = command
        try:
            if command == "step":
                if self.bell is None or self.bell.ask():
                    os.write(self.commands.fileno(), b"s")
            else:
                os.write(self.commands.fileno(), b"c")
                self.commands.send((command, arguments))
        except BrokenPipeError:
            raise self._death() from None

    def receive(self) -> Any:
        if self.doing == "step" and self.bell is not None:
            return self._step_done(self.bell)
        kind = self._byte()
        while kind == b"." and self.doing != "step":  # it was to wake us from a step that we saw done by ourselves
            kind = self._byte()
        return self._answer(kind)

    def _step_done(self, bell: "Bell") -> None:
        if bell.wait(False, self.spin):
            return
        while (state := bell.sleep(False, self.ready, self.timeout)) is not True:
            kind = b"" if state is False else os.read(self.replies.fileno(), 1)
            if state is False:
                raise self._hang()
            if kind != b".":
                self._answer(kind)

    def _byte(self) -> bytes:
        if not self.ready.poll(self.timeout * 1000):
            raise self._hang()
        return os.read(self.replies.fileno(), 1)

    def _answer(self, kind: bytes) -> Any:
        if kind == b".":
            return None
        try:
            answer = self.replies.recv() if kind else None
        except EOFError:
            kind = b""
        if not kind:
            raise self._death()
        if kind == b"!":
            raise WorkerError(f"{self.label} failed in {self.doing!r}:\n\n{answer}")
        return answer

    def _hang(self) -> WorkerError:
        self.process.kill()
        return WorkerError(
            f"{self.label} has not answered {self.doing!r} for {self.timeout:g} s and was killed; "
            "if its work really takes that long, raise timeout"
        )

    def _death(self) -> WorkerError:
        self.join(time.monotonic() + GRACE)
        code = self.process.returncode
        why = f" ({signal.Signals(-code).name})" if code < 0 else ""
        hint = "; out of memory?" if code == -signal.SIGKILL else ""
        return WorkerError(f"{self.label} died in {self.doing!r} with exit code {code}{why}{hint}")

    def hang_up(self) -> None:
        self.commands.close()
        self.replies.close()

    def join(self, deadline: float) -> None:
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def dismiss(workers: Sequence[Worker], memory: IO[bytes], owner: int) -> None:
    """Let all workers go, at the latest after `GRACE` seconds; a forked copy of their owner does nothing."""
    if os.getpid() == owner:
        memory.close()
        for worker in workers:
            worker.hang_up()
        deadline = time.monotonic() + GRACE
        for worker in workers:
            worker.join(deadline)


def anonymous_memory() -> IO[bytes]:
    """A file in memory without a name: it goes when its last user goes, so no crash can leave it behind."""
    return open(os.memfd_create("sphere"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def serve(share: "Share", commands: Connection, replies: Connection, bell: "Bell | None") -> None:
    """The worker's end of `Process`: obey until the pipe closes."""
    read, write = commands.fileno(), replies.fileno()
    waiting = select.poll()
    waiting.register(read, select.POLLIN)
    try:
        while kind := os.read(read, 1) if bell is None else _next(bell, read, waiting):
            try:
                if kind == b"s":
                    share.step()
                else:
                    command, arguments = commands.recv()
                    answer = getattr(share, command)(*arguments)
            except BaseException:
                kind, answer = b"!", traceback.format_exc()
            if kind == b"s":
                if bell is None or bell.answer():
                    os.write(write, b".")
            else:  # "c" or "!"
                os.write(write, kind)
                replies.send(answer)
            if kind == b"!":  # the pool closes; and by its bell a failed step would look as if it were still to be done
                break
    except BrokenPipeError:
        pass  # the learner has gone
    finally:
        share.leave()


def _next(bell: "Bell", read: int, waiting: Any) -> bytes:
    """The next command: a step by the bell, anything else by the pipe; nothing when the pipe has closed."""
    if bell.wait(True, SPIN, lambda: waiting.poll(0)):
        return b"s"
    while bell.sleep(True, waiting, math.inf) is not True:
        kind = os.read(read, 1)
        if kind != b"s":  # that byte only wakes
            return kind
    return b"s"


def leave_with(parent: int) -> None:
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
    """Arguments: the learner's process id, files of commands and replies, the file of bells and the number of ours in it
    (-1: none), and the learner's `sys.path`."""
    # Both may come to all processes at once; when to leave is the learner's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent, read, write, bells, index = map(int, sys.argv[1:6])
    leave_with(parent)
    sys.path[:] = sys.argv[6].split(os.pathsep)
    # Found by its place, in case the learner's directory has changed since. It imports nothing by itself: jax stays out.
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from sphere.envs.batch import Share
    from sphere.envs.bell import Bell

    del sys.path[0]
    bell = None if bells < 0 else Bell(bells, index)
    serve(Share(), Connection(read, writable=False), Connection(write, readable=False), bell)


if __name__ == "__main__":
    main()
