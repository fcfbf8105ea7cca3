"""Run directories become labelled data. Whatever is broken or foreign is named in a note and left out.

Only what a report needs is parsed: of metrics.jsonl the lines of evaluations (most lines are training iterations), of
episodes.jsonl everything, at once and into columns.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sphere.report.labels import method_name, tell_apart
from sphere.report.pieces import joined
from sphere.report.run import KINDS, Curve, Episodes, Loaded, Run
from sphere.storage.run_directory import EPISODES, METRICS


class Unreadable(ValueError):
    """A directory that is no run of ours, or a damaged one; the message goes into the notes."""


def load(paths: Iterable[Path], label: Callable[[Mapping[str, Any]], str] = method_name) -> Loaded:
    """All runs at and below some paths, in the order of their names. `label` names a method by its settings."""
    notes: list[str] = []
    runs: list[Run] = []
    wanted = [Path(path) for path in paths]
    for path in _directories(wanted, notes):
        try:
            runs.append(_read_run(path, notes))
        except (Unreadable, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
            notes.append(f"{path} was skipped: {reason}")
    if not runs:
        told = "; ".join(notes) or "name a directory that sphere train wrote, or one above it"
        raise ValueError(f"no run found in {', '.join(map(str, wanted)) or 'nothing'}: {told}")
    whole = joined(_once(_named(runs, label), notes), notes)
    return Loaded(tuple(sorted(whole, key=_place)), tuple(notes))


def _directories(paths: list[Path], notes: list[str]) -> list[Path]:
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


def _read_run(path: Path, notes: list[str]) -> Run:
    config = _settings(path)
    tasks = tuple(config["tasks"])
    if not (path / METRICS).is_file() or not (path / EPISODES).is_file():
        raise Unreadable(f"it has no {METRICS} or no {EPISODES}; a run directory has both from its start")
    curve, steps = _read_curve(path / METRICS, notes)
    return Run(
        path=path,
        name=path.name,
        method="",
        protocol=config["protocol"],
        seed=int(config["seeds"][0]),
        tasks=tasks,
        config=config,
        environment=_environment(path, notes),
        steps=steps,
        curve=curve,
        episodes=_read_episodes(path / EPISODES, tasks, notes),
    )


def _settings(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_bytes())
    except ValueError as error:
        raise Unreadable(f"config.json is not JSON ({error})") from None
    wanted = ("tasks", "protocol", "steps_per_task", "seeds", "rho")
    if not isinstance(config, dict) or (missing := [name for name in wanted if name not in config]):
        told = f"has no {', '.join(missing)}" if isinstance(config, dict) else "is no object"
        raise Unreadable(f"config.json {told}; it is not a run of sphere train")
    tasks = config["tasks"]
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise Unreadable(f"config.json has tasks {tasks!r:.60}, wanted a list of names")
    if len(set(tasks)) < len(tasks):
        raise Unreadable("config.json has a task twice; a report is by task and cannot tell its two visits apart")
    if config["protocol"] not in ("crl", "rl"):
        raise Unreadable(f"config.json has protocol {config['protocol']!r:.40}, wanted crl or rl")
    for name in ("seeds", "rho"):
        if not isinstance(config[name], list) or len(config[name]) != 1:
            raise Unreadable(f"config.json has {name} {config[name]!r:.60}, wanted one: a run's own settings")
    for name in ("ppo", "boundary"):
        if not isinstance(config.get(name) or {}, dict):
            raise Unreadable(f"config.json has {name} {config[name]!r:.60}, wanted settings by name")
    return config


def _environment(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        found = json.loads((path / "environment.json").read_bytes())
        if isinstance(found, dict):
            return found
        reason = "is no object"
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
        raise Unreadable(f"{path.name} has a line that is no object")
    return values


def _read_curve(path: Path, notes: list[str]) -> tuple[Curve, int]:
    lines = _complete_lines(path, notes)
    if torn := [line for line in lines if not (line.startswith(b"{") and line.endswith(b"}"))]:
        raise Unreadable(f"{path.name} has a line that is no object: {torn[0][:40]!r}")
    events = _parse(path, [line for line in lines if b'"evaluation/' in line])
    events = [event for event in events if any(name.startswith("evaluation/") for name in event)]
    last = _parse(path, lines[-1:])
    names = sorted({name for event in events for name in event if "/" in name})
    values = {name: _column(path, name, [event.get(name) for event in events]) for name in names}
    curve = Curve(
        np.array([event["step"] for event in events], np.int64),
        np.array([event["task_index"] for event in events], np.int64),
        _column(path, "wall", [event.get("wall") for event in events]),
        values,
    )
    return curve, int(last[0]["step"]) if last else 0


def _column(path: Path, name: str, values: list[Any]) -> np.ndarray:
    """Numbers; numpy reads "nan", "inf" and "-inf" as what they stand for, and None as NaN."""
    try:
        return np.array(values, float)
    except (ValueError, TypeError) as error:
        raise Unreadable(f"{path.name} has a {name} that is no number ({error})") from None


def _read_episodes(path: Path, tasks: tuple[str, ...], notes: list[str]) -> Episodes:
    lines = _parse(path, _complete_lines(path, notes))
    known = {task: index for index, task in enumerate(tasks)}
    kinds = {kind: index for index, kind in enumerate(KINDS)}
    if strange := {line["task"] for line in lines} - known.keys():
        raise Unreadable(f"{path.name} has episodes of {', '.join(map(str, strange))}, which config.json does not name")
    return Episodes(
        np.array([line["step"] for line in lines], np.int64),
        np.array([known[line["task"]] for line in lines], np.int64),
        np.array([kinds.get(line["kind"], -1) for line in lines], np.int64),
        np.array([line["success_at_end"] for line in lines], float),
        np.array([line["success_once"] for line in lines], float),
        _column(path, "return", [line["return"] for line in lines]),
    )


def _place(run: Run) -> tuple[str, str, int, str]:
    return run.protocol, run.method, run.seed, run.name


def _named(runs: list[Run], label: Callable[[Mapping[str, Any]], str]) -> list[Run]:
    """With methods and names; names are what tells the paths apart. Methods of a suite are told apart among themselves."""
    methods: dict[int, str] = {}
    for suite in {run.suite for run in runs}:
        own = [run for run in runs if run.suite == suite]
        methods |= dict(zip(map(id, own), tell_apart([run.config for run in own], label), strict=True))
    full = [run.path.resolve() for run in runs]
    common = Path(os.path.commonpath(full)) if len(full) > 1 else full[0].parent
    named = [
        replace(run, method=methods[id(run)], name=str(path.relative_to(common)))
        for run, path in zip(runs, full, strict=True)
    ]
    return sorted(named, key=_place)


def _once(runs: list[Run], notes: list[str]) -> list[Run]:
    """A run that was copied, or trained twice with the same seed, is one sample and not two: the longest."""
    seen: dict[tuple, Run] = {}
    for run in runs:
        key = (run.tasks, run.config["steps_per_task"], run.protocol, run.method, run.seed)
        if key not in seen:
            seen[key] = run
            continue
        kept, other = (run, seen[key]) if run.steps > seen[key].steps else (seen[key], run)
        seen[key] = kept
        notes.append(f"{other.path} has the settings and the seed ({run.seed}) of {kept.path}; they were counted once")
    return list(seen.values())
