"""Environments in worker processes, as the source of a learner's data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from sphere import envs
from sphere.algos.learner import Data, DataSpec
from sphere.algos.source import Outcomes, Source, States, Wanted
from sphere.envs import heldout
from sphere.envs.handles import cores
from sphere.envs.player import COLUMNS, Player, outcomes, steps_by_learner, uniform_actions, unit_noise
from sphere.envs.pool import MANY, Pool
from sphere.envs.rollouts import Rollouts
from sphere.envs.statistics import Statistics, seen, standardised
from sphere.envs.turns import Turns
from sphere.errors import in_range, unknown
from sphere.nets import Explorer

TOGETHER = 2
"""Runs of a group where groups overlap. The fewer, the shorter their cores are idle while they learn; but an update of
five runs takes only half as long again as that of one, so the GPU wants more than one."""


def task_name(task: str) -> str:
    return task.split("/", 1)[1]


@dataclass(frozen=True)
class Environments:
    """Environments in worker processes. Settings of a suite: None is its default; one that it lacks is refused."""

    kind: ClassVar[str] = "environments"

    goals: Literal["random", "frozen"] | None = None
    """MetaWorld: a new seeded goal every episode, or always the same one."""
    horizon: int | None = None
    """Steps of an episode: MetaWorld 500 unless said otherwise (200 in Continual World), HumanoidBench 1000."""
    one_hot: bool | None = None
    """MetaWorld: append the task's number as ten entries to the observation."""
    normalise_observations: bool = False
    """Running mean and variance of the observations, clipped at 10 (VecNormalize); rewards are never normalised."""
    workers: int | None = None
    """Simulator processes of a group of runs; default: all cores, divided among groups that overlap; below eight cores
    the learner is one of them. Results do not depend on it."""
    overlap: bool | None = None
    """Let some runs collect while others learn; default: where a GPU learns and there are eight cores or more. Results
    do not depend on it but for rounding."""

    unimportant: ClassVar[tuple[str, ...]] = ("workers", "overlap")
    """Settings on which results do not depend."""

    def __post_init__(self) -> None:
        in_range(self, {"workers": (0, None), "horizon": (1, None)})

    def of_suite(self) -> dict[str, Any]:
        """What is given of a suite's own settings."""
        given = {name: getattr(self, name) for name in ("goals", "horizon", "one_hot")}
        return {name: value for name, value in given.items() if value is not None}

    def check(self, task: str) -> None:
        suite = task.split("/")[0]
        known = [f"{suite}/{one}" for one in envs.tasks(suite)]
        if task not in known:
            raise unknown("task", task, known)

    def columns(self, suite: str) -> tuple[str, ...]:
        return COLUMNS

    def score(self, suite: str) -> str:
        return getattr(envs.suite(suite), "score", "success_at_end")

    def seen(self, saved: dict[str, Any], obs: np.ndarray) -> np.ndarray:
        """Observations [run, n, obs] as networks read them, by what a source had saved."""
        return seen(obs, Statistics(**saved["statistics"]) if saved.get("statistics") else None)

    def evaluate(self, policy: Any, task: str, seeds: list[int], episodes: int, saved: dict[str, Any]) -> Outcomes:
        """Deterministic episodes of saved policies (with a run axis), the same as in training."""
        statistics = Statistics(**saved["statistics"]) if saved.get("statistics") else None
        with envs.make(task, episodes, seeds, self.workers, **self.of_suite()) as pool:
            return Player(pool).evaluate(policy, task_name(task), seeds, statistics)

    def divide(self, runs: int, sharing: int) -> list[int]:
        wanted = self.overlap
        if wanted is None:
            wanted = jax.default_backend() != "cpu" and cores() >= MANY
        if not wanted or runs == 1:
            return [runs]
        half = (runs + 1) // 2
        # Where all environments meet after every step, more processes than cores make them wait for each other.
        size = half if self.normalise_observations else min(TOGETHER, half)
        return [min(size, runs - first) for first in range(0, runs, size)]

    def workers_of_a_group(self, groups: int, sharing: int) -> int | None:
        if self.workers is not None or (groups == 1 and sharing == 1):
            return self.workers
        mine = max(1, cores() // sharing)
        if groups == 1:
            return mine if mine > 1 else 0  # on a single core a process beside the learner gains nothing
        if groups == 2:
            return max(1, mine // 2)
        # Some group is always learning, so a quarter more than there are cores; none, if possible, with environments of
        # two runs: two policies take half as long again as one.
        share = -(-5 * mine // (4 * groups))
        return max(1, share - share % TOGETHER)

    def open(self, wanted: Wanted, seeds: Sequence[Sequence[int]]) -> list[Source]:
        envs.check_sizes(wanted.tasks, self.of_suite())
        workers = self.workers_of_a_group(len(seeds), wanted.sharing)
        turns = Turns(places(workers))
        opened: list[EnvironmentSource] = []
        try:
            for mine in seeds:
                opened.append(EnvironmentSource(self, wanted, list(mine), workers, turns))
            states = heldout.fixed_states(
                wanted.tasks[0], wanted.heldout, opened[0].spec.observation[0], self.of_suite()
            )
            for source in opened:
                source.heldout = states
        except BaseException:
            for source in opened:
                source.close()
            raise
        return list(opened)


def places(workers: int | None) -> int:
    """Groups that fill the cores."""
    return -(-cores() // workers) if workers else 1


@dataclass
class EnvironmentSource:
    """The environments of a group of runs, with what is carried from step to step."""

    settings: Environments
    wanted: Wanted
    run_seeds: list[int]
    workers: int | None
    turns: Turns
    heldout: np.ndarray | None = None
    evaluation: Player | None = None
    """Its environments for evaluation, once they are needed."""
    done: int = 0
    """Its iterations before the present one: the source that is furthest behind goes first."""
    obs: np.ndarray = field(init=False)  # [run, env, obs], normalised if statistics are kept
    statistics: Statistics | None = field(init=False)
    online: np.ndarray = field(init=False)  # [run, state, obs], of the last rollout

    def __post_init__(self) -> None:
        self.seeds = np.array(self.run_seeds, np.uint32)
        self.runs = len(self.run_seeds)
        self.envs, self.steps = self.wanted.rollout
        self.pool = self._pool(self.envs)
        self.player = Player(self.pool)
        box = self.pool.single_action_space
        (size,) = self.pool.single_observation_space.shape
        self.spec = DataSpec((size,), len(box.low), tuple(box.low.tolist()), tuple(box.high.tolist()))
        self.horizon = self.pool.horizon
        self.statistics = self._no_statistics()
        count = min(self.wanted.heldout, self.envs * self.steps)
        self.online = np.zeros((self.runs, count, size), np.float32)

    def _pool(self, num_envs: int) -> Pool:
        return envs.make(self.wanted.tasks[0], num_envs, self.run_seeds, self.workers, **self.settings.of_suite())

    def _no_statistics(self) -> Statistics | None:
        size = self.spec.observation[0]
        return Statistics.fresh(self.runs, size) if self.settings.normalise_observations else None

    def enter(self, task: str, keep: Any | None) -> None:
        if keep is None:
            raw, _ = self.pool.reset()
        else:
            if not keep.statistics:
                self.statistics = self._no_statistics()
            raw, _ = self.pool.switch(task_name(task))
        self._see(raw)

    def _by_run(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(self.runs, self.envs, *rows.shape[1:])

    def _see(self, raw: np.ndarray) -> None:
        """New current observations: they enter the statistics first, as in VecNormalize."""
        obs = self._by_run(raw)
        if self.statistics is not None:
            self.statistics.update(obs)
        self.obs = seen(obs, self.statistics)

    def collect(self, policy: Any, iteration: int) -> tuple[Data, Outcomes]:
        self.done = iteration
        policy = jax.block_until_ready(policy)  # first: no cores are reserved while a network is still being computed
        with self.turns.taken(iteration):
            data, found = self.sample(policy, self.steps, iteration)
        self.online = self._sample(data["obs"])
        return data, found

    def sample(self, policy: Any, steps: int, iteration: int) -> tuple[dict[str, np.ndarray], Outcomes]:
        """`steps` steps of every environment; `iteration` counts the run's rollouts, for its random numbers."""
        # drawn for all steps at once: what is left for every step is the mean
        uniform = isinstance(policy, Explorer) and policy.uniform()
        shape = (steps, self.envs, self.spec.action)
        if uniform:
            noise = uniform_actions(self.seeds, iteration, shape, self.spec)
        else:
            noise = unit_noise(self.seeds, iteration, shape)
            noise *= policy.spread()[:, None, None]
        noise = np.moveaxis(noise, 1, 0).reshape(steps, self.pool.num_envs, self.spec.action)
        sights = [(self.obs, self.obs)]  # what is seen before each step, and as the successor of the step before

        def after(rows: np.ndarray) -> None:
            self._see(rows["obs"])
            sights.append((self.obs, seen(self._by_run(rows["final_obs"]), self.statistics)))

        rollouts = self.player.follow(policy, self.statistics)
        if uniform and rollouts is not None:
            rollouts.load(
                {"centre": np.zeros(1, np.float32), "half": np.zeros(1, np.float32)}
            )  # the noise is the action
        if rollouts is None:
            log, finished = steps_by_learner(None if uniform else policy, self.pool, noise, lambda: self.obs, after)
        elif self.statistics is None:
            log, finished = rollouts.run(steps, noise)
        else:
            log, finished = rollouts.run(steps, noise, after=partial(self._publish, rollouts, after))
        if len(sights) > 1:
            obs, next_obs = (np.stack(side, axis=1) for side in zip(*sights, strict=True))
            obs, next_obs = obs[:, :-1], next_obs[:, 1:]
        else:
            next_obs, shown = self._over_time(log["final_obs"]), self._over_time(log["obs"])
            obs = np.concatenate([self.obs[:, None], shown[:, :-1]], axis=1)
            self.obs = shown[:, -1].copy()
        action, reward, terminated, truncated = (
            self._over_time(log[name]) for name in ("action", "reward", "terminated", "truncated")
        )
        data = {
            "obs": obs,
            "action": action,
            "reward": reward.astype(np.float32),
            "next_obs": next_obs,
            "terminated": terminated,
            "done": terminated | truncated,
        }
        return data, outcomes(finished, self.envs)

    def _over_time(self, column: np.ndarray) -> np.ndarray:
        """[time, run x env, ...] as [run, time, env, ...], a copy: the next rollout is written over its source."""
        apart = column.reshape(len(column), self.runs, self.envs, *column.shape[2:])
        return np.ascontiguousarray(np.moveaxis(apart, 1, 0))

    def _publish(self, rollouts: Rollouts, after: Callable[[np.ndarray], None], rows: np.ndarray) -> None:
        after(rows)
        if self.statistics is not None:
            rollouts.load({"mean": self.statistics.mean, "var": self.statistics.var})

    def _sample(self, obs: np.ndarray) -> np.ndarray:
        """States of the last rollout, evenly spread, for diagnostics on experience as it is met."""
        flat = obs.reshape(obs.shape[0], -1, obs.shape[-1])
        return flat[:, np.linspace(0, flat.shape[1] - 1, self.online.shape[1]).astype(int)]

    def evaluate(self, policy: Any, task: str) -> Outcomes:
        if self.evaluation is None:
            self.evaluation = Player(self._pool(self.wanted.episodes))
        policy = jax.block_until_ready(policy)
        with self.turns.taken(self.done):
            return self.evaluation.evaluate(policy, task_name(task), self.run_seeds, self.statistics)

    def states(self) -> States | None:
        if self.heldout is None:
            return None
        raw = np.broadcast_to(self.heldout, (self.runs, *self.heldout.shape))
        fixed = raw if self.statistics is None else self.statistics.normalise(raw)
        alike = standardised(self.heldout) if self.statistics is None else None
        return States({"heldout": fixed, "online": self.online}, alike)

    def get_state(self) -> dict[str, Any]:
        return {
            "statistics": {} if self.statistics is None else self.statistics.state(),
            "pool": self.pool.get_state(),
            "obs": self.obs,
            "online": self.online,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.pool.set_state(state["pool"])
        self.obs, self.online = state["obs"], state["online"]
        if self.statistics is not None:
            self.statistics = Statistics(**state["statistics"])

    def close(self) -> None:
        self.pool.close()
        if self.evaluation is not None:
            self.evaluation.pool.close()
