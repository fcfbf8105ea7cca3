"""A pool as a Stable-Baselines3 `VecEnv`: the same environments, in that library's words."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from sphere.envs.pool import Pool


class PoolVecEnv(VecEnv):
    """Episodes end as in SB3: `obs` is the first of the next one, `infos[i]["terminal_observation"]` the last, a time
    limit is `TimeLimit.truncated`, and `infos[i]["episode"]` has r, l and the outcomes of the suite. Closing it closes
    the pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        super().__init__(pool.num_envs, pool.single_observation_space, pool.single_action_space)

    def reset(self) -> np.ndarray:
        seeds = [seed for seed in self._seeds[: self.pool.num_runs] if seed is not None]
        self._reset_seeds()
        return self.pool.reset(seed=seeds or None)[0]

    def step_async(self, actions: np.ndarray) -> None:
        self.pool.step_async(actions)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, reward, terminated, truncated, infos = self.pool.step_wait()
        done = terminated | truncated
        found: list[dict[str, Any]] = [{"success": bool(success)} for success in infos["success"]]
        for i in np.flatnonzero(done):
            found[i]["terminal_observation"] = infos["final_obs"][i]
            found[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            found[i]["episode"] = {name: column[i].item() for name, column in infos["episode"].items()}
        return obs, reward.astype(np.float32), done, found

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> "PoolVecEnv":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Single environments cannot be reached: they live in worker processes, many in one

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        if attr_name == "render_mode":
            return [None] * len(list(self._get_indices(indices)))
        return [getattr(self.pool, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        raise NotImplementedError(f"a pool's environments have no attributes to set ({attr_name}); make another pool")

    def env_method(
        self, method_name: str, *args: Any, indices: int | Iterable[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        raise NotImplementedError(f"a pool's environments have no methods to call ({method_name}); call the pool's own")

    def env_is_wrapped(self, wrapper_class: type, indices: int | Iterable[int] | None = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.pool.render()
