"""Run directories as values: settings in today's format, evaluations and episodes as columns.

Only what a reader of results needs is parsed: of metrics.jsonl the lines of evaluations (most lines are training
iterations), of episodes.jsonl everything, at once and into columns.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sphere.storage.migrate import current
from sphere.storage.run_directory import EPISODES, METRICS

KINDS = ("evaluation", "retention", "final")
"""When an episode was played: during a task, at a task boundary, at the end of the sequence."""

FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("learner", "method", "label", "suite", "score"), str),
    **dict.fromkeys(("task_steps", "seed"), int),
    **dict.fromkeys(("columns", "varies"), list),
    **dict.fromkeys(("numbers", "settings"), dict),
}
"""What a reader takes from config.json, and its type."""


class Unreadable(ValueError):
    """A directory that is no run of ours, or a damaged one."""


@dataclass(frozen=True)
class Episodes:
    """Evaluation episodes of one run."""

    step: np.ndarray
    task: np.ndarray
    """Index into the run's tasks: it tells two visits of one task apart."""
    kind: np.ndarray
    """Index into KINDS; -1 for an unknown one."""
    columns: Mapping[str, np.ndarray]
    """Outcomes by name, a number per episode."""

    @cached_property
    def rows(self) -> dict[tuple[int, str], np.ndarray]:
        """(task index, kind) -> rows, in the order of the file."""
        order = np.lexsort((self.kind, self.task))
        task, kind = self.task[order], self.kind[order]
        edges = np.flatnonzero((np.diff(task) != 0) | (np.diff(kind) != 0)) + 1
        parts = [rows for rows in np.split(order, edges) if rows.size]
        return {(int(self.task[r[0]]), KINDS[self.kind[r[0]]]): r for r in parts if self.kind[r[0]] >= 0}


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
class Record:
    """All that a run directory says."""

    path: Path
    config: Mapping[str, Any]
    """config.json in today's format."""
    environment: Mapping[str, Any]
    steps: int
    """Steps so far."""
    curve: Curve
    episodes: Episodes


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
            if "config.json" in files or METRICS in files or EPISODES in files:
                found.setdefault(Path(folder).resolve(), Path(folder))
                folders.clear()
        if len(found) == before and not any(known.is_relative_to(path.resolve()) for known in found):
            notes.append(f"there is no run in {path}")
    return list(found.values())


def read_run(path: Path, notes: list[str]) -> Record:
    """A run directory as it is now, also while it is written. Notes say what could not be read."""
    config = read_record(path)
    if not (path / METRICS).is_file() or not (path / EPISODES).is_file():
        raise Unreadable(f"it has no {METRICS} or no {EPISODES}; a run directory has both from its start")
    curve, steps = _read_curve(path / METRICS, notes)
    episodes = _read_episodes(path / EPISODES, config["settings"]["tasks"], config["columns"], notes)
    return Record(path, config, _read_environment(path, notes), steps, curve, episodes)


def read_record(path: Path) -> dict[str, Any]:
    """A run's config.json in today's format, checked."""
    try:
        written = json.loads((path / "config.json").read_bytes())
    except ValueError as error:
        raise Unreadable(f"config.json is not JSON ({error})") from None
    if not isinstance(written, dict):
        raise Unreadable("config.json is not an object; it is not a run of sphere train")
    config = current(written)
    for name, kind in FIELDS.items():
        if not isinstance(config.get(name), kind):
            raise Unreadable(
                f"config.json has {name} {config.get(name)!r:.60}, wanted {getattr(kind, '__name__', kind)}"
            )
    if config["score"] not in config["columns"]:
        raise Unreadable(f"config.json has score {config['score']!r}, which is none of {', '.join(config['columns'])}")
    settings = config["settings"]
    tasks = settings.get("tasks")
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise Unreadable(f"config.json has tasks {tasks!r:.60}, wanted a list of names")
    if settings.get("protocol") not in ("crl", "rl"):
        raise Unreadable(f"config.json has protocol {settings.get('protocol')!r:.40}, wanted crl or rl")
    if not isinstance(settings.get("boundary") or {}, dict):
        raise Unreadable(f"config.json has boundary {settings['boundary']!r:.60}, wanted settings by name")
    return config


