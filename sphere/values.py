"""Numbers at the ends: NaN that has to stay NaN through a solver or a comparison, and sizes whose squares overflow.

`jnp.where(x > 0, ..., 0)` turns NaN into 0, and so does the gradient of a branch that was not taken. Both would call a
diverged network well.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

LARGE = 24
"""Exponent of two from which numbers are brought down: fourth powers of 2^24, summed, still fit into float32."""


@jax.custom_jvp
def finite_or_zero(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x, or zeros if one of its entries is not finite; the gradient is then NaN and not zero.

    For solvers, which may return finite numbers for a matrix with one NaN, or not return.
    """
    return jnp.where(jnp.all(jnp.isfinite(x)), x, 0.0)


@finite_or_zero.defjvp
def _finite_or_zero_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return finite_or_zero(*primals), nan_unless(jnp.all(jnp.isfinite(primals[0])), tangents[0])


@jax.custom_jvp
def nan_gradient(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x as it is; its gradient is NaN if one of its entries is not finite. It leaves no trace in a program that is not
    differentiated, and so no bit of it changes."""
    return x


@nan_gradient.defjvp
def _nan_gradient_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return primals[0], nan_unless(jnp.all(jnp.isfinite(primals[0])), tangents[0])


def nan_unless(known: Bool[Array, ""], x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x with its bits, or NaN in value and gradient."""
    return x * jnp.where(known, 1.0, jnp.nan).astype(x.dtype)


def moderate(x: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, ""]]:
    """x times a power of two, and that power: 1 up to entries of 1.7e7, else what brings the largest to about 1.

    Exact, so that a quantity that does not depend on scale has the bits that it had, and exists for features of 1e18.
    """
    exponent = jnp.frexp(jax.lax.stop_gradient(jnp.max(jnp.abs(x))))[1]
    down = jnp.where(exponent > LARGE, jnp.minimum(exponent, 120), 0)  # 2^-126 is the smallest that is not flushed to 0
    factor = jnp.ldexp(jnp.ones((), x.dtype), -down)
    return x * factor, factor
