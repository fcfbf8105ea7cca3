"""A data set as the source of a learner's data; environments only say how well its policy does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from sphere import envs
from sphere.algos import replay
from sphere.algos.learner import Data, DataSpec
from sphere.algos.source import Outcomes, Source, States, Wanted
from sphere.data.transitions import TransitionTable, read
from sphere.envs.collector import Collector, outcomes
from sphere.envs.environments import Environments, task_name
from sphere.envs.policy import EPSILON, normalised
from sphere.envs.running_statistics import Statistics
from sphere.errors import UserError

FLOOR = 1e-3
"""Added to the deviation of every column of the observations, as in the authors' code."""


@dataclass(frozen=True)
class Offline(Environments):
    """Recorded transitions, the same for all tasks and runs, with observations at mean 0 and deviation 1 over the
    set."""

    kind: ClassVar[str] = "offline"

    dataset: str = ""
    """A data set in Minari's format: a name that Minari knows, or the path of a directory."""

    def divide(self, runs: int, sharing: int) -> list[int]:
        return [runs]

    def open(self, wanted: Wanted, seeds: Sequence[Sequence[int]]) -> list[Source]:
        (mine,) = seeds
        recorded = read(self.dataset)  # before any simulator is started
        envs.check_sizes(wanted.tasks, self.of_suite())
        return [OfflineSource(self, wanted, list(mine), recorded)]


def statistics_of(recorded: TransitionTable, runs: int) -> Statistics:
    """By which every run normalises: (x - mean) / (deviation + 1e-3)."""
    wide = recorded.obs.astype(np.float64)
    variance = np.square(wide.std(axis=0) + FLOOR) - EPSILON  # which `normalised` adds again
    return Statistics(
        np.tile(wide.mean(axis=0), (runs, 1)), np.tile(variance, (runs, 1)), np.full(runs, float(len(wide)))
    )


class OfflineSource:
    """A data set for a group of runs."""

    def __init__(self, settings: Offline, wanted: Wanted, seeds: list[int], recorded: TransitionTable):
        self.settings, self.wanted, self.seeds, self.runs = settings, wanted, seeds, len(seeds)
        self.collector = Collector(
            envs.make(wanted.tasks[0], wanted.episodes, seeds, settings.workers, **settings.of_suite())
        )
        try:
            pool = self.collector.pool
            box = pool.single_action_space
            (size,) = pool.single_observation_space.shape
            self.spec = DataSpec((size,), len(box.low), tuple(box.low.tolist()), tuple(box.high.tolist()))
            self.horizon = pool.horizon
            recorded.check(settings.dataset, self.spec)
        except BaseException:
            self.close()
            raise
        self.statistics = statistics_of(recorded, self.runs)
        self.count = len(recorded.reward)
        self.table = self._table(recorded)
        self.held = self.table.nbytes

    def _table(self, recorded: TransitionTable) -> jax.Array:
        """All transitions as rows of a memory, on the device, once for all runs: they normalise alike."""
        low, high = np.array(self.spec.low, np.float32), np.array(self.spec.high, np.float32)
        mean, var = self.statistics.mean[0], self.statistics.var[0]
        obs, following = (normalised(x, mean, var) for x in (recorded.obs, recorded.next_obs))
        action = np.clip((recorded.action - (high + low) / 2) / ((high - low) / 2), -1, 1)
        columns = (obs, action, recorded.reward, following, recorded.terminated)
        return replay.as_rows([column[:, None] for column in columns])[None]

    def enter(self, task: str, keep: Any | None) -> None:
        """The data are those of all tasks; only evaluation changes."""

    def collect(self, policy: Any, iteration: int) -> tuple[Data, Outcomes]:
        return replay.data(self.table, np.zeros(self.runs), self.count), outcomes([], 1)

    def sample(self, policy: Any, steps: int, iteration: int) -> Any:
        return self.collect(policy, iteration)

    def evaluate(self, policy: Any, task: str) -> Outcomes:
        return self.collector.evaluate(jax.block_until_ready(policy), task_name(task), self.seeds, self.statistics)

    def states(self) -> States | None:
        """Of the data set, evenly spread."""
        if not self.wanted.heldout:
            return None
        rows = np.linspace(0, self.count - 1, min(self.wanted.heldout, self.count)).astype(int)
        return States(
            {"heldout": np.tile(np.asarray(self.table[0, rows, : self.spec.observation[0]]), (self.runs, 1, 1))}
        )

    def get_state(self) -> dict[str, Any]:
        return {"statistics": self.statistics.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """The statistics of then are those of the data now, or it is not the set that training began with."""
        before = Statistics(**state["statistics"])
        same = zip(
            (before.mean, before.var, before.count),
            (self.statistics.mean, self.statistics.var, self.statistics.count),
            strict=True,
        )
        if not all(one.shape == two.shape and np.allclose(one, two, rtol=1e-9, atol=1e-12) for one, two in same):
            raise UserError(
                f"the data set {self.settings.dataset} is not the one that training began with: it has {self.count:,} "
                f"transitions, then there were {before.count[0]:,.0f}, or other observations; bring that one back"
            )
        self.statistics = before

    def close(self) -> None:
        self.collector.pool.close()
