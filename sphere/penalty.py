"""The SPHERE penalty: how far the Gram matrix of the gate-weighted expert features is from a multiple of the identity.

A penalty needs three numbers of A = Phi^T Phi / N [m, m]: its trace, its squared Frobenius norm and m. Three routes
give them, and the cheapest is taken: the feature Gram (m small), the sample Gram (N small), and the routed Gram,
which looks only at the N*K tokens that were routed and whose cost does not depend on the number of experts: F F^T of
these tokens F [N*K, width], masked where two tokens met the same expert and summed over the slots, is N times the
sample Gram, and Phi is never built. Shapes are known while compiling, so the choice is by a count of multiplications
and costs nothing. The Kronecker and Khatri-Rao variants work on the same numbers; no product matrix is formed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from sphere.checks import checked, filled, known


class Gram(NamedTuple):
    """What a penalty needs to know of an SPSD matrix A."""

    trace: Float[Array, ""]
    square: Float[Array, ""]  # ||A||_F^2
    size: int  # m


def anisotropy(gram: Gram) -> Float[Array, ""]:
    """||A - (tr(A) / m) I||_F^2 = ||A||_F^2 - tr(A)^2 / m: the SPHERE penalty."""
    return gram.square - gram.trace**2 / gram.size


def fixed_scale(gram: Gram, alpha: float | Array) -> Float[Array, ""]:
    """||A - alpha I||_F^2 = ||A||_F^2 - 2 alpha tr(A) + alpha^2 m: a target scale that does not follow the batch."""
    return gram.square - 2 * alpha * gram.trace + alpha**2 * gram.size


def scale_free(gram: Gram) -> Float[Array, ""]:
    """||A / (tr(A) / m) - I||_F^2 / m = m ||A||_F^2 / tr(A)^2 - 1; 0 for A = 0.

    It does not change when A is scaled, so its gradient cannot be followed by shrinking the features. A trace below
    1e-12 counts as 0: float32 holds neither its square nor the gradient's third power.
    """
    dead = gram.trace < 1e-12
    trace = jnp.where(dead, 1.0, gram.trace)
    return jnp.where(dead, 0.0, gram.size * (gram.square / trace / trace) - 1)


@jax.custom_jvp
def rows_by_rows(x: Float[Array, "n m"]) -> Float[Array, "n n"]:
    """x x^T. Its derivative is one product, not two: dx x^T and its transpose; so is the backward pass."""
    return x @ x.T


@rows_by_rows.defjvp
def _rows_by_rows_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    half = tangents[0] @ primals[0].T
    return rows_by_rows(*primals), half + half.T


def gram(phi: Float[Array, "n m"]) -> Gram:
    """Of A = Phi^T Phi / N, by the smaller of the feature Gram [m, m] and the sample Gram [N, N]."""
    n, m = phi.shape
    a = rows_by_rows(phi.T if m <= n else phi) / n
    return Gram(jnp.trace(a), jnp.sum(a * a), m)


def routed_gram(
    features: Float[Array, "n k width"], experts: Int[Array, "n k"], num_experts: int, route: str = "auto"
) -> Gram:
    """Of the same A, from the routed tokens alone: row i of Phi holds features[i, k] in the block of experts[i, k].

    N (Phi Phi^T / N)_ij = sum over k, k' of [experts_ik = experts_jk'] features_ik . features_jk'. Slots that name an
    expert outside 0 .. num_experts - 1 count as empty.
    """
    n, k, width = features.shape
    if route == "auto":
        # multiplications; for many slots per sample the blocks of the dense Phi are the cheaper way to skip zeros
        cheap = (n * k) ** 2 * width <= n * num_experts * width * min(n, num_experts * width)
        route = "routed" if cheap else "dense"
    if route == "dense":
        return gram(spread(features, experts, num_experts).reshape(n, -1))
    used = (experts >= 0) & (experts < num_experts)
    tokens = jnp.where(used[:, :, None], features, 0).reshape(n * k, width)
    owner = experts.reshape(n * k)
    products = jnp.where(owner[:, None] == owner[None, :], rows_by_rows(tokens), 0)
    a = jnp.sum(products.reshape(n, k, n, k), axis=(1, 3)) / n
    return Gram(jnp.trace(a), jnp.sum(a * a), num_experts * width)


def spread(
    features: Float[Array, "n k width"], experts: Int[Array, "n k"], num_experts: int
) -> Float[Array, "n experts width"]:
    """Features by expert, zeros where an expert was not chosen: Phi before it is flattened."""
    rows = jnp.arange(features.shape[0])[:, None]
    experts = jnp.where(experts < 0, num_experts, experts)  # dropped; below 0 they would count from the end
    empty = jnp.zeros((features.shape[0], num_experts, features.shape[2]), features.dtype)
    return empty.at[rows, experts].add(features, mode="drop")


def block_squares(phi: Float[Array, "n experts width"]) -> Float[Array, "experts experts"]:
    """||A_ee'||_F^2 for every pair of experts, A_ee' = Phi_e^T Phi_e' / N; by sample or feature Gram, the cheaper."""
    n, experts, width = phi.shape
    if n * (width + experts) < experts * width**2:
        samples = jnp.einsum("neh,meh->enm", phi, phi).reshape(experts, n * n) / n
        return samples @ samples.T
    return jnp.sum(jnp.square(jnp.einsum("neh,nfk->efhk", phi, phi) / n), axis=(2, 3))