def _read_environment(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        found = json.loads((path / "environment.json").read_bytes())
        if isinstance(found, dict):
            return found
        reason = "is not an object"
    except (OSError, ValueError) as error:
        reason = f"cannot be read ({error})"
    notes.append(f"{path}: environment.json {reason}; the run counts, its versions are not known")
    return {}


def _complete_lines(path: Path, notes: list[str]) -> list[bytes]:
    lines = path.read_bytes().split(b"\n")
    if lines.pop():
        notes.append(f"{path} ends in half a line (killed, or being written); that line is left out")
    return lines


def _parse(path: Path, lines: list[bytes]) -> list[dict[str, Any]]:
    """All at once, which is three times as fast as one by one; one by one only to name the bad one."""
    try:
        values = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        for line in lines:
            try:
                json.loads(line)
            except ValueError as error:
                raise Unreadable(f"{path.name} has a line that is not JSON: {line[:40]!r} ({error})") from None
        raise Unreadable(f"{path.name} is not JSON line by line") from None
    if len(values) != len(lines) or not all(isinstance(value, dict) for value in values):
        raise Unreadable(f"{path.name} has a line that is not an object")
    return values


def _read_curve(path: Path, notes: list[str]) -> tuple[Curve, int]:
    lines = _complete_lines(path, notes)
    if torn := [line for line in lines if not (line.startswith(b"{") and line.endswith(b"}"))]:
        raise Unreadable(f"{path.name} has a line that is not an object: {torn[0][:40]!r}")
    events = _parse(path, [line for line in lines if b'"evaluation/' in line])
    events = [event for event in events if any(name.startswith("evaluation/") for name in event)]
    last = _parse(path, lines[-1:])
    names = sorted({name for event in events for name in event if "/" in name})
    values = {name: _numbers(path, name, [event.get(name) for event in events]) for name in names}
    curve = Curve(
        np.array([event["step"] for event in events], np.int64),
        np.array([event["task_index"] for event in events], np.int64),
        _numbers(path, "wall", [event.get("wall") for event in events]),
        values,
    )
    return curve, int(last[0]["step"]) if last else 0


def _numbers(path: Path, name: str, values: list[Any]) -> np.ndarray:
    """numpy reads "nan", "inf" and "-inf" as what they stand for, and None as NaN."""
    try:
        return np.array(values, float)
    except (ValueError, TypeError) as error:
        raise Unreadable(f"{path.name} has a {name} that is not a number ({error})") from None


def _read_episodes(path: Path, tasks: list[str], columns: list[str], notes: list[str]) -> Episodes:
    lines = _parse(path, _complete_lines(path, notes))
    kinds = {kind: index for index, kind in enumerate(KINDS)}
    return Episodes(
        np.array([line["step"] for line in lines], np.int64),
        np.array(_task_indices(path, lines, tasks), np.int64),
        np.array([kinds.get(line["kind"], -1) for line in lines], np.int64),
        {name: _numbers(path, name, [line[name] for line in lines]) for name in columns},
    )


def _task_indices(path: Path, lines: list[dict[str, Any]], tasks: list[str]) -> list[int]:
    """Old lines have no task_index; there a name must do."""
    only = {task: index for index, task in enumerate(tasks)}
    again = {task for task in only if tasks.count(task) > 1}
    if strange := {line["task"] for line in lines} - only.keys():
        raise Unreadable(f"{path.name} has episodes of {', '.join(map(str, strange))}, which config.json does not name")
    found = [line.get("task_index", only[line["task"]]) for line in lines]
    for line, index in zip(lines, found, strict=True):
        if not isinstance(index, int) or not 0 <= index < len(tasks) or tasks[index] != line["task"]:
            raise Unreadable(f"{path.name} has an episode of {line['task']} with task_index {index!r:.20}")
        if line["task"] in again and "task_index" not in line:
            raise Unreadable(f"{path.name} does not say which visit of {line['task']} an episode belongs to")
    return found
