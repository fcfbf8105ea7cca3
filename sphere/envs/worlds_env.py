"""Worlds on an accelerator for others: a `gymnasium.vector.VectorEnv`, and a pair of functions for users of JAX."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from sphere.algos.state import RESET
from sphere.envs import simulators, worlds
from sphere.envs.worlds import TimeStep, Worlds, WorldState


class Functions(NamedTuple):
    """Pure, for `jit`, `vmap` over policies, and `scan`."""

    reset: Callable[[Any], tuple[WorldState, Float[Array, "world obs"]]]
    """Of a seed: worlds at the start of their first episodes, and what is observed."""
    step: Callable[[WorldState, Float[Array, "world act"]], tuple[WorldState, TimeStep]]
    """Worlds after one action each. Where an episode ends the next one has begun."""


def functions(name: str, num_envs: int, settings: Mapping[str, Any]) -> Functions:
    made = simulators.make(name, num_envs, settings)

    def reset(seed: Any) -> tuple[WorldState, Array]:
        stream = worlds.streams(jnp.asarray(seed, jnp.uint32).reshape(1), RESET, name, num_envs)
        return worlds.start(made, stream, jnp.zeros(num_envs, jnp.int32))

    def step(running: WorldState, action: Array) -> tuple[WorldState, TimeStep]:
        return worlds.step(made, running, action)

    return Functions(reset, step)


class WorldsEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """`num_envs` worlds for each of the run `seeds`, run-major, with same-step autoreset; `infos` are those of
    `sphere.envs.pool.Pool`. Every step fetches its results from the device: a learner in JAX uses `functions`."""

    single_observation_space: Box
    single_action_space: Box

    def __init__(self, name: str, num_envs: int, seeds: Sequence[int], settings: Mapping[str, Any]) -> None:
        self.task, self.seeds, self.envs = name, list(seeds), num_envs
        self.num_runs, self.num_envs = len(self.seeds), num_envs * len(self.seeds)
        made: Worlds = simulators.make(name, self.num_envs, settings)
        self.worlds, self.horizon, self.simulator = made, made.horizon, made.simulator
        low, high = (np.asarray(bound, np.float32) for bound in (made.action_low, made.action_high))
        self.single_observation_space = Box(-np.inf, np.inf, (made.observation_size,), np.float32)
        self.single_action_space = Box(low, high, dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.running: WorldState | None = None
        self._start = jax.jit(lambda stream, episode: worlds.start(made, stream, episode))
        self._step = jax.jit(lambda running, action: worlds.step(made, running, action))

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start the next episode everywhere; with `seed` (one per run), episode 0 of those run seeds."""
        if seed is not None:
            self.seeds = [seed] if isinstance(seed, int | np.integer) else list(seed)
        if len(self.seeds) != self.num_runs or not all(0 <= one < 2**32 for one in self.seeds):
            raise ValueError(f"run seeds are {self.seeds}; want {self.num_runs} whole numbers from 0 to 2**32 - 1")
        again = seed is None and self.running is not None
        episode = np.asarray(self.running.episode) + 1 if again and self.running else np.zeros(self.num_envs, np.int32)
        stream = worlds.streams(np.array(self.seeds, np.uint32), RESET, self.task, self.envs)
        self.running, obs = self._start(stream, episode)
        return np.asarray(obs), {}

    def step(self, actions: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step everywhere; actions are cut to their box."""
        if self.running is None:
            raise RuntimeError("step came before the first episode; call reset() first")
        actions = np.asarray(actions, np.float32)
        if actions.shape != self.action_space.shape or not np.isfinite(actions).all():
            raise ValueError(
                f"actions have shape {actions.shape}, want {self.action_space.shape} of finite numbers: a row for each "
                f"of {self.num_runs} runs x {self.envs} environments"
            )
        self.running, moved = self._step(self.running, actions)
        found: Any = jax.device_get(moved)
        ended = found.ended
        infos: dict[str, Any] = {"final_obs": found.final_obs, "_final_obs": ended.done, "success": found.success}
        if ended.done.any():
            names = {"r": ended.returned, "l": ended.length}
            names |= {"success_once": ended.success_once, "success_at_end": ended.success_at_end}
            episode = {name: np.where(ended.done, column, np.zeros_like(column)) for name, column in names.items()}
            infos |= {"episode": episode, "_episode": ended.done}
        return found.obs, found.reward, found.terminated, found.truncated, infos

    def get_state(self) -> dict[str, np.ndarray]:
        """All that the future depends on: arrays with a row per environment."""
        if self.running is None:
            raise RuntimeError("get_state came before the first episode; call reset() first")
        return worlds.captured(self.running)

    def set_state(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        """Continue exactly from a captured state of the same task; its observations."""
        if self.running is None:
            raise RuntimeError("set_state came before the first episode; call reset() first")
        self.running = worlds.restored(self.running, state)
        return np.asarray(self.worlds.observe(self.running.state))

    def __enter__(self) -> "WorldsEnv":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
