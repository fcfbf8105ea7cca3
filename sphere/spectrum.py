"""Effective rank and its identities, condition number, spectral contraction, and matrices of expert blocks.

Letters follow the paper: r_e effective rank, kappa condition number, A feature Gram, G gradient Gram, H
entropy in nats. Bad input raises ValueError (see `sphere.checks`). Inside jit, grad and vmap values cannot
raise; there a zero matrix has effective rank 0, entropy 0 and condition number inf, and NaN or infinity in
gives NaN out, in values and in gradients.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sphere import checks
from sphere.checks import checked
from sphere.solvers import eigvalsh, svdvals
from sphere.values import finite_or_zero, moderate, nan_gradient

Scalar = Float[Array, ""]
Number = float | Float[Array, ""]
Sizes = Sequence[int]  # the width of every expert's block, in order


# Entropy and effective rank


@checked(matrix=checks.real(2))
def singular_values(matrix: Float[Array, "m n"]) -> Float[Array, " k"]:
    """sigma_1 >= ... >= sigma_k, zero up to max(m, n) eps sigma_1 as in `numpy.linalg.matrix_rank`."""
    return _solve(svdvals, matrix)[1]


@checked(matrix=checks.any_gram)
def eigenvalues(matrix: Float[Array, "n n"]) -> Float[Array, " n"]:
    """lambda_1 <= ... <= lambda_n of a positive semidefinite matrix, zero up to n eps lambda_n."""
    raw, values = _solve(eigvalsh, matrix)
    checks.nonnegative("the eigenvalues", raw)
    return values


@checked(spectrum=checks.weights)
def spectral_entropy(spectrum: Float[Array, " k"]) -> Scalar:
    """H(p) = -sum_i p_i log p_i,  p_i = spectrum_i / sum_j spectrum_j,  0 log 0 = 0."""
    return _entropy(spectrum)


@checked(matrix=checks.matrix)
def effective_rank(matrix: Float[Array, "m n"]) -> Scalar:
    """r_e(M) = exp(H(p)),  p_i = sigma_i / sum_j sigma_j over the singular values of any matrix.

    The gradient is that along matrices of the same rank; towards a higher rank r_e has infinite slope.
    """
    return _rank(singular_values(matrix))


@checked(matrix=checks.gram)
def effective_rank_spsd(matrix: Float[Array, "n n"]) -> Scalar:
    """r_e(M) = exp(H(p)),  p_i = lambda_i / Tr(M) over the eigenvalues of a positive semidefinite matrix.

    Eigenvalues below n eps of the largest count as zero: too small a rank where one has nearly all of the trace and
    the others are below rounding (in float32, n = 256: 3e-5 of it).
    """
    return _rank(eigenvalues(matrix))


@checked(left=checks.matrix, right=checks.matrix)
def kronecker_effective_rank(left: Float[Array, "_ _"], right: Float[Array, "_ _"]) -> Scalar:
    """r_e(A kron B) = r_e(A) r_e(B), without the product."""
    return _rank(singular_values(left)) * _rank(singular_values(right))


@checked(
    checks.agree("masses", "ranks", 1, "give one of each per block"),
    masses=checks.weights,
    ranks=checks.real(1),
)
def mixture_effective_rank(masses: Float[Array, " blocks"], ranks: Float[Array, " blocks"]) -> Scalar:
    """exp(H(alpha) + sum_b alpha_b log r_b),  alpha_b = s_b / sum_m s_m,  over the blocks with s_b > 0.

    With s_b = ||M_b||_* and r_b = r_e(M_b) this is r_e of the direct sum (lemma block-effrank). It grows with
    every r_b, so lower bounds of r_b give a lower bound. A block that has mass and r_b = 0 makes it 0.
    """
    alpha = _normalised(masses)
    bare = (alpha > 0) & (ranks <= 0)
    logarithms = jnp.log(jnp.where(((alpha == 0) | bare) & ~jnp.isnan(ranks), 1.0, ranks))
    value = jnp.exp(_entropy(alpha) + jnp.sum(alpha * logarithms))
    return jnp.where((jnp.any(bare) | jnp.all(alpha == 0)) & ~jnp.isnan(value), 0.0, value)


@checked(blocks=checks.matrices)
def masses_and_ranks(
    blocks: Sequence[Float[Array, "_ _"]],
) -> tuple[Float[Array, " blocks"], Float[Array, " blocks"]]:
    """||M_b||_* and r_e(M_b) of every block; a block of zeros has mass 0 and rank 0."""
    spectra = [singular_values(block) for block in blocks]
    return (
        jnp.asarray([jnp.sum(spectrum) for spectrum in spectra]),
        jnp.asarray([_rank(spectrum) for spectrum in spectra]),
    )


@checked(blocks=checks.matrices)
def block_diagonal_effective_rank(blocks: Sequence[Float[Array, "_ _"]]) -> Scalar:
    """r_e(M_1 (+) ... (+) M_B) = exp(H(alpha) + sum_b alpha_b log r_e(M_b)),  alpha_b ~ ||M_b||_*.

    The direct sum is never formed. Blocks of zeros are allowed as long as one block is not zero.
    """
    checks.nonzero("every block", *blocks)
    return mixture_effective_rank(*masses_and_ranks(blocks))


@checked(gate_blocks=checks.matrices, expert_blocks=checks.matrices)
def layerwise_effective_rank(
    gate_blocks: Sequence[Float[Array, "_ _"]], expert_blocks: Sequence[Float[Array, "_ _"]]
) -> Scalar:
    """r_e(K) ~ exp(H(alpha) + sum_l alpha^g_l log r_e(G^g_l) + sum_l alpha^exp_l log r_e(H^exp_l)).

    Proposition block-mixture-entk; exact where the Gauss-Newton matrix is block-diagonal over layers. A block
    may be (1/N) J_l^T J_l or (1/N) J_l J_l^T, whichever is smaller: mass and r_e are the same.
    """
    return block_diagonal_effective_rank([*gate_blocks, *expert_blocks])


# Condition number and spectral contraction


@checked(matrix=checks.gram)
def intrinsic_dimension(matrix: Float[Array, "n n"]) -> Scalar:
    """Tr(M) / lambda_max(M), the first step down from r_e in the chain of the interlacing lemma:

    r_e(B) >= Tr(B) / mu_max >= k mu_min / mu_max >= k / kappa(M)  for every k x k principal submatrix B of M.
    """
    spectrum = eigenvalues(matrix)
    return _ratio(jnp.sum(spectrum), jnp.max(spectrum), 0.0)


@checked(matrix=checks.gram)
def condition_number(matrix: Float[Array, "n n"], ridge: Number = 0.0) -> Scalar:
    """kappa(M + ridge I) = (lambda_max + ridge) / (lambda_min + ridge);  inf where the denominator is zero.

    The paper reads kappa with an arbitrarily small ridge (lemma spsd-to-spd). A Gram matrix of fewer samples
    than features is singular: without a ridge its kappa is inf, and the lower bounds by it are 0.
    """
    checks.in_range("ridge", ridge, 0.0, float("inf"), "a negative ridge can make the matrix indefinite")
    spectrum = eigenvalues(matrix) + ridge
    return _ratio(jnp.max(spectrum), jnp.min(spectrum), jnp.inf)


@checked(matrix=checks.any_gram)
def spectral_contraction(matrix: Float[Array, "m m"], beta: Number) -> Float[Array, "m m"]:
    """(1 - beta) M + beta (Tr(M) / m) I: each eigenvalue goes the fraction beta of its way to the mean."""
    checks.in_range("beta", beta, 0.0, 1.0, "beyond 1 an eigenvalue passes the mean and may turn negative")
    return sphere_step(matrix, beta / 2)


@checked(matrix=checks.any_gram)
def sphere_step(matrix: Float[Array, "m m"], step_size: Number) -> Float[Array, "m m"]:
    """M - eta 2 (M - (Tr(M) / m) I), a gradient step on the SPHERE penalty ||M - (Tr(M) / m) I||_F^2.

    The spectral contraction with beta = 2 eta as long as 0 <= eta <= 1/2; longer steps pass the mean.
    """
    mean = jnp.trace(matrix) / len(matrix)
    return matrix - step_size * 2 * (matrix - mean * jnp.eye(len(matrix), dtype=matrix.dtype))


# Expert blocks


@checked(matrix=checks.any_gram)
def block_traces(matrix: Float[Array, "n n"], sizes: Sizes) -> Float[Array, " experts"]:
    """Tr(A_ee) for every expert e."""
    checks.sizes_of("sizes", sizes, len(matrix), "matrix")
    return jnp.stack([jnp.trace(matrix[block, block]) for block in _slices(sizes)])


@checked(matrix=checks.gram)
def expert_trace_weights(matrix: Float[Array, "n n"], sizes: Sizes) -> Float[Array, " experts"]:
    """beta_e = Tr(A_ee) / Tr(A). Load balancing raises their `spectral_entropy` H(beta)."""
    return _normalised(block_traces(matrix, sizes))


@checked(
    checks.agree("gates", "features", 2, "both start with [samples, experts]"),
    gates=checks.matrix,
    features=checks.real(3),
)
def routed_trace_weights(
    gates: Float[Array, "samples experts"], features: Float[Array, "samples experts width"]
) -> Float[Array, " experts"]:
    """beta_e = Tr(A_ee) / Tr(A),  N Tr(A_ee) = sum_i h_ie^2 ||a_e(x_i)||^2, without the Gram matrix."""
    gates, features = moderate(gates)[0], moderate(features)[0]
    mass = jnp.sum(gates**2 * jnp.sum(features**2, axis=2), axis=0)
    checks.nonzero("the product of gates and features", mass)
    return _normalised(mass)


@checked(matrix=checks.gram)
def decoupled_effective_rank(matrix: Float[Array, "n n"], sizes: Sizes) -> Scalar:
    """exp(H(beta) + sum_e beta_e log r_e(A_ee)), which is r_e(A) where the cross-expert blocks vanish."""
    checks.sizes_of("sizes", sizes, len(matrix), "matrix")
    spectra = [_solve(eigvalsh, matrix[block, block]) for block in _slices(sizes)]
    # Checked together: the block of an idle expert may hold nothing but rounding, of either sign.
    checks.nonnegative("the eigenvalues", jnp.concatenate([raw for raw, _ in spectra]))
    return mixture_effective_rank(block_traces(matrix, sizes), jnp.stack([_rank(values) for _, values in spectra]))


@checked(left=checks.any_gram, right=checks.any_gram)
def khatri_rao(
    left: Float[Array, "m m"], right: Float[Array, "n n"], left_sizes: Sizes, right_sizes: Sizes
) -> Float[Array, "k k"]:
    """Block (e,e') of A * G is A_ee' kron G_ee', so that k = sum_e left_sizes[e] right_sizes[e]."""
    return _products(left, right, left_sizes, right_sizes, aligned=True)


@checked(left=checks.any_gram, right=checks.any_gram)
def tracy_singh(
    left: Float[Array, "m m"], right: Float[Array, "n n"], left_sizes: Sizes, right_sizes: Sizes
) -> Float[Array, "mn mn"]:
    """Block ((i,k),(j,l)) of A boxtimes G is A_ij kron G_kl: A kron G with rows and columns in another order.

    The paper's proof of proposition ts-kron-proxy (i) writes the blocks A_ee' kron G_ee' alone. Those are the
    smaller Khatri-Rao product; parts (ii) and (iii) need, and hold for, the product here.
    """
    return _products(left, right, left_sizes, right_sizes, aligned=False)


def selection_matrix(left_sizes: Sizes, right_sizes: Sizes) -> Float[Array, "mn k"]:
    """S with S^T S = I and S^T (A boxtimes G) S = A * G: columns of I that pick the expert-aligned blocks."""
    every = _rows(left_sizes, right_sizes, aligned=False)
    kept = _rows(left_sizes, right_sizes, aligned=True)
    return jnp.asarray((every[:, :, None] == kept[:, None, :]).all(axis=0), float)


# What the equations above share; compiled, so that a call outside jit is a few programs and not fifty


@partial(jax.jit, static_argnums=0)
def _solve(solver, matrix):
    """The spectrum as the solver gives it, and with zero for what rounding cannot tell from zero."""
    # eigvalsh of a matrix with one NaN can return finite numbers, so it is not shown any.
    values = solver(finite_or_zero(matrix))
    zero = max(matrix.shape) * jnp.finfo(matrix.dtype).eps * jnp.max(values)
    known = jnp.all(jnp.isfinite(matrix)) & jnp.all(jnp.isfinite(values))  # at the end of the range they overflow
    return values, jnp.where(known, jnp.where(values <= zero, 0.0, values), jnp.nan)


@jax.jit
def _normalised(weights):
    """weights / sum(weights), zeros for zeros. Negative weights count as zero, infinite ones give NaN."""
    weights = nan_gradient(weights)
    weights = jnp.where(jnp.isfinite(weights), jnp.where(weights < 0, 0.0, weights), jnp.nan)
    # The largest goes first, lest the sum overflow, and by its root twice: XLA multiplies by the reciprocal,
    # which at the end of the range is flushed to zero.
    root = jnp.sqrt(jax.lax.stop_gradient(jnp.max(weights)))
    weights = _ratio(_ratio(weights, root, 0.0), root, 0.0)
    return _ratio(weights, jnp.sum(weights), 0.0)


@jax.jit
def _entropy(weights):
    p = _normalised(weights)
    return -jnp.sum(p * jnp.log(jnp.where(p == 0, 1.0, p)))


@jax.jit
def _rank(spectrum):
    return jnp.where(jnp.max(spectrum) == 0, 0.0, jnp.exp(_entropy(spectrum)))


def _ratio(numerator, denominator, otherwise):
    """Division that gives `otherwise`, with gradient zero, where the denominator is zero."""
    zero = denominator == 0
    return jnp.where(zero, otherwise, numerator / jnp.where(zero, 1.0, denominator))


def _slices(sizes):
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _rows(left_sizes, right_sizes, aligned):
    """Rows (i, k) of A kron G, block pair after block pair: only an expert with itself, or every pair."""
    lefts, rights = _slices(left_sizes), _slices(right_sizes)
    if aligned:
        checks.same("the numbers of left and right blocks", len(lefts), len(rights), "cut both by expert")
        pairs = list(zip(lefts, rights, strict=True))
    else:
        pairs = [(a, g) for a in lefts for g in rights]
    return np.concatenate([np.mgrid[a, g].reshape(2, -1) for a, g in pairs], axis=1)


def _products(left, right, left_sizes, right_sizes, aligned):
    checks.sizes_of("left_sizes", left_sizes, len(left), "left")
    checks.sizes_of("right_sizes", right_sizes, len(right), "right")
    i, k = _rows(left_sizes, right_sizes, aligned)
    return left[np.ix_(i, i)] * right[np.ix_(k, k)]
