"""Run directories as values: settings in today's format, evaluations and episodes as columns.

Everything that reads results reads them here: report, watch, show and export. A run whose files are not what they
should be (`validate.py`) is refused with the reason; one that was changed since its checksums were taken is read,
with a note.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sphere.storage import checksums
from sphere.storage.files import MOST_JSON, MOST_RECORD, read_regular, strict_json
from sphere.storage.migrate import choices, current
from sphere.storage.run_directory import CONFIG, EPISODES, METRICS
from sphere.storage.validate import (
    KINDS,
    Line,
    Unreadable,
    check_config,
    check_episodes,
    check_events,
    check_means,
    number,
)

ENVIRONMENT, FLEET = "environment.json", "fleet.json"
SIZES = {CONFIG: MOST_JSON, METRICS: MOST_RECORD, EPISODES: MOST_RECORD, ENVIRONMENT: MOST_JSON}
"""The files of a run, and how long each may be."""
ACTED = ("train/replaced", "train/felt", "train/coefficient")
"""Metrics of training that tell whether a method did anything."""


@dataclass(frozen=True)
class EpisodeTable:
    """Evaluation episodes of one run."""

    step: np.ndarray
    task: np.ndarray
    """Index into the run's tasks: it tells two visits of one task apart."""
    kind: np.ndarray
    """Index into KINDS."""
    columns: Mapping[str, np.ndarray]
    """Outcomes by name, a number per episode."""

    @cached_property
    def rows(self) -> dict[tuple[int, str], np.ndarray]:
        """(task index, kind) -> rows, in the order of the file."""
        order = np.lexsort((self.kind, self.task))
        task, kind = self.task[order], self.kind[order]
        edges = np.flatnonzero((np.diff(task) != 0) | (np.diff(kind) != 0)) + 1
        parts = [rows for rows in np.split(order, edges) if rows.size]
        return {(int(self.task[r[0]]), KINDS[self.kind[r[0]]]): r for r in parts}


@dataclass(frozen=True)
class Curve:
    """Evaluations of the task in training, in order."""

    step: np.ndarray
    task: np.ndarray
    wall: np.ndarray
    """Seconds, by the clock."""
    values: Mapping[str, np.ndarray]
    """By the name of the metric; NaN where an evaluation did not have it or it does not apply."""


@dataclass(frozen=True)
class RunContents:
    """All that a run directory says."""

    path: Path
    config: Mapping[str, Any]
    """config.json in today's format."""
    environment: Mapping[str, Any]
    steps: int
    """Steps so far."""
    curve: Curve
    episodes: EpisodeTable
    training: Mapping[str, np.ndarray]
    """Of every iteration that was recorded, what methods did (ACTED), by the name of the metric."""
    times: np.ndarray
    """[lines, 2]: step and time, in seconds by the clock, of every line of metrics.jsonl."""


class RunFiles(NamedTuple):
    """The files of a run as they were at one moment."""

    files: Mapping[str, bytes]
    sums: checksums.Sums
    """What they should be, where that was written down."""


def find_runs(paths: Iterable[Path], notes: list[str]) -> list[Path]:
    """Every directory that looks like a run: it has config.json or a record. Nothing below one is looked at."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist; name a directory that sphere train wrote, or one above it")
        if not path.is_dir():
            raise ValueError(f"{path} is a file; name the run's directory")
        before = len(found)
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if FLEET in files:
                notes += _gone(Path(folder))
            if "config.json" in files or METRICS in files or EPISODES in files:
                found.setdefault(Path(folder).resolve(), Path(folder))
                folders.clear()
            notes += [
                f"{Path(folder, name)} is a link to a directory and was not followed; name it by itself"
                for name in folders
                if os.path.islink(os.path.join(folder, name))
            ]
        if len(found) == before and not any(known.is_relative_to(path.resolve()) for known in found):
            notes.append(f"there is no run in {path}")
    return list(found.values())


def _gone(fleet: Path) -> list[str]:
    """Sentences about runs that the fleet's checkpoint knows and that are not there."""
    known = checksums.in_checkpoint(fleet, [])  # what is wrong with it is said with every run
    return [
        f"{fleet / run} is gone, and the fleet's checkpoint names it; what follows is without that run"
        for run in sorted(known)
        if not any((fleet / run / name).exists() for name in (CONFIG, METRICS, EPISODES))
    ]


def read_run(path: Path, notes: list[str]) -> RunContents:
    """A run directory as it is now, also while it is written. Notes say what could not be read."""
    contents = read_contents(path, notes)
    found = parse_run(path, contents, notes)
    notes += checksums.changed(path, contents.files, contents.sums)
    return found


