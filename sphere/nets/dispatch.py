"""Two ways to bring samples to a bank of experts, with equal results.

*Dense*: every expert sees every sample; the bank is [experts, n, ·]. Few, large products: best on a GPU with few
experts. *Grouped*: tokens are sorted by expert into blocks of equal size, each block meets a copy of its expert's
parameters, and work follows K and not E; the bank is [blocks, block, ·]. Where a CPU has many tokens for each expert,
blocks are larger and go through a loop without copies (`block_loop.py`).

Outputs, gradients and traces are the same up to rounding, and each way is the other's test. `pick_compute` in
`moe.py` takes one: dense unless it wastes more than the sorting costs. On a GPU, where products are cheap, only the
many tokens of a Transformer are grouped. Variants of the penalty that look at experts which were not chosen need
dense, and say so.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from sphere.nets.mlp import transpose_kernel


class BlockOwners(NamedTuple):
    owner: Int[Array, " blocks"]
    """The expert of each."""
    used: Int[Array, ""]
    """How many hold tokens; they come first."""


class Dispatch(NamedTuple):
    """How values travel between the slots of the samples and the rows of the bank."""

    enter: Callable[[Array], Array]
    """Inputs to the bank: [n, d], the same for all slots, or [n, slots, d]."""
    to_bank: Callable[[Array], Array]
    """[n, slots, d] -> bank rows."""
    to_slots: Callable[[Array], Array]
    """Bank rows -> [n, slots, d]; for what entered once per sample, a view per slot."""
    parameters: Callable[[Any], Any]
    """The bank's parameters, from the experts'."""
    blocks: BlockOwners | None = None
    """Grouped."""


def dense(num_experts: int) -> Dispatch:
    def to_slots(v: Array) -> Array:
        if v.ndim == 2:  # the input of the first layer: one and the same for all experts
            return jnp.broadcast_to(v[:, None], (v.shape[0], num_experts, v.shape[1]))
        return jnp.moveaxis(v, 0, 1)

    def to_bank(v: Array) -> Array:
        return jnp.moveaxis(v, 1, 0)

    return Dispatch(
        enter=lambda x: to_bank(x) if x.ndim == 3 else x,
        to_bank=to_bank,
        to_slots=to_slots,
        parameters=lambda p: p,
    )


def block_size(tokens: int, num_experts: int, most: int = 32) -> int:
    """A power of two near the tokens that an expert gets: padding stays below the work, products stay large."""
    size = 1
    while size < most and 2 * size * num_experts <= 2 * tokens:
        size *= 2
    return size


@jax.custom_jvp
def of_owners(leaf: Array, owner: Int[Array, " blocks"]) -> Array:
    """leaf[owner], for sorted owners. On a GPU the gradient is summed over copies by a product: adding them up one by
    one in a fixed order takes many passes over all of them."""
    return leaf.at[owner].get(indices_are_sorted=True)


@of_owners.defjvp
def _of_owners_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    (leaf, owner), (change, _) = primals, tangents
    copies = of_owners(leaf, owner)
    if jax.default_backend() == "cpu":
        return copies, change.at[owner].get(indices_are_sorted=True)
    return copies, by_product(change, owner)


def by_product(leaf: Array, owner: Int[Array, " blocks"]) -> Array:
    """leaf[owner] as a product with rows of one 1 each, in full float32."""
    hot = jax.nn.one_hot(owner, len(leaf), dtype=leaf.dtype)
    rows = jnp.matmul(hot, leaf.reshape(len(leaf), -1), precision=jax.lax.Precision.HIGHEST)
    return rows.reshape(len(owner), *leaf.shape[1:])


def grouped(expert: Int[Array, "n slots"], num_experts: int, max_tokens: int, most: int = 32) -> Dispatch:
    """`expert` names the expert of each slot, `num_experts` for a slot that is not used; at most `max_tokens` are.
    `most`: rows of a block."""
    n, slots = expert.shape
    size = block_size(max_tokens, num_experts, most)
    # Experts fill their last block only in part: at worst size - 1 rows are empty for each expert that has a token.
    blocks = (max_tokens + (size - 1) * min(num_experts, max_tokens)) // size
    owner = expert.reshape(-1)
    member = jax.nn.one_hot(owner, num_experts, dtype=jnp.int32)  # [tokens, experts]
    count = jnp.sum(member, axis=0, dtype=jnp.int32)
    rank = jnp.sum(
        (jnp.cumsum(member, axis=0, dtype=jnp.int32) - 1) * member, axis=1
    )  # place among its expert's tokens
    used_blocks = -(-count // size)
    end = jnp.cumsum(used_blocks, dtype=jnp.int32)
    begin = jnp.sum(member * (end - used_blocks)[None, :], axis=1)  # first block of the token's expert
    # a constant: with jnp.arange XLA's CPU compiler computes the forward pass twice under a penalty
    index = np.arange(n * slots, dtype=np.int32)
    row = jnp.where(owner < num_experts, begin * size + rank, blocks * size + index)  # those not used are dropped
    token = jnp.full(blocks * size, n * slots, jnp.int32)
    token = token.at[row].set(index, mode="drop", unique_indices=True)
    block_expert = jnp.sum(end[None, :] <= jnp.arange(blocks, dtype=jnp.int32)[:, None], axis=1)
    block_expert = jnp.minimum(block_expert, num_experts - 1)  # blocks left over hold zeros

    # Both ways every token has a row of its own. That is said: gradients are then written, not added up in some order,
    # which a GPU that has to give the same bits twice would do by sorting.
    def to_bank(v: Array) -> Array:
        rows = jnp.take(v.reshape(n * slots, -1), token, axis=0, mode="fill", fill_value=0, unique_indices=True)
        return rows.reshape(blocks, size, -1)

    def to_slots(v: Array) -> Array:
        rows = jnp.take(v.reshape(blocks * size, -1), row, axis=0, mode="fill", fill_value=0, unique_indices=True)
        return rows.reshape(n, slots, -1)

    def enter(x: Array) -> Array:
        return to_bank(x if x.ndim == 3 else jnp.broadcast_to(x[:, None], (n, slots, x.shape[1])))

    def copies(leaf: Array) -> Array:
        # in the order in which gradients arise: no compiler moves a transposition through the sum over copies
        each = jax.vmap(transpose_kernel)
        return each(of_owners(each(leaf), block_expert))

    def parameters(experts: Any) -> Any:
        return jax.tree.map(copies, experts)

    return Dispatch(enter, to_bank, to_slots, parameters, BlockOwners(block_expert, end[-1]))
