"""Experts on sorted tokens, block by block, in a loop that ends with the last block in use.

For many tokens of each expert on a CPU. No parameters are copied block by block, as `dispatch.grouped` does otherwise,
and tokens that are padding cost nothing. The backward pass computes a block's features again: they are cheaper to
compute than to keep.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Int

from sphere.nets.mlp import MLP


def _of(tree: Any, index: Array) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), tree)


def _set(tree: Any, index: Array, part: Any) -> Any:
    return jax.tree.map(lambda all, one: jax.lax.dynamic_update_index_in_dim(all, one, index, 0), tree, part)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def in_blocks(
    function: Callable[[Any, Array], Any],
    experts: Any,
    x: Float[Array, "blocks size inner"],
    owner: Int[Array, " blocks"],
    used: Int[Array, ""],
) -> Any:
    """function(parameters of the block's expert, the block's rows) of the first `used` blocks; zeros of the others."""
    shape = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], experts), x[0])
    empty = jax.tree.map(lambda one: jnp.zeros((len(x), *one.shape), one.dtype), shape)

    def step(block: Array, found: Any) -> Any:
        return _set(found, block, function(_of(experts, owner[block]), _of(x, block)))

    return jax.lax.fori_loop(0, used, step, empty)


def _forward(function: Any, *arguments: Any) -> tuple[Any, Any]:
    values = jax.tree.map(lambda one: one.value, arguments, is_leaf=lambda one: hasattr(one, "perturbed"))
    return in_blocks(function, *values), values


def _backward(function: Any, saved: Any, cotangent: Any) -> Any:
    experts, x, owner, used = saved
    leaves = jax.tree.leaves(cotangent, is_leaf=lambda one: isinstance(one, SymbolicZero))
    felt = [not isinstance(one, SymbolicZero) for one in leaves]
    given = [one for one, on in zip(leaves, felt, strict=True) if on]

    def outputs(expert: Any, rows: Array) -> list[Array]:
        return [one for one, on in zip(jax.tree.leaves(function(expert, rows)), felt, strict=True) if on]

    def step(block: Array, found: Any) -> Any:
        by_expert, by_rows = found
        _, pull = jax.vjp(outputs, _of(experts, owner[block]), _of(x, block))
        expert, rows = pull(_of(given, block))
        summed = jax.tree.map(jnp.add, _of(by_expert, owner[block]), expert)
        return _set(by_expert, owner[block], summed), _set(by_rows, block, rows)

    nothing = jax.tree.map(jnp.zeros_like, (experts, x))
    return *(jax.lax.fori_loop(0, used, step, nothing) if given else nothing), None, None


in_blocks.defvjp(_forward, _backward, symbolic_zeros=True)


def forward_in_blocks(
    experts: MLP,
    x: Float[Array, "blocks size inner"],
    owner: Int[Array, " blocks"],
    used: Int[Array, ""],
    record: Callable[[str, Array, Array, bool], Array],
) -> tuple[Array, tuple[Array, ...]]:
    """`MLP.forward` of the experts that own the blocks. Layers are recorded, but taps cannot be added."""
    facts: list[tuple[str, bool]] = []

    def one(expert: MLP, rows: Array) -> tuple[Array, tuple[Array, ...], list[tuple[Array, Array]]]:
        facts.clear()  # it is traced more than once
        seen: list[tuple[Array, Array]] = []

        def note(kind: str, inputs: Array, output: Array, bias: bool) -> Array:
            facts.append((kind, bias))
            seen.append((inputs, output))
            return output

        return *expert.forward(rows, note), seen

    output, hidden, seen = in_blocks(one, experts, x, owner, used)
    for (kind, bias), (inputs, given) in zip(facts, seen, strict=True):
        record(kind, inputs, given, bias)
    return output, hidden
