"""Collecting experience and running evaluation episodes: the meeting of simulators (numpy) and policies (jax)."""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np

from sphere.algos import ppo
from sphere.envs.pool import Pool


@dataclass
class Statistics:
    """Running mean and variance of each run's observations, as VecNormalize keeps them: float64, merged batch by batch."""

    mean: np.ndarray  # [run, obs]
    var: np.ndarray
    count: np.ndarray  # [run]
    clip: float = 10.0
    epsilon: float = 1e-8

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
        scaled = (obs - self.mean[:, None]) / np.sqrt(self.var[:, None] + self.epsilon)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)

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


@dataclass
class Collector:
    """The training environments of a fleet, with what is carried from step to step."""

    pool: Pool
    seeds: jax.Array
    statistics: Statistics | None
    obs: np.ndarray = field(init=False)  # [run, env, obs], normalised if statistics are kept

    def __post_init__(self) -> None:
        self.runs = self.seeds.shape[0]
        self.envs = self.pool.num_envs // self.runs

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
        shape = (self.runs, steps, self.envs)
        act_size = self.pool.single_action_space.shape[0]
        obs, next_obs = (np.empty((*shape, self.obs.shape[-1]), np.float32) for _ in range(2))
        action = np.empty((*shape, act_size), np.float32)
        reward = np.empty(shape, np.float32)
        terminated, done = (np.empty(shape, bool) for _ in range(2))
        finished: list[tuple] = []
        # drawn for all steps at once and added here: what is left for every step is the mean
        noise = ppo.noise_fleet(self.seeds, np.int32(iteration), (steps, self.envs, act_size))
        noise = np.asarray(noise) * np.exp(np.asarray(actor.log_std))[:, None, None]
        for t in range(steps):
            obs[:, t] = self.obs
            chosen = np.asarray(ppo.mean_fleet(actor, self.obs)) + noise[:, t]
            action[:, t] = chosen
            raw, r, term, trunc, infos = self.pool.step(chosen.reshape(self.pool.num_envs, act_size))
            self.see(raw)
            next_obs[:, t] = self._scaled(self._by_run(infos["final_obs"]))
            reward[:, t], terminated[:, t], done[:, t] = map(self._by_run, (r, term, term | trunc))
            if "episode" in infos:
                finished.append((np.flatnonzero(infos["_episode"]), infos["episode"]))
        log_prob = ppo.log_prob_fleet(actor, obs, action)
        return ppo.Rollout(obs, action, log_prob, reward, next_obs, terminated, done), _episodes(finished, self.envs)


def _episodes(finished: list[tuple], envs: int) -> Episodes:
    rows = np.concatenate([rows for rows, _ in finished]) if finished else np.zeros(0, int)

    def column(name: str) -> np.ndarray:
        return np.concatenate([episode[name][rows] for rows, episode in finished]) if finished else np.zeros(0)

    return Episodes(
        rows // envs, rows % envs, column("r"), column("l"), column("success_once"), column("success_at_end")
    )


EVALUATION_SEED = 2**32  # added to a run's seed: evaluation never meets a training episode


def evaluate(
    actor: ppo.GaussianActor, pool: Pool, task: str, seeds: list[int], statistics: Statistics | None
) -> Episodes:
    """One deterministic episode in each environment of `pool` (run-major), the same ones at every evaluation."""
    runs = len(seeds)
    envs = pool.num_envs // runs
    if pool.task != task:
        pool.switch(task)
    raw, _ = pool.reset(seed=[seed + EVALUATION_SEED for seed in seeds])
    left = np.ones(pool.num_envs, bool)
    finished: list[tuple] = []
    while left.any():
        obs = raw.reshape(runs, envs, -1)
        obs = obs.astype(np.float32) if statistics is None else statistics.normalise(obs)
        action = np.asarray(ppo.mean_fleet(actor, obs))
        raw, _, _, _, infos = pool.step(action.reshape(pool.num_envs, -1))
        if "episode" in infos:
            rows = np.flatnonzero(infos["_episode"] & left)
            finished.append((rows, infos["episode"]))
            left[rows] = False
    episodes = _episodes(finished, envs)
    order = np.lexsort((episodes.env, episodes.run))
    return Episodes(*(column[order] for column in episodes))


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
