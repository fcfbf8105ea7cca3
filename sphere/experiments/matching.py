"""Which records of a directory belong to which experiment. Records say what they are: a run counts for an arm if its
settings are those of the arm at the paper's scale; its place on the disk does not matter.

Of two runs with the same settings and seed one counts: the longer one, else the one whose path comes first. The other
is a repeat. What has other settings, fewer tasks or fewer steps counts for nothing and is listed beside the results.
"""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sphere.experiments import registry
from sphere.experiments.arms import Arm
from sphere.experiments.configs import by_task, config_of, identity_of, identity_on_any_task, read
from sphere.experiments.experiment import Experiment, Found
from sphere.report.load import load
from sphere.report.names import spell
from sphere.report.run import Loaded, Run
from sphere.storage.provenance import RESUMED
from sphere.storage.reader import RunContents, find_runs, read_run
from sphere.training.settings import FleetConfig


class Settings(NamedTuple):
    """Of an arm at the paper's scale."""

    identity: str
    on_any_task: str
    configs: tuple[FleetConfig, ...]
    """What is trained: under RL every task by itself."""


_KNOWN: dict[str, Settings] = {}


def settings(arm: Arm) -> Settings:
    """Kept, since arms are shared by many experiments and sizing a network takes a while."""
    if (key := repr(arm)) not in _KNOWN:
        whole = config_of(arm)
        _KNOWN[key] = Settings(identity_of(whole), identity_on_any_task(whole), tuple(by_task(whole)))
    return _KNOWN[key]


def identities(experiment: Experiment) -> dict[str, FleetConfig]:
    """Of what is trained for an experiment, seeds aside."""
    return {identity_of(one): one for arm in experiment.arms for one in settings(arm).configs}


@dataclass(frozen=True)
class Archive:
    """The records below a directory, each read once."""

    root: Path
    records: Mapping[Path, RunContents]

    @cached_property
    def identities(self) -> dict[Path, str]:
        return {path: identity_of(read(record.config["settings"])) for path, record in self.records.items()}

    @cached_property
    def counted(self) -> dict[tuple[str, int], Path]:
        """By identity and seed."""
        best: dict[tuple[str, int], Path] = {}
        for path in sorted(self.records, key=lambda path: (-self.records[path].steps, path)):
            best.setdefault((self.identities[path], self.records[path].config["seed"]), path)
        return best

    def belonging(self, experiment: Experiment) -> tuple[list[Path], list[Path]]:
        """The runs that count for an experiment, and their repeats."""
        arms = {*identities(experiment), *(settings(arm).identity for arm in experiment.arms)}
        every = {path for path, one in self.identities.items() if one in arms}
        counted = every & set(self.counted.values())
        return sorted(counted), sorted(every - counted)

    @cached_property
    def _runs(self) -> dict[str, list[Run]]:
        """As a report reads them, those that count apart from repeats, by the identity on any task."""
        sides: tuple[set[Path], set[Path]] = (set(), set())
        for experiment in registry().values():
            for side, paths in zip(sides, self.belonging(experiment), strict=True):
                side.update(paths)
        found: dict[str, list[Run]] = defaultdict(list)
        for repeat, side in zip(("", "repeat "), sides, strict=True):
            for run in load(sorted(side), read=lambda path, _: self.records[path]).runs if side else ():
                found[repeat + identity_on_any_task(read(run.settings))].append(run)
        return found

    def found(self, experiment: Experiment, repeat: bool = False) -> Found | None:
        """The runs of an experiment under its labels: those that count, or their repeats."""
        runs = [
            dataclasses.replace(run, method=label)
            for key, label in {settings(arm).on_any_task: arm.label for arm in experiment.arms}.items()
            for run in self._runs.get(f"repeat {key}" if repeat else key, ())
        ]
        ordered = sorted(runs, key=lambda run: (run.protocol, run.method, run.seed, run.name))
        return Found("paper", Loaded(tuple(ordered), ())) if runs else None

    def short(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def archive(root: Path) -> Archive:
    """All runs below a directory. One that cannot be read, or was changed, is an error here: results are complete or
    wrong."""
    notes: list[str] = []
    found = Archive(root, {path: read_run(path, notes) for path in find_runs([root], notes)})
    if notes:
        raise ValueError(f"no pages are made of these records: {'; '.join(notes)}")
    return found


def differences(record: RunContents, experiment: Experiment) -> dict[str, Any]:
    """The settings of a run that the nearest arm of an experiment does not have. Tasks aside: those are counted."""
    mine = json.loads(identity_of(read(record.config["settings"])))
    found = []
    for arm in experiment.arms:
        theirs = json.loads(settings(arm).identity)
        names = [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name) and name != "tasks"]
        found.append({name: mine.get(name) for name in names})
    return min(found, key=len)


MOST_CHANGES = 6


def in_words(changes: Mapping[str, Any]) -> str:
    """The last part of each name, which is enough beside a path. Of many, how many: that is another experiment."""
    if len(changes) > MOST_CHANGES:
        return f"{len(changes)} other settings"
    return ", ".join(f"{name.rsplit('.', 1)[-1].replace('_', ' ')} {spell(value)}" for name, value in changes.items())


# Device and time


class Effort(NamedTuple):
    device: str
    runs: int
    hours: float
    """During which at least one run was in training on it."""
    run_hours: float
    """Added up over runs."""


def effort(records: Iterable[RunContents]) -> list[Effort]:
    """From the times in the records. A pause counts as three times the usual time of its steps at most."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    runs: dict[str, set[Path]] = defaultdict(set)
    for record in records:
        for device, span in _spans(record):
            spans[device].append(span)
            runs[device].add(record.path)
    return [
        Effort(device, len(runs[device]), _union(some) / 3600, sum(end - start for start, end in some) / 3600)
        for device, some in sorted(spans.items())
    ]


def _spans(record: RunContents) -> list[tuple[str, tuple[float, float]]]:
    step, wall = record.times.T
    steps, seconds = np.diff(step), np.diff(wall)
    known = (steps > 0) & (seconds > 0)
    if not known.any():
        return []
    usual = np.median(seconds[known] / steps[known])
    kept = np.minimum(seconds, 3 * usual * steps)
    return [
        (device_at(record.environment, step[i]), (wall[i + 1] - kept[i], wall[i + 1])) for i in np.flatnonzero(known)
    ]


def device_at(environment: Mapping[str, Any], step: float) -> str:
    device = environment.get("device") or {}
    for at, change in sorted((environment.get(RESUMED) or {}).items(), key=lambda item: int(item[0])):
        if int(at) <= step:
            device = change.get("device") or device
    kind = str(device.get("kind", "unknown"))
    return "CPU cores" if kind == "cpu" else kind


def _union(spans: Sequence[tuple[float, float]]) -> float:
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
