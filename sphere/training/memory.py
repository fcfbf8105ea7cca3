"""What the runs of a group remember: a table on the device to learn from, and a file of every run to resume from."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sphere.algos import replay, rows
from sphere.algos.learner import Data, DataSpec, Learner
from sphere.errors import UserError
from sphere.storage.appended import AppendedRows


class Memory:
    """Rows of every run from `origin` to `end` are remembered, at most so many as fit. Row i stands at place i -
    origin, modulo capacity, so that the rows in use are always the first ones of the table."""

    def __init__(self, learner: Learner, spec: DataSpec, directories: Sequence[Path]):
        self.learner, self.spec, self.capacity = learner, spec, learner.memory
        width = replay.width(spec)
        check_room(learner, spec, len(directories))
        self.files = [AppendedRows(directory, width) for directory in directories]
        self.origin = self.end = 0
        self.table = replay.empty(len(directories), self.capacity, width)

    def extend(self, data: Data) -> dict[str, Any]:
        """Remember one iteration's data; what the learner learns from."""
        new = rows.remembered(self.learner, self.spec, data)
        self.table = replay.write(self.table, new, np.int32((self.end - self.origin) % self.capacity))
        for file, own in zip(self.files, np.asarray(new), strict=True):
            file.append(own)
        self.end += new.shape[1]
        return replay.data(self.table, np.arange(len(self.files)), self.end - self.first)

    @property
    def first(self) -> int:
        """The oldest row that is remembered."""
        return max(self.origin, self.end - self.capacity)

    def forget(self) -> None:
        """The task has changed: what comes next is written from the start of the table on."""
        self.origin = self.end

    def tree(self) -> dict[str, Any]:
        """For a checkpoint, rows by run."""
        for file in self.files:
            file.mark(self.first)
        return {name: np.full(len(self.files), getattr(self, name), np.int64) for name in ("origin", "end")}

    def checksums(self, tree: dict[str, Any]) -> dict[str, Any]:
        """By run and file, of the moment at which a tree was taken."""
        return {file.directory.name: file.checksums(int(tree["end"][0])) for file in self.files}

    def restore(self, tree: dict[str, Any], checksums: Mapping[str, Any]) -> None:
        self.origin, self.end = int(tree["origin"][0]), int(tree["end"][0])
        found = []
        for file in self.files:
            file.cut(self.end, self.first, checksums.get(file.directory.name))
            found.append(file.read(self.first, self.end))
        table = np.zeros(self.table.shape, np.float32)
        table[:, (np.arange(self.first, self.end) - self.origin) % self.capacity] = np.stack(found)
        self.table = jax.device_put(table)

    def close(self) -> None:
        for file in self.files:
            file.close()


def size(learner: Learner, spec: DataSpec) -> int:
    """Bytes of the memory of one run."""
    return 4 * learner.memory * replay.width(spec) if learner.memory else 0


def check_room(learner: Learner, spec: DataSpec, runs: int) -> None:
    """Refuse a memory that the device cannot hold."""
    wanted, free = runs * size(learner, spec), _free()
    if free is not None and wanted > free:
        fits = free // (runs * size(learner, spec) // learner.memory)
        raise UserError(
            f"a memory of {learner.memory:,} transitions takes {wanted / 2**30:,.1f} GiB for {runs} runs, and "
            f"{free / 2**30:,.1f} GiB are free on the device; use --{learner.name}.buffer-size {fits} or less, "
            "or fewer runs"
        )


def _free() -> int | None:
    """Bytes that the device has left; None: it does not say."""
    if jax.default_backend() == "cpu":
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    stats = jax.devices()[0].memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
