"""What a source is: it gives data to a learner and says how well a policy does.

Environments are one (`sphere.envs.environments`); data sets and streams of labelled batches are others. A source
serves the runs of one group, all at once, and keeps what belongs to its side: simulator states, running statistics of
the observations, counters.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sphere.algos.learner import Data, DataSpec


class Outcomes(NamedTuple):
    """How well policies did: an entry per finished episode, or per test set."""

    run: np.ndarray
    """Which run of the group, or of the fleet."""
    episode: np.ndarray
    """Which of the run's environments, or test sets."""
    columns: Mapping[str, np.ndarray]
    """By name: return, length, success_at_end, accuracy, ..."""

    def means(self, runs: int) -> list[dict[str, float]]:
        """Of each run; NaN where it has none."""
        mine = [self.run == run for run in range(runs)]
        return [
            {
                name: float(np.mean(column[rows])) if rows.any() else float("nan")
                for name, column in self.columns.items()
            }
            for rows in mine
        ]

    @staticmethod
    def joined(parts: Sequence["Outcomes"], runs: Sequence[int]) -> "Outcomes":
        """Those of several groups, which have so many runs each."""
        first = np.cumsum([0, *runs[:-1]])
        return Outcomes(
            np.concatenate([part.run + at for part, at in zip(parts, first, strict=True)]),
            np.concatenate([part.episode for part in parts]),
            {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        )


class States(NamedTuple):
    """Inputs on which networks are diagnosed."""

    places: Mapping[str, np.ndarray]
    """By origin (`heldout`: the same in all runs; `online`: of the last iteration), [run, input, ...]."""
    standardised: np.ndarray | None = None
    """The held-out inputs [input, ...], every column with mean 0 and deviation 1; None if they are normalised."""


@runtime_checkable
class Source(Protocol):
    """The data of some runs."""

    spec: DataSpec
    horizon: int
    """Steps of an evaluation episode at most."""

    def enter(self, task: str, keep: Any | None) -> None:
        """Begin a task. `keep`: what is kept of the task before (`statistics`); None: there was none."""

    def collect(self, policy: Any, iteration: int) -> tuple[Data, Outcomes]:
        """One iteration's data, with a leading run axis, and what was finished on the way."""

    def sample(self, policy: Any, steps: int, iteration: int) -> Any:
        """A part of an iteration's data, so many steps of it: for an estimate of its speed."""

    def evaluate(self, policy: Any, task: str) -> Outcomes:
        """How well the policies do on a task, the same way every time."""

    def states(self) -> States | None:
        """None: nothing is diagnosed."""

    def get_state(self) -> dict[str, Any]:
        """All that the future depends on, every array with rows by run or by environment."""

    def set_state(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class Wanted(NamedTuple):
    """What a fleet wants of its source."""

    tasks: tuple[str, ...]
    rollout: tuple[int, int]
    """Environments of a run, and steps of each, that one iteration takes."""
    episodes: int
    """Of an evaluation."""
    heldout: int
    """Held-out inputs; 0: none."""
    sharing: int = 1
    """Fleets that use this machine at the same time."""


@runtime_checkable
class SourceSettings(Protocol):
    """Frozen settings that open sources."""

    kind: ClassVar[str]

    def check(self, task: str) -> None:
        """Refuse a task that it does not have, in a sentence."""

    def divide(self, runs: int, sharing: int) -> list[int]:
        """How many runs each group has; groups collect and learn independently of each other."""

    def open(self, wanted: Wanted, seeds: Sequence[Sequence[int]]) -> list[Source]:
        """A source for every group, by the seeds of its runs."""

    def seen(self, saved: dict[str, Any], obs: np.ndarray) -> np.ndarray:
        """Observations [run, n, ...] as networks read them; `saved`: the state of a source."""

    def evaluate(self, policy: Any, task: str, seeds: list[int], episodes: int, saved: dict[str, Any]) -> Outcomes:
        """How well saved policies do, without a source of their own."""

    def columns(self, suite: str) -> tuple[str, ...]:
        """Of its outcomes."""

    def score(self, suite: str) -> str:
        """The column that tables show."""
