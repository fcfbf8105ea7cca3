"""The largest singular value of kernels [experts, inner, outer] by power iteration, the iterate kept between steps."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sphere.methods.units import cut

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


def first(kernels: list[Array], key: PRNGKeyArray) -> list[Array]:
    """Iterates [experts, outer] to begin with, one for each kernel."""
    shapes: list[tuple[int, ...]] = [(kernel.shape[0], kernel.shape[2]) for kernel in kernels]
    drawn = cut(jax.random.normal(key, (sum(map(math.prod, shapes)),), kernels[0].dtype), shapes)

    def step(_: Any, us: list[Array]) -> list[Array]:
        return [iterate(kernel, u) for kernel, u in zip(kernels, us, strict=True)]

    return jax.lax.fori_loop(0, WARM, step, [normalised(u) for u in drawn])
