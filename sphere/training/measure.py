"""Diagnostics of several runs' policies as they are recorded: on the fixed states, and on states as they are met."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box

from sphere import envs
from sphere.algos import ppo
from sphere.diagnostics import diagnose, expert_load, saturation
from sphere.envs import heldout
from sphere.envs.source import random_states
from sphere.ntk import effective_rank
from sphere.training.settings import FleetConfig

LOADS = 64
"""Most experts whose loads are recorded one by one; with more of them, their balance is what can be read."""

_diagnose = jax.jit(jax.vmap(diagnose), compiler_options=ppo.EXACT)


@partial(jax.jit, compiler_options=ppo.EXACT)
@partial(jax.vmap, in_axes=(0, None))
def _rank(actor: ppo.GaussianActor, states: jax.Array) -> jax.Array:
    with jax.default_matmul_precision("highest"):  # as all diagnostics
        return effective_rank(actor, states)


@partial(jax.jit, compiler_options=ppo.EXACT)
@jax.vmap
def _loads(net: Any, states: jax.Array) -> jax.Array:
    return expert_load(getattr(net, "trunk", net)(states)[1].mixtures[-1])


@partial(jax.jit, compiler_options=ppo.EXACT)
@partial(jax.vmap, in_axes=(0, 0, None, None))
def _saturation(actor: ppo.GaussianActor, states: jax.Array, low: Any, high: Any) -> jax.Array:
    return saturation(actor(states)[0], low, high)


def fixed_states(config: FleetConfig, obs_size: int) -> np.ndarray | None:
    """The suite's own batch; where there is none that fits, states of a random policy, the same for every user."""
    count = config.evaluation.heldout
    if not count:
        return None
    batch = heldout.shipped(config.tasks[0].split("/")[0])
    if batch is not None and batch.states.shape[1] == obs_size:
        if count > len(batch.states):
            raise ValueError(
                f"evaluation.heldout={count}, but the suite's batch has {len(batch.states)} states; use fewer"
            )
        return batch.states[:count]
    with envs.make(config.tasks[0], num_envs=8, seed=0, workers=0, **config.simulator.given()) as pool:
        return random_states(pool, count)


def standardised(states: np.ndarray) -> np.ndarray:
    """Every column with mean 0 and deviation 1; 0 where it never changes."""
    wide = states.astype(np.float64)
    apart, spread = wide - wide.mean(axis=0), wide.std(axis=0)
    return np.divide(apart, spread, out=np.zeros_like(wide), where=spread > 0).astype(np.float32)


def standardised_rank(actor: ppo.GaussianActor, states: np.ndarray) -> list[dict[str, float]]:
    """r_e(K) of each run on standardised states: raw ones may differ so little that K has few directions by itself."""
    ranks = jax.device_get(_rank(actor, jnp.asarray(standardised(states))))
    return [{"standardised/ntk_rank": float(rank)} for rank in ranks]


def diagnostics(actor: ppo.GaussianActor, places: dict[str, np.ndarray], box: Box) -> list[dict[str, float]]:
    """Of each run; `places`: names of where states are from, and the states [run, state, observation]."""
    results: list[dict[str, float]] = [{} for _ in range(actor.log_std.shape[0])]
    for place, states in places.items():
        found = _diagnose(actor, jnp.asarray(states))._asdict()
        found["saturation"] = _saturation(actor, jnp.asarray(states), box.low, box.high)
        for name, values in jax.device_get(found).items():
            for run, value in enumerate(values):
                results[run][f"{place}/{name}"] = float(value)
        loads = jax.device_get(_loads(actor, jnp.asarray(states)))
        if 1 < loads.shape[1] <= LOADS:
            for run, shares in enumerate(loads):
                results[run] |= {f"{place}/load/{expert}": float(share) for expert, share in enumerate(shares)}
    return results
