"""What is summed up step by step: moments of the observations, and the episodes under way."""

from dataclasses import dataclass

import numpy as np

from sphere.envs.policy import normalised


@dataclass
class Statistics:
    """Running moments of each run's observations, as VecNormalize keeps them: float64, merged batch by batch."""

    mean: np.ndarray  # [run, obs]
    var: np.ndarray
    count: np.ndarray  # [run]

    @staticmethod
    def fresh(runs: int, obs_size: int) -> "Statistics":
        return Statistics(np.zeros((runs, obs_size)), np.ones((runs, obs_size)), np.full(runs, 1e-4))

    def update(self, obs: np.ndarray) -> None:
        """Merge a batch [run, env, obs]."""
        batch = obs.astype(np.float64)
        self.merge(batch.mean(axis=1), batch.var(axis=1), batch.shape[1])

    def merge(self, mean: np.ndarray, var: np.ndarray, count: int) -> None:
        """Merge the moments [run, obs] of so many observations of each run (Chan et al.: the parallel algorithm)."""
        total = (self.count + count)[:, None]
        delta = mean - self.mean
        weight = self.count[:, None]
        squares = self.var * weight + var * count + delta**2 * weight * count / total
        self.mean, self.var, self.count = self.mean + delta * count / total, squares / total, self.count + count

    def normalise(self, obs: np.ndarray) -> np.ndarray:
        return normalised(obs, self.mean[:, None], self.var[:, None])

    def state(self) -> dict[str, np.ndarray]:
        return {"mean": self.mean, "var": self.var, "count": self.count}


def seen(obs: np.ndarray, statistics: Statistics | None) -> np.ndarray:
    """Observations [run, n, ...] as networks read them: images as bytes."""
    if obs.dtype == np.uint8:
        return obs
    return obs.astype(np.float32) if statistics is None else statistics.normalise(obs)


def standardised(states: np.ndarray) -> np.ndarray:
    """Every column with mean 0 and deviation 1; 0 where it never changes."""
    wide = states.astype(np.float64)
    apart, spread = wide - wide.mean(axis=0), wide.std(axis=0)
    return np.divide(apart, spread, out=np.zeros_like(wide), where=spread > 0).astype(np.float32)


class EpisodeSums:
    """Return, length and success so far of the episode that each environment is in."""

    def __init__(self, envs: int) -> None:
        self.returns, self.length, self.success_once = np.zeros(envs), np.zeros(envs, np.int64), np.zeros(envs, bool)

    def restart(self, where: np.ndarray | slice) -> None:
        self.returns[where], self.length[where], self.success_once[where] = 0, 0, False

    def restore(self, returns: np.ndarray, length: np.ndarray, success_once: np.ndarray) -> None:
        self.returns, self.length, self.success_once = returns.copy(), length.copy(), success_once.copy()

    def add(self, reward: np.ndarray, success: np.ndarray) -> None:
        """Add steps [time, env]; only the last of them may end an episode."""
        for row in reward:  # one after another: the sum of several at once is rounded differently
            self.returns += row
        self.length += len(reward)
        self.success_once |= success.any(axis=0)

    def end(self, done: np.ndarray, success: np.ndarray) -> dict[str, np.ndarray]:
        """The numbers of the episodes that the last step ended; the next ones start from zero."""
        episode = {
            "r": np.where(done, self.returns, 0.0),
            "l": np.where(done, self.length, 0),
            "success_once": done & self.success_once,
            "success_at_end": done & success,
        }
        self.restart(done)
        return episode
