"""Lower bounds on the effective rank, which the SPHERE penalty raises, and bounds on what approximations do.

The latter return both sides of their inequality, left <= right, so that a diagnostic can log what happened
beside what could have. Gate and expert terms come from the sample-space Grams K_gate = J_g J_g^T and
K_exp = J_exp J_exp^T, which a diagnostic has, and not from blocks of the P x P matrix G = (1/N) J^T J, which
too large to store: the nonzero eigenvalues agree up to N, and N^2 ||(1/N) J_g^T J_exp||_F^2 = <K_gate, K_exp>.
Of a network with parts outside of its mixtures (`sphere.ntk.NTKParts.shared`), pass gate + shared as the gate:
the bounds then compare the experts with all the rest, and the sum of both is K as before.

Bad input raises ValueError; inside jit, grad and vmap a zero matrix counts as entropy 0 and its bound is the
trivial log n, and NaN or infinity in gives NaN out, in values and in gradients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sphere import checks
from sphere.checks import checked
from sphere.solvers import svdvals
from sphere.spectrum import (
    Number,
    Scalar,
    condition_number,
    eigenvalues,
    masses_and_ranks,
    mixture_effective_rank,
    spectral_entropy,
)
from sphere.values import moderate, nan_unless

SAMPLES = "take both on the same samples"
TOKENS = "take both of the same tokens"


class Inequality(NamedTuple):
    """left <= right."""

    left: Float[Array, ""]
    right: Float[Array, ""]


# Lower bounds


@checked(matrix=checks.gram)
def effective_rank_lower_bound(matrix: Float[Array, "n n"], dimension: int, ridge: Number = 0.0) -> Scalar:
    """k / kappa(M) <= r_e(B) for every k x k principal submatrix B of M; equal iff M is a scaled identity."""
    return dimension / condition_number(matrix, ridge)


@checked(features=checks.gram, gradients=checks.gram)
def kronecker_lower_bound(
    features: Float[Array, "m m"], gradients: Float[Array, "n n"], dimension: int, ridge: Number = 0.0
) -> Scalar:
    """LB^A = k / (kappa(A) kappa(G)) <= r_e(A * G),  k = dim(A * G),  * the block product `khatri_rao`.

    Corollary proxy-to-khatri-effrank. With one expert A * G is A kron G and k = m n.
    """
    return dimension / (condition_number(features, ridge) * condition_number(gradients, ridge))


@checked(
    checks.agree("expert_masses", "expert_lower_bounds", 1, "give one of each per layer"),
    gate_blocks=checks.matrices,
    expert_masses=checks.real(1),
    expert_lower_bounds=checks.real(1),
)
def spectral_plasticity_lower_bound(
    gate_blocks: Sequence[Float[Array, "_ _"]],
    expert_masses: Float[Array, " layers"],
    expert_lower_bounds: Float[Array, " layers"],
) -> Scalar:
    """LB_{r_e(K)} = exp(H(alpha) + sum_l alpha^g_l log r_e(G^g_l) + sum_l alpha^exp_l log LB^A_l).

    Theorem spectral-contraction-increases-reK-lb. Masses are nuclear norms, s^exp_l = Tr(H^exp_l); of A * G
    that is `jnp.vdot(block_traces(A, sizes), block_traces(G, sizes))`.
    """
    masses, ranks = masses_and_ranks(gate_blocks)
    return mixture_effective_rank(
        jnp.concatenate([masses, expert_masses]), jnp.concatenate([ranks, expert_lower_bounds])
    )


# Perturbation bounds


def binary_entropy(epsilon: Number) -> Scalar:
    """h(eps) = -eps log eps - (1 - eps) log(1 - eps),  h(0) = h(1) = 0."""
    checks.in_range("epsilon", epsilon, 0.0, 1.0, "it is a probability")
    p = jnp.stack([jnp.asarray(epsilon), 1 - jnp.asarray(epsilon)])
    return -jnp.sum(p * jnp.log(jnp.where(p == 0, 1.0, p)))


def stability_bound(epsilon: Number, dimension: int) -> Scalar:
    """eps log(n - 1) + h(eps) for eps <= 1 - 1/n, and log n beyond.

    log n is the value at 1 - 1/n, where the bound stops growing, and the most by which two entropies over n
    outcomes can differ: so it holds for every eps >= 0, and n = 1 gives 0. The paper leaves both cases out.
    """
    checks.in_range("epsilon", epsilon, 0.0, float("inf"), "it is a ratio of norms")
    checks.in_range("dimension", dimension, 1, float("inf"), "count the parameters")
    epsilon = jnp.minimum(epsilon, 1 - 1 / dimension)
    return epsilon * np.log(max(dimension - 1, 1)) + binary_entropy(epsilon)


@checked(
    checks.agree("matrix", "approximation", 2, "compare like with like"),
    matrix=checks.gram,
    approximation=checks.gram,
)
def effective_rank_stability(matrix: Float[Array, "n n"], approximation: Float[Array, "n n"]) -> Inequality:
    """|log r_e(K) - log r_e(K~)| <= eps log(n - 1) + h(eps),  eps = sqrt(n) ||K - K~||_F / min(Tr K, Tr K~).

    Lemma effrank-stability: Hoffman-Wielandt on the eigenvalues, then Fannes-Audenaert on their entropy.
    """
    matrix, approximation = moderate(jnp.stack([matrix, approximation]))[0]
    trace = jnp.minimum(jnp.trace(matrix), jnp.trace(approximation))
    return _deviation(
        eigenvalues(matrix), eigenvalues(approximation), _square(matrix - approximation), trace, len(matrix)
    )


@checked(checks.agree("gate", "expert", 2, SAMPLES), gate=checks.any_gram, expert=checks.gram)
def gate_expert_decoupling(
    gate: Float[Array, "samples samples"], expert: Float[Array, "samples samples"], dimension: int
) -> Inequality:
    """|log r_e(G) - log r_e(G_bd)| <= eps log(n - 1) + h(eps),  eps = sqrt(2 n) ||G_{g,exp}||_F / Tr(G).

    Corollary gate-expert-decoupling-bound; J = [J_g | J_exp], and G_bd is G without its cross blocks. In the
    paper n, `dimension`, is P, the number of parameters. Any n not below the rank of both matrices will do,
    as their spectra are zero beyond it, and the smaller the tighter: min(P, 2 N).
    """
    gate, expert = moderate(jnp.stack([gate, expert]))[0]
    decoupled = jnp.concatenate([eigenvalues(gate), eigenvalues(expert)])
    trace = jnp.trace(gate) + jnp.trace(expert)
    return _deviation(eigenvalues(gate + expert), decoupled, 2 * jnp.vdot(gate, expert), trace, dimension)


@checked(checks.agree("gate", "expert", 2, SAMPLES), gate=checks.any_gram, expert=checks.gram)
def ignoring_gate(
    gate: Float[Array, "samples samples"], expert: Float[Array, "samples samples"], dimension: int
) -> Inequality:
    """|log r_e(G) - log r_e(G_exp)| <= eps log(n - 1) + h(eps),
    eps = sqrt(n) sqrt(||G_g||_F^2 + 2 ||G_{g,exp}||_F^2) / Tr(G_exp).

    Corollary ignore-gating-bound; G_exp is G with all but the expert block set to zero. In the paper n,
    `dimension`, is P; min(P, N) will do and is tighter, as in `gate_expert_decoupling`.
    """
    gate, expert = moderate(jnp.stack([gate, expert]))[0]
    square = _square(gate) + 2 * jnp.vdot(gate, expert)
    return _deviation(eigenvalues(gate + expert), eigenvalues(expert), square, jnp.trace(expert), dimension)


@checked(checks.agree("first", "second", 2, SAMPLES), first=checks.gram, second=checks.gram)
def block_cosine(first: Float[Array, "samples samples"], second: Float[Array, "samples samples"]) -> Scalar:
    """cos(a, b) = ||G_ab||_F / sqrt(||G_aa||_F ||G_bb||_F) in [0, 1], from K_a = J_a J_a^T, K_b = J_b J_b^T.

    Its square is <K_a, K_b> / (||K_a||_F ||K_b||_F). Inside jit a zero block has cosine 0.
    """
    first, second = moderate(first)[0], moderate(second)[0]
    scale = _root(_square(first)) * _root(_square(second))
    return _root(jnp.vdot(first, second) / jnp.where(scale == 0, 1.0, scale))


@checked(matrix=checks.gram)
def cross_expert_coupling(matrix: Float[Array, "n n"], sizes: Sequence[int]) -> Inequality:
    """|log r_e(A) - log r_e(A_bd)| <= eps log(D - 1) + h(eps),  eps = sqrt(D) ||A - A_bd||_F / Tr(A).

    Proposition effrank-cross-coupling. A_bd keeps the blocks of every expert with itself.
    """
    matrix = moderate(matrix)[0]
    diagonal = _block_diagonal(matrix, sizes)
    return _deviation(
        eigenvalues(matrix), eigenvalues(diagonal), _square(matrix - diagonal), jnp.trace(matrix), len(matrix)
    )


@checked(matrix=checks.gram)
def coupled_condition_number(matrix: Float[Array, "n n"], sizes: Sequence[int]) -> Inequality:
    """kappa(A) <= (lambda_max(A_bd) + ||A - A_bd||_2) / (lambda_min(A_bd) - ||A - A_bd||_2);  inf where the
    denominator is not positive (proposition kappa-cross-coupling, Weyl)."""
    diagonal = _block_diagonal(matrix, sizes)
    norm = svdvals(matrix - diagonal)[0]
    spectrum = eigenvalues(diagonal)
    smallest = jnp.min(spectrum) - norm
    bound = (jnp.max(spectrum) + norm) / jnp.where(smallest <= 0, 1.0, smallest)
    return Inequality(condition_number(matrix), jnp.where(smallest <= 0, jnp.inf, bound))


@checked(checks.agree("features", "gradients", 1, TOKENS), features=checks.matrix, gradients=checks.matrix)
def kfac_factorization(features: Float[Array, "tokens m"], gradients: Float[Array, "tokens n"]) -> Inequality:
    """||mean_t(X_t kron Y_t) - X kron Y||_F <= sqrt(mean_t ||X_t - X||_F^2) sqrt(mean_t ||Y_t - Y||_F^2)

    with X_t = g_t g_t^T, Y_t = a_t a_t^T, X and Y their means (corollary kfac-factorization-bound). Left
    stands mean_t((X_t - X) kron (Y_t - Y)), so the T x T inner products of the centred X_t and of the centred
    Y_t say all, and no m n x m n matrix is formed.
    """
    x, y = _centred_products(gradients), _centred_products(features)
    return Inequality(
        _root(jnp.vdot(x, y)) / len(features),
        _root(jnp.mean(jnp.diagonal(x))) * _root(jnp.mean(jnp.diagonal(y))),
    )


@checked(
    checks.agree("features", "gradients", 1, TOKENS),
    lambda arguments: _direction_fits(**arguments),
    features=checks.matrix,
    gradients=checks.matrix,
    direction=checks.real(2),
)
def kfac_curvatures(
    features: Float[Array, "tokens m"], gradients: Float[Array, "tokens n"], direction: Float[Array, "n m"]
) -> tuple[Scalar, Scalar]:
    """<W, H W> = mean_t (g_t^T W a_t)^2  and its K-FAC proxy  <W, (G kron A) W> = Tr(W^T G W A).

    They differ by at most the left side of `kfac_factorization` times ||W||_F^2.
    """
    exact = jnp.mean(jnp.sum((gradients @ direction) * features, axis=1) ** 2)
    left = gradients.T @ (gradients @ direction) / len(gradients)  # G W
    right = (direction @ features.T) @ features / len(features)  # W A
    return exact, jnp.vdot(left, right)


def _direction_fits(features, gradients, direction):
    wanted = (gradients.shape[1], features.shape[1])
    checks.same("direction.shape and (gradient, feature) widths", direction.shape, wanted, "transpose it?")


def _deviation(spectrum, approximation, square, trace, dimension):
    """Both sides of lemma effrank-stability from two spectra, ||Delta||_F^2 and the smaller trace."""
    change = jnp.abs(spectral_entropy(spectrum) - spectral_entropy(approximation))
    epsilon = dimension**0.5 * _root(square) / jnp.where(trace == 0, 1.0, trace)
    bound = stability_bound(jnp.where(trace == 0, jnp.inf, epsilon), dimension)
    return Inequality(change, nan_unless(~jnp.isnan(change), bound))


def _block_diagonal(matrix, sizes):
    checks.sizes_of("sizes", sizes, len(matrix), "matrix")
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return jnp.where(owner[:, None] == owner[None, :], matrix, 0.0)


def _centred_products(rows):
    """<v_s v_s^T - M, v_t v_t^T - M>_F = (v_s . v_t)^2 less its row and column means, plus its mean."""
    products = (rows @ rows.T) ** 2
    centred = products - jnp.mean(products, axis=0, keepdims=True)
    return centred - jnp.mean(centred, axis=1, keepdims=True)


def _square(matrix):
    return jnp.sum(matrix**2)


def _root(square):
    """sqrt that takes rounding below zero as zero and has gradient zero there."""
    zero = square <= 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, square)))
