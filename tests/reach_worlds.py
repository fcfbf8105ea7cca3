"""The reach tasks of `sphere.envs.probes` as worlds in JAX: simulators "on the GPU" that any machine has."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sphere.envs import probes


class Place(NamedTuple):
    x: jax.Array  # [world, 4]: position, goal


class ReachWorlds:
    """Goals are drawn anywhere in the square, near the start too. With `breaks_at` a world's numbers stop being finite
    where its position passes that."""

    tasks: ClassVar[tuple[str, ...]] = probes.CONTINUAL
    observation_size, simulator, breaks_at = 6, "reach in jax", np.inf

    def __init__(self, task: str, num_worlds: int, horizon: int = probes.REACH_STEPS) -> None:
        self.stride, rotation = probes.HEADINGS[task]
        self.rotation, self.horizon = rotation.astype(np.float32), horizon
        self.action_low, self.action_high = -np.ones(2), np.ones(2)

    def reset(self, keys):
        return Place(jax.vmap(lambda key: jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0))(keys))

    def observe(self, state):
        return jnp.concatenate([state.x, state.x[:, 2:] - state.x[:, :2]], axis=1)

    def step(self, state, action):
        turned = jnp.stack([jnp.sum(row[None] * action, axis=1) for row in self.rotation], axis=1)
        at = jnp.clip(state.x[:, :2] + self.stride * turned, -probes.REACH_WALL, probes.REACH_WALL)
        at = jnp.where(at > self.breaks_at, jnp.nan, at)
        state = Place(jnp.concatenate([at, state.x[:, 2:]], axis=1))
        reward = -jnp.linalg.norm(state.x[:, 2:] - at, axis=1)
        success = reward > -probes.REACH_TOLERANCE
        return state, reward, jnp.zeros(len(reward), bool), success
