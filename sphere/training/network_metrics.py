"""Diagnostics of several runs' networks as they are recorded: on the fixed states, and on states as they are met."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sphere.algos.learner import DataSpec
from sphere.algos.rows import EXACT
from sphere.algos.source import States
from sphere.diagnostics import diagnose, expert_load, saturation
from sphere.ntk import effective_rank

LOADS = 64
"""Most experts whose loads are recorded one by one; with more of them, their balance is what can be read."""

_diagnose = jax.jit(jax.vmap(diagnose), compiler_options=EXACT)


@partial(jax.jit, compiler_options=EXACT)
@partial(jax.vmap, in_axes=(0, None))
def _rank(net: Any, states: jax.Array) -> jax.Array:
    with jax.default_matmul_precision("highest"):  # as all diagnostics
        return effective_rank(net, states)


@partial(jax.jit, compiler_options=EXACT)
@jax.vmap
def _loads(net: Any, states: jax.Array) -> jax.Array:
    return expert_load(getattr(net, "trunk", net)(states)[1].mixtures[-1])


@partial(jax.jit, compiler_options=EXACT)
@partial(jax.vmap, in_axes=(0, 0, None, None))
def _saturation(policy: Any, states: jax.Array, low: Any, high: Any) -> jax.Array:
    return saturation(policy(states)[0], low, high)


def measured(probes: dict[str, Any], states: States, spec: DataSpec) -> list[dict[str, float]]:
    """Of each run. The first network's numbers go by where the states are from (`heldout/ntk_rank`), those of others by
    their role too (`heldout/critic/ntk_rank`)."""
    first, *others = probes
    found = _of_network(probes[first], states, spec)
    for role in others:
        net = probes[role]
        for one, more in zip(found, _of_network(net, states, spec._replace(low=(), high=())), strict=True):
            one |= {f"{place}/{role}/{rest}": value for place, rest, value in _parts(more)}
    return found


def _parts(values: dict[str, float]) -> list[tuple[str, str, float]]:
    return [(*name.split("/", 1), value) for name, value in values.items()]  # type: ignore[misc]


def _of_network(net: Any, states: States, spec: DataSpec) -> list[dict[str, float]]:
    runs = len(next(iter(states.places.values())))
    results: list[dict[str, float]] = [{} for _ in range(runs)]
    for place, given in states.places.items():
        inputs = jnp.asarray(given)
        found = _diagnose(net, inputs)._asdict()
        if spec.low and hasattr(net, "log_std"):
            bounds = (np.asarray(bound, np.float32) for bound in (spec.low, spec.high))
            found["saturation"] = _saturation(net, inputs, *bounds)
        for name, values in jax.device_get(found).items():
            for run, value in enumerate(values):
                results[run][f"{place}/{name}"] = float(value)
        loads = jax.device_get(_loads(net, inputs))
        if 1 < loads.shape[1] <= LOADS:
            for run, shares in enumerate(loads):
                results[run] |= {f"{place}/load/{expert}": float(share) for expert, share in enumerate(shares)}
    if states.standardised is not None:
        # raw states may differ so little that K has few directions by itself
        for run, rank in enumerate(jax.device_get(_rank(net, jnp.asarray(states.standardised)))):
            results[run]["standardised/ntk_rank"] = float(rank)
    return results
