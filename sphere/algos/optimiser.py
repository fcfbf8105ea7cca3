"""Adam behind a clip by global norm, written so that every program rounds it alike."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from sphere.coefficient import sum_of_squares

BETA_1, BETA_2 = 0.9, 0.999


def clipped_adam(
    net: Any, moments: optax.ScaleByAdamState, grad: Any, rate: Float[Array, ""], *, max_norm: float, eps: float
) -> tuple[Any, optax.ScaleByAdamState, Float[Array, ""]]:
    """One step: parameters, moments, and the gradient's norm before it was clipped.

    Moments as m + (1 - b)(g - m): one product and one sum, so a compiler can round them in one way only, and programs
    with and without a penalty agree to the bit. (b m + (1 - b) g may be fused from either side.)
    """
    norm = jnp.sqrt(sum_of_squares(grad))
    scale = jnp.where(norm < max_norm, 1.0, max_norm / norm)
    grad = jax.tree.map(lambda g: g * scale, grad)
    count = moments.count + 1
    mu = jax.tree.map(lambda m, g: m + (1 - BETA_1) * (g - m), moments.mu, grad)
    nu = jax.tree.map(lambda v, g: v + (1 - BETA_2) * (g * g - v), moments.nu, grad)
    unbias_1, unbias_2 = 1 - BETA_1 ** count.astype(norm.dtype), 1 - BETA_2 ** count.astype(norm.dtype)

    def moved(p: Array, m: Array, v: Array) -> Array:
        return p - rate * ((m / unbias_1) / (jnp.sqrt(v / unbias_2) + eps))

    return jax.tree.map(moved, net, mu, nu), moments._replace(count=count, mu=mu, nu=nu), norm
