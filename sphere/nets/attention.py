"""Attention in several heads."""

import math
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from sphere.nets.mlp import Linear

Record = Callable[[str, Array, Array, bool], Array]
"""Writes a layer to the trace: its kind, its input, its output, whether it has a bias."""


class Attention(eqx.Module):
    """softmax(q k^T / sqrt(d)) v in several heads, and a linear layer on all of them."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, *, key: PRNGKeyArray):
        self.query, self.key, self.value, self.output = (Linear(width, width, key=k) for k in jax.random.split(key, 4))
        self.heads = heads

    def __call__(
        self, h: Float[Array, "rows width"], tokens: int, real: Bool[Array, "n tokens"] | None, record: Record
    ) -> Float[Array, "rows width"]:
        rows, width = h.shape
        q, k, v = (
            record("linear", h, layer(h), True).reshape(-1, tokens, self.heads, width // self.heads)
            for layer in (self.query, self.key, self.value)
        )
        look = one_by_one if jax.default_backend() == "cpu" and tokens > SHORT else attend
        mixed = look(q, k, v, real).reshape(rows, width)
        return record("linear", mixed, self.output(mixed), True)


def attend(
    q: Float[Array, "n tokens heads d"],
    k: Float[Array, "n tokens heads d"],
    v: Float[Array, "n tokens heads d"],
    real: Bool[Array, "n tokens"] | None,
) -> Float[Array, "n tokens heads d"]:
    """softmax(q k^T / sqrt(d)) v; no token attends to padding."""
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(q.shape[-1])
    if real is not None:  # finite, so that a text of nothing but padding has no NaN
        scores = jnp.where(real[:, None, None, :], scores, 0.5 * jnp.finfo(scores.dtype).min)
    return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), v)


SHORT = 64
"""A CPU attends in multiples of so many tokens."""


def one_by_one(q: Array, k: Array, v: Array, real: Bool[Array, "n tokens"] | None) -> Array:
    """`attend`, one sample after the other, so that its scores stay in a CPU's caches, and of each only the tokens up
    to its last word, rounded up. Scores are computed again in the backward pass. What comes out for padding is 0."""
    tokens = q.shape[1]
    if real is None:
        one = jax.checkpoint(lambda own: attend(own[0][None], own[1][None], own[2][None], None)[0])
        return jax.lax.map(one, (q, k, v))
    lengths = [*range(SHORT, tokens, SHORT), tokens]
    last = jnp.max(jnp.where(real, jnp.arange(1, tokens + 1, dtype=jnp.int32)[None, :], 0), axis=1)
    which = jnp.sum(last[:, None] > jnp.array(lengths[:-1], jnp.int32)[None, :], axis=1, dtype=jnp.int32)

    def within(length: int, *own: Array) -> Array:
        found = attend(*(part[None, :length] for part in own))
        return jnp.pad(found[0], ((0, tokens - length), (0, 0), (0, 0)))

    branches = [partial(within, length) for length in lengths]
    return jax.lax.map(jax.checkpoint(lambda own: jax.lax.switch(own[0], branches, *own[1:])), (which, q, k, v, real))
