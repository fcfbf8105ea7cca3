"""Pools for gymnasium's wrappers, and names: `gymnasium.make_vec("sphere/metaworld-hammer", num_envs=8)`."""

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper

import sphere.envs
from sphere import registry
from sphere.envs.pool import Pool

if TYPE_CHECKING:  # it brings jax
    from sphere.envs.worlds_env import WorldsEnv


class NextStep(VectorWrapper):
    """A pool that resets an environment in the step after its episode's last, as `gymnasium.vector.SyncVectorEnv` does.

    Most of gymnasium's vector wrappers take nothing else. That step ignores the action and has reward 0; the pool is
    put back for it, so that trajectories are those of the pool. The suite's numbers of an ended episode are in
    `outcome`: `episode` is left to RecordEpisodeStatistics.
    """

    env: Pool

    def __init__(self, pool: "Pool | WorldsEnv") -> None:
        super().__init__(pool)
        self.metadata = pool.metadata | {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._ended = np.zeros(pool.num_envs, bool)

    def reset(self, **settings: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._ended[:] = False
        return self.env.reset(**settings)

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        fresh = self._ended
        before = self.env.get_state() if fresh.any() else None
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        if before is not None:
            after = self.env.get_state()
            kept = {name: np.where(_rows(fresh, array), before[name], array) for name, array in after.items()}
            first = self.env.set_state(kept)
            obs = np.where(fresh[:, None], first, obs)
            reward = np.where(fresh, 0.0, reward)
            terminated, truncated = terminated & ~fresh, truncated & ~fresh
        self._ended = done = terminated | truncated
        found: dict[str, Any] = {"success": infos["success"] & ~fresh}
        if done.any():
            outcome = {name: np.where(done, column, np.zeros_like(column)) for name, column in infos["episode"].items()}
            found |= {"outcome": outcome, "_outcome": done}
        return np.where(done[:, None], infos["final_obs"], obs), reward, terminated, truncated, found

    def __enter__(self) -> "NextStep":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _rows(mask: np.ndarray, array: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *[1] * (array.ndim - 1))


def make(name: str, num_envs: int = 1, **settings: Any) -> NextStep:
    """What gymnasium calls; `settings` are those of `sphere.envs.make`."""
    return NextStep(sphere.envs.make(name, num_envs, **settings))


def register() -> None:
    """Every task of every suite as "sphere/suite-task"."""
    for suite in registry.SUITES:
        for task in sphere.envs.tasks(suite):
            name = f"sphere/{suite}-{task}"
            if name not in gymnasium.registry:
                gymnasium.register(
                    name, vector_entry_point="sphere.envs.gym_names:make", kwargs={"name": f"{suite}/{task}"}
                )