def kronecker_gram(a: Gram, g: Gram) -> Gram:
    """Of A kron G: traces, squared norms and sizes multiply."""
    return Gram(a.trace * g.trace, a.square * g.square, a.size * g.size)


def khatri_rao_gram(phi: Float[Array, "n experts width"], psi: Float[Array, "n experts outer"]) -> Gram:
    """Of the block Khatri-Rao product A * G with blocks A_ee' kron G_ee', never formed:
    tr = sum_e tr(A_ee) tr(G_ee), ||.||_F^2 = sum_ee' ||A_ee'||_F^2 ||G_ee'||_F^2."""
    n, experts, width = phi.shape
    traces = [jnp.sum(jnp.square(v), axis=(0, 2)) / n for v in (phi, psi)]
    square = jnp.sum(block_squares(phi) * block_squares(psi))
    return Gram(jnp.sum(traces[0] * traces[1]), square, experts * width * psi.shape[2])


def per_expert(phi: Float[Array, "n experts width"]) -> Float[Array, ""]:
    """sum_e ||A_ee - (tr(A_ee) / d) I||_F^2: each expert by itself, cross-expert blocks ignored."""
    stats = jax.vmap(lambda rows: gram(rows)[:2], in_axes=1)(phi)
    return jnp.sum(stats[1] - stats[0] ** 2 / phi.shape[2])


def _tokens_fit(arguments: Mapping[str, Any]) -> None:
    features, experts, number = (arguments[name] for name in ("features", "experts", "num_experts"))
    if number < 1 or features.shape[1] > number:
        raise ValueError(
            f"features have {features.shape[1]} chosen experts per sample and num_experts is {number}, "
            "wanted at most as many as there are; pass [n, k, width] with k <= num_experts"
        )
    if np.shape(experts) != features.shape[:2]:
        raise ValueError(
            f"experts has shape {np.shape(experts)}, wanted {features.shape[:2]}, the first two axes of features; "
            "pass the index of each chosen expert"
        )
    if not jnp.issubdtype(jnp.asarray(experts).dtype, jnp.integer):
        raise ValueError(
            f"experts has numbers of type {jnp.asarray(experts).dtype}, wanted integers: which experts were chosen, "
            "not how much they weigh; weights belong to features"
        )
    if known(experts) and not (np.min(experts) >= 0 and np.max(experts) < number):
        raise ValueError(
            f"experts holds numbers from {np.min(experts)} to {np.max(experts)}, wanted 0 to {number - 1}; "
            "pass indices, as jax.lax.top_k gives them"
        )


def _fitting(penalty: Float[Array, ""]) -> Float[Array, ""]:
    """Of features beyond about 1e9 the penalty, their fourth power, is no number of float32, nor is its gradient."""
    if known(penalty) and not np.isfinite(penalty):
        raise ValueError(
            f"the penalty is {float(penalty)}: the features are too large for the squares of their Gram matrix to fit "
            f"into {penalty.dtype} (up to about 1e9 they do in float32); divide them by a constant, or look for a "
            "network that diverged"
        )
    return penalty


@checked(phi=filled(2))
def sphere_penalty(phi: Float[Array, "n m"]) -> Float[Array, ""]:
    """||A - (tr(A)/m) I||_F^2 with A = phi^T phi / n, for phi [n samples, m features].

    For a Mixture of Experts phi holds, side by side, the features of every expert times its gate weight, zeros for an
    expert that was not chosen; for a dense network, the last hidden features. Zero features have penalty 0 (outside
    jit they are refused: they mean a dead network). Features beyond about 1e9 have a penalty that float32 cannot hold:
    outside jit they are refused, inside it is infinite or NaN, and NaN in gives NaN out.
    """
    return _fitting(anisotropy(gram(phi)))


@checked(
    _tokens_fit,
    features=filled(3),
    experts=lambda _, value: jnp.asarray(value) if isinstance(value, list | tuple) else value,
)
def routed_penalty(
    features: Float[Array, "n k width"], experts: Int[Array, "n k"], num_experts: int
) -> Float[Array, ""]:
    """The same penalty from the chosen experts alone, at a cost that does not depend on how many there are.

    `features[i, j]` are the features of sample i's j-th chosen expert times its gate weight, `experts[i, j]` says which
    expert that is (0 to num_experts - 1; inside jit, where others cannot be refused, such features count for nothing).
    """
    return _fitting(anisotropy(routed_gram(features, experts, num_experts)))
