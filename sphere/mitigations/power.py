"""The largest singular value of kernels [experts, inner, outer] by power iteration, the iterate kept between steps."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

WARM = 50
"""Iterations for a first iterate: a fresh kernel's largest singular values lie close together."""


def normalised(v: Float[Array, "*bank size"]) -> Float[Array, "*bank size"]:
    return v / (jnp.linalg.norm(v, axis=-1, keepdims=True) + 1e-12)


def forward(kernel: Float[Array, "experts inner outer"], u: Float[Array, "experts outer"]) -> Array:
    """K u, expert by expert."""
    return jnp.einsum("eio,eo->ei", kernel, u)


def iterate(
    kernel: Float[Array, "experts inner outer"], u: Float[Array, "experts outer"]
) -> Float[Array, "experts outer"]:
    """One power iteration: u towards the largest right singular vector."""
    v = normalised(forward(kernel, u))
    return normalised(jnp.einsum("eio,ei->eo", kernel, v))


def first(kernel: Float[Array, "experts inner outer"], key: PRNGKeyArray) -> Float[Array, "experts outer"]:
    experts, _, outer = kernel.shape
    u = normalised(jax.random.normal(key, (experts, outer), kernel.dtype))
    return jax.lax.fori_loop(0, WARM, lambda _, u: iterate(kernel, u), u)
