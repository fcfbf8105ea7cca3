"""Environments as functions for `jit`: many worlds of one task on an accelerator.

What `batch.py` is to worker processes. A suite writes `Worlds`, in batched JAX; what is done around it for all suites
alike stands here: seeds by counter, episode counts, time limits, resets in the same step. All arrays have a row per
world, and no row depends on another.

All that a world draws comes from (run seed, purpose, task, index in the run, episode). So a run's episodes do not
depend on the other runs beside it.
"""

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from sphere.envs.batch import check_state

Keys = Key[Array, " world"]

State = Any
"""Arrays with a row per world: all that the next step begins from."""


@runtime_checkable
class Worlds(Protocol):
    """One task: all that a suite has to write. Its functions are pure and are called while `jit` traces."""

    observation_size: int
    action_low: np.ndarray  # [act]
    action_high: np.ndarray  # [act]
    horizon: int  # steps after which an episode is truncated, if it has not terminated
    simulator: str
    """What simulates, as records name it."""

    def reset(self, keys: Keys) -> State:
        """New episodes, one for each key [world]."""

    def observe(self, state: State) -> Float[Array, "world obs"]: ...

    def step(self, state: State, action: Float[Array, "world act"]) -> tuple[State, Array, Array, Array]:
        """State, reward, terminated and success after one step of all, without autoreset. Actions lie in their box."""


class WorldState(NamedTuple):
    """Worlds in the middle of their episodes: all that the future depends on."""

    stream: UInt32[Any, "world words"]
    """Words of the key that all draws of a world come from."""
    episode: Int[Any, " world"]
    elapsed: Int[Any, " world"]
    returned: Float[Any, " world"]
    """Sum of the episode's rewards so far."""
    success_once: Bool[Any, " world"]
    state: State


class Ended(NamedTuple):
    """The episodes that a step has ended; numbers mean something where `done`."""

    done: Bool[Any, "*time world"]
    returned: Float[Any, "*time world"]
    length: Int[Any, "*time world"]
    success_once: Bool[Any, "*time world"]
    success_at_end: Bool[Any, "*time world"]
    diverged: Bool[Any, "*time world"]
    """It ended because its numbers were no longer finite."""


class TimeStep(NamedTuple):
    """What one step gives."""

    obs: Float[Array, "world obs"]
    """Where an episode has ended, the first observation of the next one."""
    final_obs: Float[Array, "world obs"]
    """The true successor."""
    reward: Float[Array, " world"]
    terminated: Bool[Array, " world"]
    truncated: Bool[Array, " world"]
    success: Bool[Array, " world"]
    ended: Ended


def streams(seeds: UInt32[Any, " run"], purpose: int, task: str, envs: int) -> UInt32[Array, "world words"]:
    """Of `envs` worlds for each run, run-major."""
    word = np.uint32(zlib.crc32(task.encode()))

    def one(seed: Array, index: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), word)
        return jax.random.key_data(jax.random.fold_in(key, index))

    each = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(jnp.asarray(seeds), jnp.arange(envs))
    return each.reshape(-1, each.shape[-1])


def start(
    worlds: Worlds, stream: UInt32[Any, "world words"], episode: Int[Any, " world"]
) -> tuple[WorldState, Float[Array, "world obs"]]:
    """Begin these episodes everywhere: worlds, and their first observations."""
    stream, episode, count = jnp.asarray(stream), jnp.asarray(episode, jnp.int32), len(stream)
    state = worlds.reset(_keys(stream, episode))
    nothing = jnp.zeros(count, jnp.int32), jnp.zeros(count), jnp.zeros(count, bool)
    running = WorldState(stream, episode, *nothing, state)
    return running, worlds.observe(state)


def step(worlds: Worlds, running: WorldState, action: Float[Array, "world act"]) -> tuple[WorldState, TimeStep]:
    """One step everywhere; actions are cut to their box. Where an episode ends, the next one starts in the same step.

    A world whose numbers are not finite any more ends its episode there: with reward 0, and with the observation before
    in place of its last, so that it spoils neither statistics nor values. MuJoCo on a CPU resets such a world by
    itself.
    """
    before = worlds.observe(running.state)
    low, high = (jnp.asarray(bound, action.dtype)[None] for bound in (worlds.action_low, worlds.action_high))
    state, reward, terminated, success = worlds.step(running.state, jnp.clip(action, low, high))
    observed = worlds.observe(state)
    finite = jnp.all(jnp.isfinite(observed), axis=1) & jnp.isfinite(reward)
    final_obs = jnp.where(finite[:, None], observed, before)
    reward = jnp.where(finite, reward, 0.0)
    terminated, success = terminated | ~finite, success & finite
    elapsed, returned = running.elapsed + 1, running.returned + reward
    success_once = running.success_once | success
    truncated = (elapsed >= worlds.horizon) & ~terminated
    done = terminated | truncated
    ended = Ended(done, returned, elapsed, success_once, success, ~finite)
    episode = running.episode + done
    state = _where(done, worlds.reset(_keys(running.stream, episode)), state)
    after = WorldState(
        running.stream,
        episode,
        jnp.where(done, 0, elapsed),
        jnp.where(done, 0.0, returned),
        success_once & ~done,
        state,
    )
    obs = jnp.where(done[:, None], worlds.observe(state), final_obs)
    return after, TimeStep(obs, final_obs, reward, terminated, truncated, success, ended)


def captured(running: WorldState) -> dict[str, np.ndarray]:
    """On the host, as arrays by name with a row per world."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(running))
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def restored(like: WorldState, state: Mapping[str, np.ndarray]) -> WorldState:
    """Worlds as they were captured; `like`: worlds of the same task and number."""
    check_state(state, captured(like))
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(state[name]) for name in captured(like)])


def _keys(stream: Array, episode: Array) -> Keys:
    return jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(stream), episode)


def _where(rows: Bool[Array, " world"], yes: State, no: State) -> State:
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no)
