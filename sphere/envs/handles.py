"""The learner's side of the worker processes: a handle on each (`Process`), and how they are started and ended.

What runs in them is in `worker.py`.
"""

import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from typing import IO, Any, Protocol, runtime_checkable

from sphere.envs import worker
from sphere.envs.batch import Region, Share, Suite
from sphere.envs.worker import IN_ORDER, SIZE, Doorbell

GRACE = 2.0
"""Seconds that a worker gets to leave by itself when its pool closes."""

AWAKE = 0.01
"""Seconds that a learner which steps a share itself stays awake for the others' end of a step."""

# One BLAS thread each; should a suite bring jax in after all, it must not take the learner's GPU.
ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ENVIRONMENT |= {"JAX_PLATFORMS": "cpu"}


class WorkerError(RuntimeError):
    """A worker process raised, died or hung. The pool is closed."""


@runtime_checkable
class Worker(Protocol):
    """What steps a share of the environments: `Local` or a `Process`."""

    def send(self, command: str, *arguments: Any) -> None: ...
    def receive(self) -> Any: ...
    def hang_up(self) -> None: ...
    def join(self, deadline: float) -> None: ...


class Local:
    """A share in this process; it works when it is asked for the answer."""

    def __init__(self, share: Share) -> None:
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
    """A share in a worker process. A step is a request by its doorbell, or one byte each way; all else is pickled
    behind a byte.

    doorbells: the file of all doorbells, if there are any.
    spin: seconds that the learner stays awake for the end of a step.
    path: folders whose packages come before the learner's.
    """

    def __init__(
        self,
        label: str,
        memory: int,
        timeout: float,
        doorbells: int | None,
        index: int,
        spin: float,
        path: Sequence[str] = (),
    ) -> None:
        self.label, self.doing, self.spin = label, "start", spin
        self.doorbell = None if doorbells is None else Doorbell(doorbells, index)
        self.timeout = min(timeout, 1e6)  # poll counts milliseconds in 32 bits
        read, self.commands = Pipe(duplex=False)
        self.replies, write = Pipe(duplex=False)
        ends = (read.fileno(), write.fileno())
        words = (os.getpid(), *ends, -1 if doorbells is None else doorbells, index)
        self.process = subprocess.Popen(
            # -P: else this file's folder would be on the path, and our metaworld.py would hide the package.
            [sys.executable, "-P", worker.__file__, *map(str, words), os.pathsep.join([*path, *sys.path])],
            stdin=subprocess.DEVNULL,
            pass_fds=(*ends, memory, *([] if doorbells is None else [doorbells])),
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
                if self.doorbell is None or self.doorbell.request():
                    os.write(self.commands.fileno(), b"s")
            else:
                os.write(self.commands.fileno(), b"c")
                self.commands.send((command, arguments))
        except BrokenPipeError:
            raise self._death() from None

    def receive(self) -> Any:
        if self.doing == "step" and self.doorbell is not None:
            return self._step_done(self.doorbell)
        kind = self._byte()
        while (
            kind == b"." and self.doing != "step"
        ):  # it was meant to wake us from a step whose end we saw by the doorbell
            kind = self._byte()
        return self._answer(kind)

    def _step_done(self, doorbell: Doorbell) -> None:
        if doorbell.spin(False, self.spin):
            return
        while (state := doorbell.sleep(False, self.ready, self.timeout)) is not True:
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


def check_importable(suite: Suite) -> None:
    if suite.__module__ == "__main__" or "<locals>" in suite.__qualname__:
        raise ValueError(
            f"workers cannot import {suite.__qualname__} from {suite.__module__}; define it at the top level of a "
            "module of its own, or use workers=0"
        )


def start(
    here: bool,
    parts: Sequence[slice],
    memory: IO[bytes],
    timeout: float,
    workers: list[Worker],
    path: Sequence[str] = (),
) -> None:
    """Append a worker for each part of the environments. `here`: the first part stays in this process; `path`: folders
    whose packages come before the learner's in the others."""
    if here:  # first in the list: it steps while the others do
        workers.append(Local(Share()))
    others = parts[here:]
    # A learner that steps a share itself is done about when the others are; otherwise it would only take a core.
    spin = AWAKE if here else 0.0
    with anonymous_memory() as doorbells:
        os.ftruncate(doorbells.fileno(), max(len(others), 1) * SIZE)
        file = doorbells.fileno() if IN_ORDER else None
        for i, part in enumerate(others):
            label = f"worker {i} of {len(others)} (environments {part.start} to {part.stop - 1})"
            workers.append(Process(label, memory.fileno(), timeout, file, i, spin, path))


def dismiss(workers: Sequence[Worker], memory: IO[bytes], owner: int) -> None:
    """End all workers, at the latest after `GRACE` seconds; a forked copy of their owner does nothing."""
    if os.getpid() == owner:
        memory.close()
        for worker in workers:
            worker.hang_up()
        deadline = time.monotonic() + GRACE
        for worker in workers:
            worker.join(deadline)


def anonymous_memory() -> IO[bytes]:
    """A file in memory without a name: it disappears with its last user, so no crash can leave it behind."""
    return open(os.memfd_create("sphere"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def extend(memory: IO[bytes], size: int) -> tuple[Region, mmap.mmap]:
    """Append zeros to a file in memory, in whole pages: where they are in it, and a view of them."""
    offset = os.fstat(memory.fileno()).st_size
    size = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    os.ftruncate(memory.fileno(), offset + size)
    return (offset, size), mmap.mmap(memory.fileno(), size, offset=offset)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
