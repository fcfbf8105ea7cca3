"""A pool of environments under a fleet's policies: one rollout, or one episode each.

Workers act by themselves where they can. Where an action depends on more than its own state (expert choice), the
learner acts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sphere.algos.learner import DataSpec
from sphere.algos.rows import act
from sphere.algos.source import Outcomes
from sphere.algos.state import ACT
from sphere.envs import policy_arrays
from sphere.envs.pool import Pool
from sphere.envs.rollout_driver import Finished, RolloutDriver
from sphere.envs.running_statistics import Statistics, seen

COLUMNS = ("return", "length", "success_once", "success_at_end")
"""Of an episode's outcome."""
EVALUATION_SEED = 2**32  # added to a run's seed: evaluation never meets a training episode


def unit_noise(seeds: np.ndarray, iteration: int, shape: tuple[int, ...]) -> np.ndarray:
    """The unit normal numbers [run, *shape] of a whole rollout. By numpy: a GPU may be busy with an update."""
    streams = [np.random.default_rng([int(seed), ACT, iteration]) for seed in seeds]
    return np.stack([stream.standard_normal(shape, np.float32) for stream in streams])


def uniform_actions(seeds: np.ndarray, iteration: int, shape: tuple[int, ...], spec: DataSpec) -> np.ndarray:
    """Actions [run, *shape] drawn evenly from the box."""
    low, high = (np.asarray(bound, np.float32) for bound in (spec.low, spec.high))
    streams = [np.random.default_rng([int(seed), ACT, iteration]) for seed in seeds]
    return np.stack([low + (high - low) * stream.random(shape, np.float32) for stream in streams])


@dataclass
class Collector:
    pool: Pool
    rollouts: RolloutDriver | None = None

    def follow(self, policy: Any, statistics: Statistics | None) -> RolloutDriver | None:
        """The pool under these policies; None where workers cannot act by themselves."""
        spec = policy_arrays.spec(policy)
        if spec is None:
            return None
        arrays = policy_arrays.arrays(policy)
        if statistics is not None:
            arrays |= {"mean": statistics.mean, "var": statistics.var}
        if self.rollouts is None:
            self.rollouts = RolloutDriver(self.pool, spec, arrays)
        else:
            self.rollouts.load(arrays)
        return self.rollouts

    def evaluate(self, policy: Any, task: str, seeds: list[int], statistics: Statistics | None) -> Outcomes:
        """One deterministic episode in each environment (run-major), the same ones at every evaluation."""
        pool = self.pool
        if pool.task != task:
            pool.switch(task)
        raw, _ = pool.reset(seed=[seed + EVALUATION_SEED for seed in seeds])
        rollouts = self.follow(policy, statistics)
        ended = episodes_by_learner(policy, pool, raw, statistics) if rollouts is None else None
        if rollouts is not None:
            ended = iter(rollouts.run(pool.horizon, once=True)[1])
        left = np.ones(pool.num_envs, bool)
        first: list[Finished] = []
        for rows, episode in ended or ():
            rows = rows[left[rows]]
            left[rows] = False
            first.append(Finished(rows, episode))
        found = outcomes(first, pool.num_envs // len(seeds))
        order = np.lexsort((found.episode, found.run))
        columns = {name: column[order] for name, column in found.columns.items()}
        return Outcomes(found.run[order], found.episode[order], columns)


def outcomes(finished: list[Finished], envs: int) -> Outcomes:
    rows = np.concatenate([rows for rows, _ in finished]) if finished else np.zeros(0, int)

    def column(name: str) -> np.ndarray:
        return np.concatenate([episode[name][rows] for rows, episode in finished]) if finished else np.zeros(0)

    names = ("r", "l", "success_once", "success_at_end")  # gymnasium's, and the pool's
    return Outcomes(rows // envs, rows % envs, {name: column(own) for name, own in zip(COLUMNS, names, strict=True)})


def without_observations(rows: np.dtype) -> np.dtype:
    kept = [name for name in rows.names or () if name not in ("obs", "final_obs")]
    return np.dtype([(name, rows[name]) for name in kept])


def steps_by_learner(
    policy: Any,
    pool: Pool,
    noise: np.ndarray,
    now: Callable[[], np.ndarray],
    after: Callable[[np.ndarray, np.ndarray, np.ndarray], None],
) -> tuple[np.ndarray, list[Finished]]:
    """A rollout with every action chosen here; without a policy the noise is the action. `now` gives the observations
    that networks see. `after` gets every step, its observations and final observations, which are not kept here."""
    log = np.zeros(noise.shape[:2], without_observations(pool.row_type))
    finished = []
    for rows, extra in zip(log, noise, strict=True):
        mean = 0 if policy is None else np.asarray(act(policy, now())).reshape(extra.shape)
        rows["action"] = mean + extra
        raw, reward, terminated, truncated, infos = pool.step(rows["action"])
        rows["reward"], rows["terminated"], rows["truncated"] = reward, terminated, truncated
        after(rows, raw, infos["final_obs"])
        if "episode" in infos:
            finished.append(Finished(np.flatnonzero(infos["_episode"]), infos["episode"]))
    return log, finished


def episodes_by_learner(policy: Any, pool: Pool, raw: np.ndarray, statistics: Statistics | None) -> Iterator[Finished]:
    """As many steps as an episode can have, with every action chosen here."""
    for _ in range(pool.horizon):
        obs = seen(raw.reshape(pool.num_runs, -1, *raw.shape[1:]), statistics)
        action = np.asarray(act(policy, obs))
        raw, _, _, _, infos = pool.step(action.reshape(pool.num_envs, -1))
        if "episode" in infos:
            yield Finished(np.flatnonzero(infos["_episode"]), infos["episode"])
