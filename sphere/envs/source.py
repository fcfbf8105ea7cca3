"""Collecting experience and running evaluation episodes: the meeting of simulators (numpy) and policies (jax)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from sphere.algos import ppo
from sphere.envs import policy_arrays
from sphere.envs.policy import normalised
from sphere.envs.pool import Pool
from sphere.envs.rollouts import Finished, Rollouts


@dataclass
class Statistics:
    """Running mean and variance of each run's observations, as VecNormalize keeps them: float64, merged batch by batch."""

    mean: np.ndarray  # [run, obs]
    var: np.ndarray
    count: np.ndarray  # [run]

    @staticmethod
    def fresh(runs: int, obs_size: int) -> "Statistics":
        return Statistics(np.zeros((runs, obs_size)), np.ones((runs, obs_size)), np.full(runs, 1e-4))

    def update(self, obs: np.ndarray) -> None:
        """Merge a batch [run, env, obs] (Chan et al.: the parallel algorithm for moments)."""
        batch = obs.astype(np.float64)
        mean, var, count = batch.mean(axis=1), batch.var(axis=1), batch.shape[1]
        total = (self.count + count)[:, None]
        delta = mean - self.mean
        weight = self.count[:, None]
        squares = self.var * weight + var * count + delta**2 * weight * count / total
        self.mean, self.var, self.count = self.mean + delta * count / total, squares / total, self.count + count

    def normalise(self, obs: np.ndarray) -> np.ndarray:
        return normalised(obs, self.mean[:, None], self.var[:, None])

    def state(self) -> dict[str, np.ndarray]:
        return {"mean": self.mean, "var": self.var, "count": self.count}


class Episodes(NamedTuple):
    """Finished episodes of a rollout or an evaluation, one entry each."""

    run: np.ndarray
    env: np.ndarray
    returns: np.ndarray
    length: np.ndarray
    success_once: np.ndarray
    success_at_end: np.ndarray


def unit_noise(seeds: np.ndarray, iteration: int, shape: tuple[int, ...]) -> np.ndarray:
    """The unit normal numbers [run, *shape] of a whole rollout. By numpy: a GPU may be busy with an update."""
    streams = [np.random.default_rng([int(seed), ppo.ACT, iteration]) for seed in seeds]
    return np.stack([stream.standard_normal(shape, np.float32) for stream in streams])


@dataclass
class Player:
    """A pool whose workers play by a fleet's policies. An action that depends on more than its own state is the learner's."""

    pool: Pool
    rollouts: Rollouts | None = None

    def follow(self, actor: ppo.GaussianActor, statistics: Statistics | None) -> Rollouts | None:
        """The pool under these policies; None where workers cannot act by themselves."""
        policy = policy_arrays.spec(actor)
        if policy is None:
            return None
        arrays = policy_arrays.arrays(actor)
        if statistics is not None:
            arrays |= {"mean": statistics.mean, "var": statistics.var}
        if self.rollouts is None:
            self.rollouts = Rollouts(self.pool, policy, arrays)
        else:
            self.rollouts.load(arrays)
        return self.rollouts


