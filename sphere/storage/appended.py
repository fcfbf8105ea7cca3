"""Rows that are only ever appended, in files of a fixed number of rows: what a replay memory keeps on disk.

A checkpoint holds two counters, the first row that is still needed and the end, and the sha256 of the files that have
these rows. A resumed run cuts the files back to the end and goes on appending, so a checkpoint never rewrites a memory.
Files that hold only rows before the first are removed, a while after: checkpoints of before are still there, and may be
what a run is resumed from.
"""

import hashlib
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from sphere.storage.files import MOST_RECORD, Replaced, check_same_file, open_regular

ROWS = 2**16
"""Rows of a file."""
LATER = 16
"""Marks after which rows that are not needed are removed: two checkpoints are kept, and a group of runs may be eight
iterations ahead of what is saved."""

Sums = dict[str, dict[str, Any]]
"""By file: so many bytes from its start, and their sha256."""


class AppendedRows:
    """Rows of float32 of one run, numbered from 0 for ever."""

    def __init__(self, directory: Path, width: int, rows: int = ROWS):
        self.directory, self.width, self.rows = directory, width, rows
        self.end = 0
        self._begun = False
        self._file: tuple[int, IO[bytes]] | None = None
        self._written: dict[int, Any] = {}  # sha256 of all that each file should hold
        self._needed: deque[int] = deque(maxlen=LATER)
        self._marked: dict[int, Sums] = {}  # by the end at which a mark was set

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
            file, data = self._open(number), part.tobytes()
            file.write(data)
            file.flush()
            self._written[number].update(data)
            self.end += len(part)
            rows = rows[len(part) :]

    def mark(self, first: int) -> None:
        """A checkpoint that needs the rows from `first` to the end: they are on disk when this returns."""
        if self._file is not None:
            check_same_file(self._file[1], self.path(self._file[0]))
            os.fsync(self._file[1].fileno())
        if self._begun:
            self._marked[self.end] = self._sums(first)
        if len(self._needed) == LATER:
            self._remove_before(min(self._needed))
        if len(self._marked) > LATER:
            del self._marked[next(iter(self._marked))]
        self._needed.append(first)

    def checksums(self, end: int) -> Sums:
        """Of the files that the mark at that end needs."""
        return self._marked.get(end, {})

    def cut(self, end: int, first: int | None = None, checksums: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Back to so many rows, to go on from there; 0: the start. The rows from `first` on are needed, and their files
        are as their checksums say: earlier versions wrote none."""
        self.close()
        number, within = divmod(end, self.rows)
        size = within * self.width * 4
        there = self.path(number).stat().st_size if self.path(number).exists() else 0
        if there < size:
            raise ValueError(
                f"{self.path(number)} has {there} bytes, and the checkpoint was taken at {size}; bring the original "
                "file back, or start again with a different --out"
            )
        self._written = self._verified(end, end if first is None else first, checksums or {})
        for found, path in self._files():
            if found > number or (found == number and not size):
                path.unlink()
        if size:
            os.truncate(self.path(number), size)
        self.end, self._begun = end, True
        self._needed.clear()
        self._marked.clear()

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
                raise _gone(self.path(number), error) from error
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
        """The file that is written to, while it is the one that stands there."""
        if self._file is None or self._file[0] != number:
            if self._file is not None:
                os.fsync(self._file[1].fileno())
            self.close()
            self._file = number, self.path(number).open("ab")
            self._written.setdefault(number, hashlib.sha256())
        check_same_file(self._file[1], self.path(number))
        return self._file[1]

    def _files(self) -> Iterator[tuple[int, Path]]:
        for path in self.directory.glob("replay-*.bin"):
            if found := re.fullmatch(r"replay-(\d{6,12})\.bin", path.name):
                yield int(found[1]), path

    def _length(self, number: int, end: int) -> int:
        """Bytes that a file has of the rows before `end`."""
        return (min(end - number * self.rows, self.rows)) * self.width * 4

    def _sums(self, first: int) -> Sums:
        found = {}
        for number in range(first // self.rows, -(-self.end // self.rows)):
            path, length = self.path(number), self._length(number, self.end)
            there = path.stat().st_size if path.is_file() else -1
            if there != length:
                raise Replaced(
                    f"{path} {f'has {there} bytes' if there >= 0 else 'is gone'}, and this process has written "
                    f"{length}; training stops here. Put back what was there and continue with sphere resume"
                )
            found[path.name] = {"bytes": length, "sha256": self._written[number].hexdigest()}
        return found

    def _verified(self, end: int, first: int, checksums: Mapping[str, Mapping[str, Any]]) -> dict[int, Any]:
        """sha256 of the files with the rows from `first` to `end`, which are those that were written down; to go on
        with."""
        known = {}
        for number in range(first // self.rows, -(-end // self.rows)):
            path, left = self.path(number), self._length(number, end)
            known[number] = sha = hashlib.sha256()
            try:
                with open_regular(path, MOST_RECORD) as file:
                    while left and (block := file.read(min(left, 2**20))):
                        sha.update(block)
                        left -= len(block)
            except OSError as error:
                raise _gone(path, error) from error
            if path.name in checksums and sha.hexdigest() != checksums[path.name]["sha256"]:
                raise ValueError(
                    f"{path} was changed after the checkpoint was saved: its sha256 is another; bring the original "
                    "file back, or start again with a different --out"
                )
        return known

    def _remove_before(self, first: int) -> None:
        for number, path in self._files():
            if (number + 1) * self.rows <= first:
                path.unlink()
                self._written.pop(number, None)


def _gone(path: Path, error: OSError) -> ValueError:
    return ValueError(
        f"{path} cannot be read ({error}), and the checkpoint needs it; bring the file back, or start again with a "
        "different --out"
    )
