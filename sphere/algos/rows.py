"""A fleet of any learner: its functions for every row of a leading run axis, compiled once per program.

On a GPU all runs are computed side by side; on a CPU an update takes them one after the other, each as if it were
alone. The state that goes into an update is donated. An update is one call for all its minibatches; metrics are
reduced on the device and read once per iteration. GPU kernels are chosen by rule and not by timing
(`Learner.deterministic`): two processes that time them may choose differently, and then a resumed run would not end
with the numbers of an undisturbed one.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Integer, Num

from sphere.algos.learner import Clock, Data, DataSpec, Keep, Learner, Numbers
from sphere.algos.state import changes_networks

Rows = Any  # arrays with a leading run axis, of jax, or of numpy where they come from the host

EXACT = {
    "xla_gpu_deterministic_ops": True,
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_enable_dynamic_slice_fusion": False,
}
"""Compiler options for the same bits in every process: without, a GPU's kernels are those that happened to be fastest.
Without Triton's products, because some have no kernel at all unless they are timed (jax 0.11: "No supported config
found"). Products do not write into slices of larger arrays either: cuBLAS then finds its first choice to be
unsupported."""


def program(learner: Learner, numbers: dict[str, Any]) -> Learner:
    """The learner without the methods whose strength is 0 in every run: faster, and the same numbers."""
    used = [m for m in learner.methods if m.strength is None or np.any(numbers[m.strength])]
    if len(used) == len(learner.methods):
        return learner
    return dataclasses.replace(learner, methods=tuple(used))  # type: ignore[type-var]


@partial(jax.jit, static_argnums=(0, 1))
def init(learner: Learner, spec: DataSpec, seeds: Integer[Rows, " run"], numbers: Numbers) -> Any:
    return jax.vmap(partial(learner.init, spec))(seeds, numbers)


def policy(learner: Learner, state: Any) -> Any:
    """The policies as they act."""
    return _policy(learner, state) if changes_networks(learner.methods) else learner.policy(state)


def probes(learner: Learner, state: Any) -> dict[str, Any]:
    """The networks that are diagnosed, as they act."""
    return _probes(learner, state) if changes_networks(learner.methods) else learner.probes(state)


def annotated(learner: Learner, policy: Any, data: Data) -> Data:
    """The data with what the policy that gave them says of them."""
    if type(learner).annotate is Learner.annotate:
        return data
    return {**data, **_annotate(learner, policy, data)}


@partial(jax.jit, static_argnums=(0, 1))
def remembered(learner: Learner, spec: DataSpec, data: Data) -> Float[Array, "run n width"]:
    """What the memories of the runs keep of one iteration's data."""
    return jax.vmap(partial(learner.remember, spec))(data)


@partial(jax.jit, compiler_options=EXACT)
def act(policy: Any, obs: Num[Rows, "run env *obs"]) -> Float[Array, "run env act"]:
    """What is done in evaluation, and to which training adds noise."""
    return _every_run(lambda policy, obs: policy.act(obs), policy, obs)


def _every_run(function: Callable, *by_run: Any) -> Any:
    """Side by side; of images on a CPU in turns, where convolutions of several networks round by their number."""
    images = any(leaf.dtype == np.uint8 for leaf in jax.tree.leaves(by_run))
    if images and jax.default_backend() == "cpu":
        return jax.lax.map(lambda own: function(*own), by_run)
    return jax.vmap(function)(*by_run)


def update(
    learner: Learner, state: Any, numbers: Numbers, data: Data, seeds: Integer[Rows, " run"], clock: Clock
) -> tuple[Any, dict[str, Array]]:
    """`Learner.update` of every run; the state that goes in is gone afterwards (donated)."""
    compiled = _update_exactly if learner.deterministic else _update_fast
    return compiled(learner, state, numbers, data, seeds, clock)


def cross(learner: Learner, keep: Keep, old: Any, fresh: Any, seeds: Integer[Rows, " run"]) -> Any:
    """`Learner.cross` of every run."""
    return _cross(learner, keep, old, fresh, seeds)


def side_by_side(learner: Learner, *arguments: Any) -> tuple[Any, dict[str, Array]]:
    """All runs at once. A GPU waits for kernels to begin, not for them to end."""
    by_run = {name: None if name in learner.shared else 0 for name in arguments[2]}
    return jax.vmap(learner.update, in_axes=(0, 0, by_run, 0, None))(*arguments)


def in_turns(learner: Learner, *arguments: Any) -> tuple[Any, dict[str, Array]]:
    """One run after the other, each as if alone. Cores have no room for more, and with a run axis the compiler copies
    parameters and gradients from order to order: an update takes 10 to 50% longer there."""
    state, numbers, data, seeds, clock = arguments
    shared = {name: column for name, column in data.items() if name in learner.shared}
    rest = {name: column for name, column in data.items() if name not in learner.shared}

    def one(own: tuple[Any, Any, Any, Any]) -> tuple[Any, dict[str, Array]]:
        state, numbers, data, seed = own
        return learner.update(state, numbers, data | shared, seed, clock)

    return jax.lax.map(one, (state, numbers, rest, seeds))


def _update(learner: Learner, *arguments: Any) -> tuple[Any, dict[str, Array]]:
    return (in_turns if jax.default_backend() == "cpu" else side_by_side)(learner, *arguments)


_update_fast = jax.jit(_update, static_argnums=0, donate_argnums=1)
# Launched as graphs wherever possible, short ones too: the same bits, 7 to 17% faster (docs/performance.md).
_update_exactly = jax.jit(
    _update, static_argnums=0, donate_argnums=1, compiler_options=EXACT | {"xla_gpu_graph_min_graph_size": 1}
)


@partial(jax.jit, static_argnums=0, compiler_options=EXACT)
def _policy(learner: Learner, state: Any) -> Any:
    return jax.vmap(learner.policy)(state)


@partial(jax.jit, static_argnums=0, compiler_options=EXACT)
def _probes(learner: Learner, state: Any) -> dict[str, Any]:
    return jax.vmap(learner.probes)(state)


@partial(jax.jit, static_argnums=0, compiler_options=EXACT)
def _annotate(learner: Learner, policy: Any, data: Data) -> dict[str, Array]:
    return _every_run(learner.annotate, policy, dict(data))


@partial(jax.jit, static_argnums=(0, 1))
def _cross(learner: Learner, keep: Keep, old: Any, fresh: Any, seeds: Integer[Rows, " run"]) -> Any:
    return jax.vmap(lambda old, fresh, seed: learner.cross(old, fresh, keep, seed))(old, fresh, seeds)
