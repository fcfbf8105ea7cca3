"""Examples as networks read them."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from sphere.data.labelled import Labelled


def prepared(data: Labelled, obs: Any) -> Float[Array, "*rows numbers"]:
    """Pixels with mean 0 and deviation 1 by channel, ids as they are."""
    return standardised(data.mean, data.deviation, jnp.asarray(obs))


def standardised(mean: tuple[float, ...], deviation: tuple[float, ...], obs: Array) -> Array:
    found = obs.astype(jnp.float32)
    if not mean:
        return found
    pixels = found.reshape(*found.shape[:-1], -1, len(mean)) / 255
    ones = (1,) * (pixels.ndim - 1)
    centre, scale = (jnp.asarray(one, jnp.float32).reshape(*ones, -1) for one in (mean, deviation))
    return ((pixels - centre) / scale).reshape(found.shape)
