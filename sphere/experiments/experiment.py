"""An experiment as a value, what its runs have left behind, and what is made of it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sphere.errors import nearest
from sphere.experiments.cells import SEEDS, Cell, Scale, apart, at_scale, identity, identity_of
from sphere.launch.schedule import Schedule, same_run, schedule, singles
from sphere.report.comparison import Comparison, comparisons
from sphere.report.load import load
from sphere.report.run import Loaded, Run
from sphere.report.scores import Scores, own_scores
from sphere.report.tables import Table
from sphere.storage import run_directory
from sphere.training.group import task_name
from sphere.training.settings import FleetConfig, rebuild


@dataclass(frozen=True)
class Results:
    tables: Sequence[Table] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    """By name; drawn with matplotlib."""


@dataclass(frozen=True)
class Found:
    """The runs of an experiment as a report reads them; a method's name is the label of its cell."""

    scale: Scale
    loaded: Loaded

    @cached_property
    def comparisons(self) -> list[Comparison]:
        return comparisons(self.loaded)

    @property
    def comparison(self) -> Comparison:
        """The one with the most runs."""
        return self.comparisons[0]

    def of_suite(self, suite: str) -> Comparison | None:
        return next((one for one in self.comparisons if one.suite == suite), None)

    def runs(self, label: str, protocol: str = "crl", suite: str | None = None) -> list[Run]:
        mine = [run for run in self.loaded.runs if (run.method, run.protocol) == (label, protocol)]
        return [run for run in mine if suite is None or run.suite == suite]

    def finished(self, label: str) -> list[Run]:
        return [run for run in self.runs(label) if run.finished]

    def scores(self, label: str, protocol: str = "crl", suite: str | None = None) -> Scores | None:
        """Success right after each task's own training, of the runs that have finished."""
        return own_scores(self.runs(label, protocol, suite)).scores


@dataclass(frozen=True)
class Experiment:
    title: str
    source: str
    """The paper's label of the table or figure."""
    cells: Callable[[], Sequence[Cell]]
    """At the paper's scale."""
    results: Callable[[Found], Results]
    seeds: int = SEEDS["paper"]
    """At the paper's scale."""
    together: bool = True
    """False: no two cells share a fleet, because their times are compared."""

    def only(self, labels: Sequence[str]) -> "Experiment":
        """With the cells of these names alone."""
        known = dict.fromkeys(cell.label for cell in self.cells())
        for label in labels:
            if label not in known:
                raise nearest("method of this experiment", label, known)
        return dataclasses.replace(self, cells=lambda: [cell for cell in self.cells() if cell.label in labels])

    def runs(self, scale: Scale, seeds: Sequence[int] | None = None) -> list[Cell]:
        number = self.seeds if scale == "paper" else min(self.seeds, SEEDS[scale])
        chosen = tuple(seeds) if seeds else tuple(range(number))
        cells: dict[str, Cell] = {}
        for cell in self.cells():
            whole = at_scale(cell.config, scale, chosen)
            # nearly all of smoke's time goes into compiling, which every fleet does by itself
            for config in [whole] if scale == "smoke" else apart(whole):
                known = cells.setdefault(identity_of(config), Cell(cell.label, config))
                if known.label != cell.label:
                    raise ValueError(
                        f"{known.label} and {cell.label} are the same runs at scale {scale}; name them once"
                    )
        return list(cells.values())

    def schedule(self, scale: Scale, seeds: Sequence[int] | None, out: Path) -> Schedule:
        root = out / scale / ("fleets" if self.together else "timed")
        return schedule([cell.config for cell in self.runs(scale, seeds)], root, self.together)

    def found(self, scale: Scale, seeds: Sequence[int] | None, out: Path) -> Found:
        """What there is of the runs, finished or not; those that were not begun are named in the notes."""
        cells, places = self.runs(scale, seeds), self.schedule(scale, seeds, out).runs
        wanted = {same_run(one): (cell, one) for cell in cells for one in singles(cell.config)}
        begun = [key for key in wanted if (places[key] / run_directory.METRICS).is_file()]
        if not begun:
            raise ValueError(
                f"none of the {len(wanted)} runs has been begun; first: sphere experiment run NAME --scale {scale}"
            )
        labels = {_untasked(run_directory.plain(dataclasses.asdict(cell.config))): cell.label for cell in cells}
        loaded = load([places[key] for key in begun])
        named = tuple(
            dataclasses.replace(run, method=labels[_untasked(_today(run_directory.read_config(run.path)))])
            for run in loaded.runs
        )
        waiting = [f"{wanted[key][0].label}, {_place(wanted[key][1])}" for key in wanted if key not in begun]
        notes = [f"not begun yet: {'; '.join(waiting)}"] if waiting else []
        return Found(scale, Loaded(named, (*notes, *loaded.notes)))


def _today(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run's own settings, with the defaults of what came with a later version: so its fleet was found, too."""
    return run_directory.plain(dataclasses.asdict(rebuild(FleetConfig, config)))


def _untasked(config: Mapping[str, Any]) -> str:
    """The identity of a run whichever task it is on: under RL a report joins tasks that were trained apart."""
    return identity({**config, "tasks": []} if config["protocol"] == "rl" else config)


def _place(config: FleetConfig) -> str:
    """Of a run that is missing."""
    task = f"{task_name(config.tasks[0])}, " if config.protocol == "rl" and len(config.tasks) == 1 else ""
    return f"{task}seed {config.seeds[0]}"
