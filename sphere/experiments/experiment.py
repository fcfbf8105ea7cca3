"""An experiment as a value, the runs that were found for it, and what is made of them."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from sphere.errors import unknown
from sphere.experiments.arms import Arm
from sphere.report.comparison import Comparison, comparisons
from sphere.report.run import Loaded, Run
from sphere.report.scores import Scores, own_scores
from sphere.report.tables import Table

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)

SEEDS: dict[Scale, int] = {"smoke": 2, "small": 3, "paper": 5}
"""Seeds of an arm; experiments may ask for more at the paper's scale."""


@dataclass(frozen=True)
class Results:
    tables: Sequence[Table] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    """By name; drawn with matplotlib."""


@dataclass(frozen=True)
class Found:
    """The runs of an experiment as a report reads them; a run's method is the label of its arm."""

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
    arms: tuple[Arm, ...]
    results: Callable[[Found], Results]
    seeds: int = SEEDS["paper"]
    """At the paper's scale."""
    together: bool = True
    """False: no two arms share a fleet, because their times are compared."""

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(arm.label for arm in self.arms))

    def only(self, labels: Sequence[str]) -> "Experiment":
        """With the arms of these labels alone."""
        for label in labels:
            if label not in self.labels:
                raise unknown("method of this experiment", label, self.labels)
        return dataclasses.replace(self, arms=tuple(arm for arm in self.arms if arm.label in labels))