@dataclass
class Collector:
    """The training environments of a fleet, with what is carried from step to step."""

    pool: Pool
    seeds: np.ndarray
    statistics: Statistics | None
    obs: np.ndarray = field(init=False)  # [run, env, obs], normalised if statistics are kept

    def __post_init__(self) -> None:
        self.runs = self.seeds.shape[0]
        self.envs = self.pool.num_envs // self.runs
        self.player = Player(self.pool)

    def _by_run(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(self.runs, self.envs, *rows.shape[1:])

    def see(self, raw: np.ndarray) -> None:
        """New current observations: they enter the statistics first, as in VecNormalize."""
        obs = self._by_run(raw)
        if self.statistics is not None:
            self.statistics.update(obs)
        self.obs = self._scaled(obs)

    def _scaled(self, obs: np.ndarray) -> np.ndarray:
        return obs.astype(np.float32) if self.statistics is None else self.statistics.normalise(obs)

    def collect(self, actor: ppo.GaussianActor, steps: int, iteration: int) -> tuple[ppo.Rollout, Episodes]:
        """`steps` steps of every environment; `iteration` counts the run's rollouts, for its random keys."""
        act_size = self.pool.single_action_space.shape[0]
        # drawn for all steps at once: what is left for every step is the mean
        noise = unit_noise(self.seeds, iteration, (steps, self.envs, act_size))
        noise *= np.exp(np.asarray(actor.log_std))[:, None, None]
        noise = np.moveaxis(noise, 1, 0).reshape(steps, self.pool.num_envs, act_size)
        sights = [(self.obs, self.obs)]  # what is seen before each step, and as the successor of the step before

        def after(rows: np.ndarray) -> None:
            self.see(rows["obs"])
            sights.append((self.obs, self._scaled(self._by_run(rows["final_obs"]))))

        rollouts = self.player.follow(actor, self.statistics)
        if rollouts is None:
            log, finished = self._by_learner(actor, noise, after)
        elif self.statistics is None:
            log, finished = rollouts.run(steps, noise)
        else:
            log, finished = rollouts.run(steps, noise, after=partial(self._publish, rollouts, after))
        if len(sights) > 1:
            obs, next_obs = (np.stack(side, axis=1) for side in zip(*sights, strict=True))
            obs, next_obs = obs[:, :-1], next_obs[:, 1:]
        else:
            next_obs, seen = self._over_time(log["final_obs"]), self._over_time(log["obs"])
            obs = np.concatenate([self.obs[:, None], seen[:, :-1]], axis=1)
            self.obs = seen[:, -1].copy()
        action, reward, terminated, truncated = (
            self._over_time(log[name]) for name in ("action", "reward", "terminated", "truncated")
        )
        rollout = ppo.Rollout(
            obs,
            action,
            ppo.log_prob_fleet(actor, obs, action),
            reward.astype(np.float32),
            next_obs,
            terminated,
            terminated | truncated,
        )
        return rollout, _episodes(finished, self.envs)

    def _over_time(self, column: np.ndarray) -> np.ndarray:
        """[time, run x env, ...] as [run, time, env, ...], a copy: the next rollout is written over its source."""
        apart = column.reshape(len(column), self.runs, self.envs, *column.shape[2:])
        return np.ascontiguousarray(np.moveaxis(apart, 1, 0))

    def _publish(self, rollouts: Rollouts, after: Callable[[np.ndarray], None], rows: np.ndarray) -> None:
        after(rows)
        if self.statistics is not None:
            rollouts.load({"mean": self.statistics.mean, "var": self.statistics.var})

    def _by_learner(
        self, actor: ppo.GaussianActor, noise: np.ndarray, after: Callable[[np.ndarray], None]
    ) -> tuple[np.ndarray, list[Finished]]:
        """The same with every action chosen here."""
        log = np.zeros(noise.shape[:2], self.pool.row_type)
        finished = []
        for rows, extra in zip(log, noise, strict=True):
            rows["action"] = np.asarray(ppo.mean_fleet(actor, self.obs)).reshape(extra.shape) + extra
            raw, reward, terminated, truncated, infos = self.pool.step(rows["action"])
            rows["obs"], rows["final_obs"], rows["reward"] = raw, infos["final_obs"], reward
            rows["terminated"], rows["truncated"] = terminated, truncated
            after(rows)
            if "episode" in infos:
                finished.append(Finished(np.flatnonzero(infos["_episode"]), infos["episode"]))
        return log, finished


def _episodes(finished: list[Finished], envs: int) -> Episodes:
    rows = np.concatenate([rows for rows, _ in finished]) if finished else np.zeros(0, int)

    def column(name: str) -> np.ndarray:
        return np.concatenate([episode[name][rows] for rows, episode in finished]) if finished else np.zeros(0)

    return Episodes(
        rows // envs, rows % envs, column("r"), column("l"), column("success_once"), column("success_at_end")
    )


EVALUATION_SEED = 2**32  # added to a run's seed: evaluation never meets a training episode


def evaluate(
    actor: ppo.GaussianActor, player: Player, task: str, seeds: list[int], statistics: Statistics | None
) -> Episodes:
    """One deterministic episode in each environment of a pool (run-major), the same ones at every evaluation."""
    pool = player.pool
    if pool.task != task:
        pool.switch(task)
    raw, _ = pool.reset(seed=[seed + EVALUATION_SEED for seed in seeds])
    rollouts = player.follow(actor, statistics)
    ended = _by_learner(actor, pool, raw, statistics) if rollouts is None else rollouts.run(pool.horizon, once=True)[1]
    left = np.ones(pool.num_envs, bool)
    first: list[Finished] = []
    for rows, episode in ended:
        rows = rows[left[rows]]
        left[rows] = False
        first.append(Finished(rows, episode))
    episodes = _episodes(first, pool.num_envs // len(seeds))
    order = np.lexsort((episodes.env, episodes.run))
    return Episodes(*(column[order] for column in episodes))


def _by_learner(
    actor: ppo.GaussianActor, pool: Pool, raw: np.ndarray, statistics: Statistics | None
) -> Iterator[Finished]:
    """As many steps as an episode can have, with every action chosen here."""
    for _ in range(pool.horizon):
        obs = raw.reshape(pool.num_runs, -1, raw.shape[-1])
        obs = obs.astype(np.float32) if statistics is None else statistics.normalise(obs)
        action = np.asarray(ppo.mean_fleet(actor, obs))
        raw, _, _, _, infos = pool.step(action.reshape(pool.num_envs, -1))
        if "episode" in infos:
            yield Finished(np.flatnonzero(infos["_episode"]), infos["episode"])


def random_states(pool: Pool, count: int, seed: int = 0) -> np.ndarray:
    """States that a uniformly random policy meets: a held-out batch for suites that ship none."""
    rng = np.random.default_rng(seed)
    raw, _ = pool.reset(seed=[EVALUATION_SEED - 1] * pool.num_runs)
    low, high = pool.single_action_space.low, pool.single_action_space.high
    seen = [raw]
    while sum(map(len, seen)) < 8 * count:
        raw, *_ = pool.step(rng.uniform(low, high, size=(pool.num_envs, len(low))).astype(np.float32))
        seen.append(raw)
    states = np.concatenate(seen)
    return states[rng.permutation(len(states))[:count]].astype(np.float32)
