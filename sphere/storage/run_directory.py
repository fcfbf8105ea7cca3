"""A run directory: what was asked, where it ran, and every number it produced, as plain JSON.

    config.json        the settings
    environment.json   versions, commit, device; from which step on others, if it was resumed with others
    metrics.jsonl      a line per event: step, task, task_index, wall, then name -> number
    episodes.jsonl     a line per evaluation episode
    lock               held by the one process that may write; names it

Exact resume: a checkpoint stores `positions()`, the length of each .jsonl file at that moment. A resumed run
cuts the files back to them with `truncate` and writes what came after again. So the record of a killed run
equals that of an undisturbed one, wall-clock times aside, and a line torn by the kill never stays. `checksums()` go
into the checkpoint too: a record that was changed before its position is not gone on with.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from sphere.storage.files import (
    MOST_RECORD,
    NON_FINITE,
    Replaced,
    check_same_file,
    lock_directory,
    open_regular,
    plain,
    read_json,
    strict_json,
    sync_directory,
    write_json,
)

METRICS, EPISODES, CONFIG = "metrics.jsonl", "episodes.jsonl", "config.json"
EVENT_FIELDS = ("step", "task", "task_index", "wall")
EPISODE_FIELDS = ("step", "task", "task_index", "kind", "seed", "episode")


class RunDirectory:
    """The writer of one run directory, and the holder of its lock.

    A line goes to the operating system at once (2 microseconds), so a killed process loses none of them.
    Only `positions` waits for the disk.
    """

    def __init__(self, path: Path, lock: IO[str]):
        self.path = path
        self._lock = lock
        self._files: dict[str, IO[bytes]] = {}
        self._written: dict[str, Any] = {}  # sha256 of all that each record should hold
        self._lengths: dict[str, int] = {}
        self._config = ""

    @classmethod
    def create(cls, path: Path, config: Any, environment: Mapping[str, Any]) -> "RunDirectory":
        """Start a run in `path`, which must not hold one. `config` is a dataclass or a mapping."""
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, lock_directory(path))
        try:
            # An empty record is what a process killed in here leaves behind; it holds nothing to lose.
            files = [path / name for name in ("config.json", METRICS, EPISODES)]
            if written := [file.name for file in files if file.exists() and file.stat().st_size]:
                raise FileExistsError(
                    f"{path} already holds a run ({', '.join(written)}); "
                    "continue its fleet with sphere resume, or choose another directory"
                )
            run.truncate({})
            write_json(path / "environment.json", environment)
            write_json(path / CONFIG, config)  # last: from here on there is a run to resume
            run._config = _digest(path / CONFIG)
            sync_directory(path.parent)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def resume(cls, path: Path) -> "RunDirectory":
        """Open the run in `path`. Call `truncate` with the checkpoint's positions before the first event."""
        if not (path / "config.json").is_file():
            raise FileNotFoundError(
                f"{path} holds no run (no config.json); bring it back, or train a new fleet elsewhere"
            )
        run = cls(path, lock_directory(path))
        try:
            run._config = _digest(path / CONFIG)
        except BaseException:
            run.close()
            raise
        return run

    def verify(self, positions: Mapping[str, int], checksums: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """The records hold up to `positions` what the checkpoint says they did. One of an earlier version has no
        checksums."""
        if unknown := set(positions) - {METRICS, EPISODES}:
            raise ValueError(f"positions name {sorted(unknown)}; the records are {METRICS} and {EPISODES}")
        for name, length in positions.items():
            path = self.path / name
            _check_line_end(path, length)
            if checksums and _digest(path, length) != checksums[name]["sha256"]:
                raise ValueError(
                    f"{path} was changed before byte {length}, where the checkpoint was taken: its sha256 is another; "
                    "bring the original file back, or start again with a different --out"
                )

    def truncate(self, positions: Mapping[str, int], checksums: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Cut the records back to the `positions()` of a checkpoint, to go on from there; `{}`: the start."""
        self._close_files()
        self.verify(positions, checksums)  # all of them before any is cut
        if checksums:
            self._config = checksums[CONFIG]["sha256"]  # of when the run began, whatever stands there now
        for name in (METRICS, EPISODES):
            path, length = self.path / name, positions.get(name, 0)
            file = self._files[name] = path.open("ab")
            file.truncate(length)
            os.fsync(file.fileno())
            self._written[name], self._lengths[name] = _sha256(path, length), length
        sync_directory(self.path)

    def check(self) -> None:
        """Raises `Replaced` where the files are not those that this process has opened, or are not as it left them."""
        check_same_file(self._lock, self.path / "lock")
        for name in (METRICS, EPISODES):
            file = self._file(name)
            check_same_file(file, self.path / name)
            size = os.fstat(file.fileno()).st_size
            if size != self._lengths[name]:
                raise Replaced(
                    f"{self.path / name} has {size} bytes, and this process has written {self._lengths[name]}: "
                    "something else writes to it. Training stops here; stop the other process, then continue with "
                    "sphere resume"
                )

    def positions(self) -> dict[str, int]:
        """The length of each record, all of it on disk. Call it before saving the checkpoint that has it."""
        files = {name: self._file(name) for name in (METRICS, EPISODES)}
        self.check()
        for file in files.values():
            os.fsync(file.fileno())
        return {name: self._lengths[name] for name in files}

    def checksums(self) -> dict[str, dict[str, Any]]:
        """By file: so many bytes, from its start, and their sha256."""
        records = {
            name: {"bytes": self._lengths[name], "sha256": self._written[name].hexdigest()} for name in self._files
        }
        return records | {CONFIG: {"bytes": None, "sha256": self._config}}  # None: all of it

    def event(
        self, step: int, values: Mapping[str, Any], *, task: str, task_index: int, wall: float | None = None
    ) -> None:
        """Append to metrics.jsonl. Fetch values from the device first, in one go; here it is one by one."""
        if taken := [name for name in values if name in EVENT_FIELDS]:
            raise ValueError(f"metrics named {taken}: the event itself has fields of these names, use others")
        wall = time.time() if wall is None else wall
        line = {"step": step, "task": task, "task_index": task_index, "wall": wall}
        self._append(METRICS, line | {name: _number(name, value) for name, value in values.items()})

    def episode(self, fields: Mapping[str, Any]) -> None:
        """Append to episodes.jsonl: all of EPISODE_FIELDS, then the columns of the outcome."""
        if missing := [name for name in EPISODE_FIELDS if name not in fields]:
            raise ValueError(f"an episode came without {missing}; it needs {', '.join(EPISODE_FIELDS)}")
        self._append(EPISODES, fields)

    def close(self) -> None:
        """Release the files and the lock."""
        self._close_files()
        self._lock.close()

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        file, data = self._file(name), json.dumps(plain(line), allow_nan=False).encode() + b"\n"
        file.write(data)
        file.flush()
        self._written[name].update(data)
        self._lengths[name] += len(data)

    def _file(self, name: str) -> IO[bytes]:
        if name not in self._files:
            raise RuntimeError(f"{self.path} is closed, or was resumed without truncate(positions)")
        return self._files[name]

    def _close_files(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


def _check_line_end(path: Path, length: int) -> None:
    if length == 0:
        return
    with open_regular(path, MOST_RECORD) as file:
        file.seek(length - 1)
        if file.read(1) != b"\n":
            raise ValueError(
                f"{path} has {path.stat().st_size} bytes and no line that ends at byte {length}, where the "
                "checkpoint was taken; bring the original file back, or start again with a different --out"
            )


def _sha256(path: Path, length: int | None = None) -> Any:
    """Of a file's first so many bytes; None: of all."""
    sha, left = hashlib.sha256(), length
    with open_regular(path, MOST_RECORD) as file:
        while block := file.read(2**20 if left is None else min(left, 2**20)):
            sha.update(block)
            left = None if left is None else left - len(block)
    return sha


def _digest(path: Path, length: int | None = None) -> str:
    return _sha256(path, length).hexdigest()


def _number(name: str, value: Any) -> Any:
    number = plain(value)
    if isinstance(value, str | Path) or not (isinstance(number, bool | int | float) or number in tuple(NON_FINITE)):
        raise TypeError(f"metric {name!r} is {value!r:.80}; a metric is one number")
    return number


def read_config(directory: Path) -> dict[str, Any]:
    """The settings as written (an infinite one is still the string "inf")."""
    return read_json(directory / CONFIG)


def read_events(directory: Path) -> list[dict[str, Any]]:
    """All complete lines of metrics.jsonl."""
    return [_restore(line, line.keys() - set(EVENT_FIELDS)) for line in _read_lines(directory / METRICS)]


def read_episodes(directory: Path) -> list[dict[str, Any]]:
    """All complete lines of episodes.jsonl."""
    return [_restore(line, line.keys() - {"task", "kind"}) for line in _read_lines(directory / EPISODES)]


def _restore(line: dict[str, Any], numbers: set[str]) -> dict[str, Any]:
    return {k: NON_FINITE.get(v, v) if k in numbers and isinstance(v, str) else v for k, v in line.items()}


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with open_regular(path, MOST_RECORD) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # torn by a kill, or being written right now
            try:
                value = strict_json(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON ({error}); edited or damaged?") from None
            if not isinstance(value, dict):
                raise ValueError(f"{path}, line {number} is {line[:60]!r}, wanted an object; edited?")
            yield value