def read_contents(path: Path, notes: list[str]) -> RunFiles:
    """The files of a run, each read once. Checksums first: a run in training only adds to what they speak of."""
    sums = checksums.recorded(path, notes)
    files = {}
    for name, most in SIZES.items():
        try:
            files[name] = read_regular(path / name, most)
        except FileNotFoundError:
            if name == ENVIRONMENT:
                continue
            raise Unreadable(f"it has no {name}; a run directory has one from its start") from None
    return RunFiles(files, sums)


def parse_run(path: Path, contents: RunFiles, notes: list[str]) -> RunContents:
    """What the files of a run say; `Unreadable` where that cannot be true."""
    files = contents.files
    config = _record(files[CONFIG])
    tasks, columns = config["settings"]["tasks"], config["columns"]
    last = config["task_steps"] * len(tasks)
    events = _parse(METRICS, _complete_lines(path / METRICS, files[METRICS], notes))
    check_events(METRICS, events, tasks, last)
    episodes = _parse(EPISODES, _complete_lines(path / EPISODES, files[EPISODES], notes))
    check_episodes(EPISODES, episodes, tasks, columns, config["seed"], last)
    check_means(events, episodes, tasks, columns)
    if not events:
        notes.append(f"{path}: {METRICS} is empty; the run has just begun, or its record was lost")
    steps = events[-1]["step"] if events else 0
    environment = _environment(path, files.get(ENVIRONMENT), notes)
    return RunContents(
        path,
        config,
        environment,
        steps,
        curve=_curve(events),
        episodes=_episodes(episodes, tasks, columns),
        training={name: _numbers(METRICS, name, [e[name] for e in events if name in e]) for name in ACTED},
        times=np.array([(event["step"], event["wall"]) for event in events], float).reshape(-1, 2),
    )


def read_record(path: Path) -> dict[str, Any]:
    """A run's config.json in today's format, checked."""
    return _record(read_regular(path / CONFIG, MOST_JSON))


def _record(data: bytes) -> dict[str, Any]:
    try:
        written = strict_json(data)
    except ValueError as error:
        raise Unreadable(f"config.json is not JSON ({error})") from None
    if not isinstance(written, dict):
        raise Unreadable("config.json is not an object; it is not a run of sphere train")
    config = current(written)
    check_config(config)
    return config | {"choices": choices(config)}


def _environment(path: Path, data: bytes | None, notes: list[str]) -> dict[str, Any]:
    try:
        found = None if data is None else strict_json(data)
        if isinstance(found, dict):
            return found
        reason = "is missing" if data is None else "is not an object"
    except ValueError as error:
        reason = f"cannot be read ({error})"
    notes.append(f"{path}: {ENVIRONMENT} {reason}; the run counts, its versions are not known")
    return {}


def _complete_lines(path: Path, data: bytes, notes: list[str]) -> list[bytes]:
    lines = data.split(b"\n")
    if lines.pop():
        notes.append(f"{path} ends in half a line (killed, or being written); that line is left out")
    return lines


def _parse(name: str, lines: list[bytes]) -> list[Line]:
    """All at once, which is three times as fast as one by one; one by one only to name the bad one."""
    try:
        values = strict_json(b"[" + b",".join(lines) + b"]")
    except ValueError:
        values = [_one(name, place, line) for place, line in enumerate(lines, 1)]
    if len(values) != len(lines) or not all(isinstance(value, dict) for value in values):
        raise Unreadable(f"{name} has a line that is not an object")
    return values


def _one(name: str, place: int, line: bytes) -> Any:
    try:
        return strict_json(line)
    except ValueError as error:
        raise Unreadable(f"{name}, line {place} is not JSON: {line[:40]!r} ({error})") from None


def _curve(events: list[Line]) -> Curve:
    events = [event for event in events if any(name.startswith("evaluation/") for name in event)]
    names = sorted({name for event in events for name in event if "/" in name})
    return Curve(
        np.array([event["step"] for event in events], np.int64),
        np.array([event["task_index"] for event in events], np.int64),
        np.array([event["wall"] for event in events], float),
        {name: _numbers(METRICS, name, [event.get(name, math.nan) for event in events]) for name in names},
    )


def _episodes(lines: list[Line], tasks: list[str], columns: list[str]) -> EpisodeTable:
    return EpisodeTable(
        np.array([line["step"] for line in lines], np.int64),
        np.array([line.get("task_index", tasks.index(line["task"])) for line in lines], np.int64),
        np.array([KINDS.index(line["kind"]) for line in lines], np.int64),
        {name: _numbers(EPISODES, name, [line[name] for line in lines]) for name in columns},
    )


def _numbers(where: str, name: str, values: list[Any]) -> np.ndarray:
    """Nearly all are floats already."""
    return np.array([one if type(one) is float else number(where, name, one) for one in values], float)
