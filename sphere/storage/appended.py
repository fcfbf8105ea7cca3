"""Rows that are only ever appended, in files of a fixed number of rows: what a replay memory keeps on disk.

A checkpoint holds two counters, the first row that is still needed and the end. A resumed run cuts the files back to
the end and goes on appending, so a checkpoint never rewrites a memory. Files that hold only rows before the first are
removed, a while after: checkpoints of before are still there, and may be what a run is resumed from.
"""

import os
from collections import deque
from pathlib import Path
from typing import IO

import numpy as np

ROWS = 2**16
"""Rows of a file."""
LATER = 16
"""Marks after which rows that are not needed are removed: two checkpoints are kept, and a group of runs may be eight
iterations ahead of what is saved."""


class AppendedRows:
    """Rows of float32 of one run, numbered from 0 for ever."""

    def __init__(self, directory: Path, width: int, rows: int = ROWS):
        self.directory, self.width, self.rows = directory, width, rows
        self.end = 0
        self._begun = False
        self._file: tuple[int, IO[bytes]] | None = None
        self._needed: deque[int] = deque(maxlen=LATER)

    def path(self, number: int) -> Path:
        return self.directory / f"replay-{number:06d}.bin"

    def append(self, rows: np.ndarray) -> None:
        """To the operating system at once: a killed process loses none of them."""
        if not self._begun:
            self.cut(self.end)  # only now: whoever does not write removes nothing
        rows = np.ascontiguousarray(rows, np.float32)
        while len(rows):
            number, within = divmod(self.end, self.rows)
            part = rows[: self.rows - within]
            file = self._open(number)
            file.write(part.tobytes())
            file.flush()
            self.end += len(part)
            rows = rows[len(part) :]

    def mark(self, first: int) -> None:
        """A checkpoint that needs the rows from `first` to the end: they are on disk when this returns."""
        if self._file is not None:
            os.fsync(self._file[1].fileno())
        if len(self._needed) == LATER:
            self._remove_before(min(self._needed))
        self._needed.append(first)

    def cut(self, end: int) -> None:
        """Back to so many rows, to go on from there; 0: the start."""
        self.close()
        number, within = divmod(end, self.rows)
        size = within * self.width * 4
        there = self.path(number).stat().st_size if self.path(number).exists() else 0
        if there < size:
            raise ValueError(
                f"{self.path(number)} has {there} bytes, and the checkpoint was taken at {size}; bring the original "
                "file back, or start again with a different --out"
            )
        for path in self.directory.glob("replay-*.bin"):
            later = int(path.stem.removeprefix("replay-")) > number
            if later or (path == self.path(number) and not size):
                path.unlink()
        if size:
            os.truncate(self.path(number), size)
        self.end, self._begun = end, True
        self._needed.clear()

    def read(self, first: int, last: int) -> np.ndarray:
        """Rows from `first` to before `last`."""
        parts = [np.zeros((0, self.width), np.float32)]
        for number in range(first // self.rows, -(-last // self.rows)):
            begin = max(first - number * self.rows, 0)
            count = min(last - number * self.rows, self.rows) - begin
            offset, size = begin * self.width * 4, count * self.width
            try:
                found = np.fromfile(self.path(number), np.float32, size, offset=offset)
            except OSError as error:
                raise ValueError(
                    f"{self.path(number)} cannot be read ({error}), and the checkpoint needs it; bring the file back, "
                    "or start again with a different --out"
                ) from error
            if len(found) < size:
                raise ValueError(
                    f"{self.path(number)} lacks rows that the checkpoint needs; bring the original file back"
                )
            parts.append(found.reshape(count, self.width))
        return np.concatenate(parts)

    def close(self) -> None:
        if self._file is not None:
            self._file[1].close()
            self._file = None

    def _open(self, number: int) -> IO[bytes]:
        if self._file is None or self._file[0] != number:
            if self._file is not None:
                os.fsync(self._file[1].fileno())
            self.close()
            self.directory.mkdir(parents=True, exist_ok=True)
            self._file = number, self.path(number).open("ab")
        return self._file[1]

    def _remove_before(self, first: int) -> None:
        for path in self.directory.glob("replay-*.bin"):
            if (int(path.stem.removeprefix("replay-")) + 1) * self.rows <= first:
                path.unlink()
