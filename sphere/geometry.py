"""How points lie to each other, with the labels or sets that they have: what `sphere.diagnostics` asks of a gate.

Definitions: docs/diagnostics.md. A NaN among the distances gives NaN.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from sphere.values import nan_unless

Scalar = Float[Array, ""]
NEIGHBOURS = 10  # the paper does not give k_nn


def distances(points: Float[Array, "n width"]) -> Float[Array, "n n"]:
    """||g_i - g_j||, from differences: |a|^2 + |b|^2 - 2 a.b loses near neighbours to rounding."""
    return jnp.sqrt(jnp.sum(jnp.square(points[:, None, :] - points[None, :, :]), axis=2))


def silhouette(distance: Float[Array, "n n"], label: Int[Array, " n"], labels: int) -> Scalar:
    """Mean of (b_i - a_i) / max(a_i, b_i): a the mean distance to the rest of one's cluster, b the smallest mean
    distance to another. 0 for a cluster of one and where a = b = 0, as in scikit-learn; NaN if only one of the
    `labels` occurs."""
    member = jax.nn.one_hot(label, labels, dtype=distance.dtype)
    size = jnp.sum(member, axis=0)
    total = distance @ member  # [n, labels]
    own = jnp.sum(size[None, :] * member, axis=1)
    a = jnp.sum(total * member, axis=1) / jnp.maximum(own - 1, 1)
    other = (member == 0) & (size > 0)[None, :]
    b = jnp.min(jnp.where(other, total / jnp.maximum(size, 1)[None, :], jnp.inf), axis=1)
    several = jnp.sum(size > 0) > 1
    b = jnp.where(several, b, 0)
    scale = jnp.maximum(a, b)
    zero = (own <= 1) | (scale == 0)
    score = nan_unless(~jnp.any(jnp.isnan(distance)), jnp.where(zero, 0, (b - a) / jnp.where(zero, 1, scale)))
    return jnp.where(several, jnp.mean(score), jnp.nan)


def knn_jaccard(
    distance: Float[Array, "n n"], chosen: Bool[Array, "n experts"], neighbours: int = NEIGHBOURS
) -> Scalar:
    """Mean over states i and their nearest neighbours j != i of |S_i & S_j| / |S_i | S_j|; 1 for two empty sets.

    All others are neighbours where there are fewer than asked for; at equal distance the earlier state comes first.
    """
    if neighbours < 1:
        raise ValueError(f"neighbours={neighbours}; use 1 or more")
    n = distance.shape[0]
    if n == 1:
        return jnp.full((), jnp.nan, distance.dtype)
    member = chosen.astype(distance.dtype)
    size, common = jnp.sum(member, axis=1), member @ member.T
    union = size[:, None] + size[None, :] - common
    jaccard = jnp.where(union > 0, common / jnp.maximum(union, 1), 1)
    apart = jnp.where(jnp.eye(n, dtype=bool), jnp.inf, distance)
    nearest = jax.lax.top_k(-apart, min(neighbours, n - 1))[1]
    return nan_unless(~jnp.any(jnp.isnan(distance)), jnp.mean(jnp.take_along_axis(jaccard, nearest, axis=1)))
