"""HumanoidBench's H1 tasks as `Worlds`: observation, reward, termination and reset in JAX, beside any physics.

Physics is a pair of functions on a batch of worlds (`Physics`). MuJoCo Warp on a GPU is one (`humanoidbench_mjx`).
Rewards and terminations are the equations of the CPU environments (`humanoidbench_rewards`), in float32.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from sphere.envs import humanoidbench
from sphere.envs.humanoidbench import HEIGHT_ENTRY, NOISE, TASKS, ModelIndices
from sphere.envs.humanoidbench_rewards import Readings
from sphere.envs.worlds import Keys


class Simulated(NamedTuple):
    """Worlds after an action."""

    qpos: Float[Array, "world qpos"]
    qvel: Float[Array, "world qvel"]
    measured: Readings


@runtime_checkable
class Physics(Protocol):
    """Worlds of one model, as a pair of functions for `jit`."""

    name: str
    """What simulates, as records name it."""

    def reset(self, qpos: Float[Array, "world qpos"], qvel: Float[Array, "world qvel"]) -> Any:
        """Worlds at rest in these states: arrays with a row per world, all that the next action begins from."""

    def step(self, worlds: Any, control: Float[Array, "world act"]) -> tuple[Any, Simulated]:
        """One action: ten physics steps under these controls."""


MakePhysics = Callable[[Any, int], Physics]
"""Of a compiled model and a number of worlds."""


class H1State(NamedTuple):
    worlds: Any
    """The physics' own."""
    obs: Float[Array, "world obs"]
    returned: Float[Array, " world"]
    """Sum of the episode's rewards so far, of which success is made."""


def measured(
    places: ModelIndices,
    qpos: Float[Array, "world qpos"],
    site_xpos: Float[Array, "world site 3"],
    xmat: Float[Array, "world body 3 3"],
    force: Float[Array, "world act"],
    sensordata: Float[Array, "world sensor"],
    touched: Bool[Array, " world"],
) -> Readings:
    """What rewards are computed from, of MuJoCo's arrays as a step leaves them: `qpos` of after the last substep, all
    else of before it."""
    head, left, right = (site_xpos[:, site, 2] for site in places.sites)
    velocity = sensordata[:, places.velocity : places.velocity + 3]
    return Readings(qpos[:, HEIGHT_ENTRY], head, left, right, xmat[:, places.torso, 2, 2], force, velocity, touched)


def touching(
    places: ModelIndices, geoms: Any, distance: Float[Array, "*world contact"], margin: Any
) -> Bool[Array, "*world contact"]:
    """Which contacts are with a pole, of the pairs of geoms [..., contact, 2] that were looked at."""
    pole = jnp.any(jnp.asarray(places.poles)[jnp.maximum(geoms, 0)], axis=-1)
    return pole & (distance < margin)


class H1Worlds:
    """One of these tasks. Observed are qpos (26) and qvel (25); an action in [-1, 1] sets 19 joint targets.

    horizon: steps of an episode; the success bars are meant for 1000.
    physics: makes it, of a compiled model and a number of worlds; default: MuJoCo Warp.
    """

    tasks: ClassVar[tuple[str, ...]] = tuple(TASKS)

    @staticmethod
    def check() -> None:
        """What the default physics needs of this machine."""
        from sphere.envs import humanoidbench_mjx

        humanoidbench_mjx.check_installed()
        humanoidbench_mjx.check_gpu()

    def __init__(self, task: str, num_worlds: int, horizon: int = 1000, physics: MakePhysics | None = None) -> None:
        humanoidbench.check(task, horizon)
        if physics is None:
            from sphere.envs.humanoidbench_mjx import Mjx

            physics = Mjx
        self.task, self.horizon = TASKS[task], horizon
        model = humanoidbench.model_of(task)
        self.physics = physics(model, num_worlds)
        self.simulator = self.physics.name
        self.bytes_per_world = getattr(self.physics, "bytes_per_world", 0)
        self.observation_size = model.nq + model.nv
        self.action_low, self.action_high = np.full(model.nu, -1.0), np.full(model.nu, 1.0)
        self.control_low, self.control_range = humanoidbench.control_range(model)
        self.qpos, self.qvel = (np.asarray(one[0], np.float32) for one in (model.key_qpos, model.key_qvel))

    def reset(self, keys: Keys) -> H1State:
        """Keyframe 0 with noise on every entry of qpos, quaternion included."""
        size = self.qpos.shape
        noise = jax.vmap(lambda key: jax.random.uniform(key, size, minval=-NOISE, maxval=NOISE))(keys)
        qpos = jnp.asarray(self.qpos)[None] + noise
        qvel = jnp.tile(self.qvel, (len(keys), 1))
        return H1State(self.physics.reset(qpos, qvel), jnp.concatenate([qpos, qvel], axis=1), jnp.zeros(len(keys)))

    def observe(self, state: H1State) -> Float[Array, "world obs"]:
        return state.obs

    def step(self, state: H1State, action: Float[Array, "world act"]) -> tuple[H1State, Array, Array, Array]:
        control = (action + 1) / 2 * self.control_range[None] + self.control_low[None]
        worlds, (qpos, qvel, measured) = self.physics.step(state.worlds, control)
        reward, terminated = self.task.reward(measured), self.task.terminated(measured)
        returned = state.returned + reward
        after = H1State(worlds, jnp.concatenate([qpos, qvel], axis=1), returned)
        return after, reward, terminated, returned >= self.task.success_bar
