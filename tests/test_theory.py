"""The paper's statements on effective rank, condition number and spectral contraction, in float64.

The judges are matrices whose spectrum is known because they were made from it, and the definitions written
out in numpy. A name in brackets is the paper's label.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from matrices import FEW, blocks_of, entropy, fractions, rank_of, seeds, spectral_condition, spsd
from numpy.testing import assert_allclose

from sphere import bounds, spectrum

# Widths of (features, gradients) per expert.
PARTITIONS = st.sampled_from([((3,), (3,)), ((1, 2), (2, 1)), ((2, 1, 1), (1, 2, 1))])
pytestmark = pytest.mark.usefixtures("double_precision")
SLACK = 1e-9  # of rounding, against sides of order one


@st.composite
def factors(draw, full_rank=True):
    """Feature and gradient Grams with their expert partitions."""
    sizes = draw(PARTITIONS)
    return (
        *(draw(spsd((sum(size),), full_rank, spread=3.0)) for size in sizes),
        *sizes,
    )


# Khatri-Rao inside Tracy-Singh, and interlacing
def brute_tracy_singh(left, right, left_sizes, right_sizes):
    a, g = blocks_of(left, left_sizes), blocks_of(right, right_sizes)
    rows = list(itertools.product(range(len(left_sizes)), range(len(right_sizes))))
    return np.block([[np.kron(a[i][j], g[k][m]) for j, m in rows] for i, k in rows])


def brute_khatri_rao(left, right, left_sizes, right_sizes):
    a, g = blocks_of(left, left_sizes), blocks_of(right, right_sizes)
    experts = range(len(left_sizes))
    return np.block([[np.kron(a[e][f], g[e][f]) for f in experts] for e in experts])


@FEW
@given(factors(full_rank=False))
def test_tracy_singh_contains_khatri_rao_and_has_the_kronecker_spectrum(case):
    """[prop:ts-kron-proxy]"""
    a, g, sizes, widths = case
    envelope = spectrum.tracy_singh(a.matrix, g.matrix, sizes, widths)
    product = spectrum.khatri_rao(a.matrix, g.matrix, sizes, widths)
    scale = a.spectrum[-1] * g.spectrum[-1]
    assert_allclose(envelope, brute_tracy_singh(a.matrix, g.matrix, sizes, widths), rtol=1e-14)
    assert_allclose(product, brute_khatri_rao(a.matrix, g.matrix, sizes, widths), rtol=1e-14)

    # (i) a Gram matrix, of Z with block rows X_e kron Y_f for every pair of experts
    x, y = np.split(a.root, np.cumsum(sizes)[:-1]), np.split(g.root, np.cumsum(widths)[:-1])
    z = np.vstack([np.kron(x_e, y_f) for x_e in x for y_f in y])
    assert_allclose(envelope, z @ z.T, atol=1e-13 * scale)

    # (ii) a principal submatrix
    select = np.asarray(spectrum.selection_matrix(sizes, widths))
    assert_allclose(select.T @ select, np.eye(len(product)), atol=0)
    assert_allclose(select.T @ envelope @ select, product, rtol=1e-14)

    # (iii) the spectrum of A kron G
    want = np.sort(np.outer(a.spectrum, g.spectrum).ravel())
    assert_allclose(np.linalg.eigvalsh(envelope), want, atol=1e-13 * scale)
    assert_allclose(spectrum.effective_rank_spsd(envelope), np.exp(entropy(want)), rtol=1e-8)


@FEW
@given(spsd(dimensions=(5, 8), full_rank=True, spread=4.0), st.integers(1, 5), seeds)
def test_principal_submatrices_inherit_isotropy(case, k, seed):
    """[prop:isotropy-transfer, lem:interlacing-effrank-bound]"""
    rows = np.random.default_rng(seed).permutation(len(case.spectrum))[:k]
    part = case.matrix[np.ix_(rows, rows)]
    largest, smallest = case.spectrum[-1], case.spectrum[0]
    inner = np.linalg.eigvalsh(part)
    assert inner[-1] - inner[0] <= largest - smallest + SLACK * largest
    assert np.abs(inner - largest).max() <= largest - smallest + SLACK * largest
    assert spectrum.condition_number(part) <= spectrum.condition_number(case.matrix) * (1 + SLACK)
    chain = [
        spectrum.effective_rank_spsd(part),
        spectrum.intrinsic_dimension(part),
        bounds.effective_rank_lower_bound(part, k),
        bounds.effective_rank_lower_bound(case.matrix, k),
    ]
    assert_allclose(chain[1:], [inner.sum() / inner[-1], k * inner[0] / inner[-1], k * smallest / largest], rtol=1e-6)
    assert all(high >= low * (1 - SLACK) for high, low in itertools.pairwise(chain))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_lower_bound_is_attained_only_by_scaled_identities(k):
    assert_allclose(bounds.effective_rank_lower_bound(0.3 * np.eye(5), k), k, rtol=1e-12)
    assert_allclose(spectrum.effective_rank_spsd(0.3 * np.eye(k)), k, rtol=1e-12)
    # B a scaled identity inside an M that is not: r_e(B) = k is strictly above k / kappa(M).
    uneven = np.diag([1.0] * k + [2.0])
    assert_allclose(bounds.effective_rank_lower_bound(uneven, k), k / 2, rtol=1e-12)


@FEW
@given(factors())
def test_condition_numbers_of_the_factors_bound_the_khatri_rao_effective_rank(case):
    """[prop:kron-proxy-surrogate, cor:proxy-to-khatri-effrank]"""
    a, g, sizes, widths = case
    product = spectrum.khatri_rao(a.matrix, g.matrix, sizes, widths)
    k = int(np.dot(sizes, widths))
    assert product.shape == (k, k)
    bound = bounds.kronecker_lower_bound(a.matrix, g.matrix, k)
    assert_allclose(bound, k / (spectral_condition(a.spectrum) * spectral_condition(g.spectrum)), rtol=1e-6)
    assert_allclose(bound, bounds.effective_rank_lower_bound(np.kron(a.matrix, g.matrix), k), rtol=1e-6)
    assert bound <= rank_of(np.asarray(product)) * (1 + SLACK)


def test_the_bound_is_one_of_the_khatri_rao_model_and_not_of_the_exact_block():
    """The paper states proposition kron-proxy-surrogate for the exact Gauss-Newton block. Without the
    independence approximation it fails: a_i = g_i = e_i, i = 1, 2, has isotropic factors, but rank 2.
    """
    a = g = np.eye(2)
    exact = sum(np.kron(np.outer(a[i], a[i]), np.outer(g[i], g[i])) for i in range(2)) / 2
    bound = bounds.kronecker_lower_bound(a.T @ a / 2, g.T @ g / 2, 4)
    assert_allclose(bound, 4)
    assert_allclose(spectrum.effective_rank_spsd(exact), 2)


# Spectral contraction
@jax.jit
def penalty(matrix):
    n = len(matrix)
    return jnp.sum((matrix - jnp.trace(matrix) / n * jnp.eye(n)) ** 2)


penalty_gradient = jax.jit(jax.grad(penalty))


@FEW
@given(spsd(), st.floats(-0.5, 1.5))
def test_a_sphere_step_is_a_gradient_step_and_shrinks_every_gap_to_the_mean(case, eta):
    """[prop:frob-shift-identity, lem:sphere-spectral-gradient]"""
    n, size = len(case.spectrum), case.spectrum[-1]
    matrix = jnp.asarray(case.matrix)
    expanded = np.sum(case.matrix**2) - np.trace(case.matrix) ** 2 / n
    assert_allclose(penalty(matrix), expanded, atol=1e-12 * size**2)
    after = spectrum.sphere_step(matrix, eta)
    assert_allclose(after, matrix - eta * penalty_gradient(matrix), atol=1e-12 * size)
    mean = case.spectrum.mean()
    assert_allclose(np.trace(after), n * mean, rtol=1e-12)
    want = np.sort(mean + (1 - 2 * eta) * (case.spectrum - mean))
    assert_allclose(np.linalg.eigvalsh(after), want, atol=1e-12 * size)
    assert_allclose(penalty(after), (1 - 2 * eta) ** 2 * penalty(matrix), atol=1e-12 * size**2)


@FEW
@given(spsd(), fractions)
def test_contraction_lowers_the_condition_number_and_raises_the_effective_rank(case, beta):
    """[def:spectral-contraction, lem:spectral-contraction-monotone, cor:sphere-monotone-re-cond]"""
    after = spectrum.spectral_contraction(case.matrix, beta)
    assert_allclose(after, spectrum.sphere_step(case.matrix, beta / 2), rtol=1e-12)
    want = (1 - beta) * case.spectrum + beta * case.spectrum.mean()
    assert_allclose(np.linalg.eigvalsh(after), want, atol=1e-13 * case.spectrum[-1])
    assert spectrum.condition_number(after) <= spectrum.condition_number(case.matrix) * (1 + 1e-7)
    assert spectrum.effective_rank_spsd(after) >= spectrum.effective_rank_spsd(case.matrix) * (1 - SLACK)


@FEW
@given(spsd())
def test_contraction_by_one_gives_the_mean_and_by_zero_nothing(case):
    n = len(case.spectrum)
    flat = spectrum.spectral_contraction(case.matrix, 1.0)
    assert_allclose(flat, case.spectrum.mean() * np.eye(n), atol=1e-13 * case.spectrum[-1])
    assert_allclose(spectrum.spectral_contraction(case.matrix, 0.0), case.matrix, rtol=0)


@FEW
@given(factors(), fractions)
def test_contracting_the_features_raises_the_lower_bounds(case, beta):
    """[lem:kron-preserve-sc, prop:feature-spectral-improves-bound, prop:kfac-monotonicity,
    cor:spectral-contraction-maximizes-proxy-lb, cor:spectral-contraction-maximizes-A-lb]"""
    a, g, sizes, widths = case
    k = int(np.dot(sizes, widths))
    after = np.asarray(spectrum.spectral_contraction(a.matrix, beta))
    before_bound = bounds.kronecker_lower_bound(a.matrix, g.matrix, k)
    after_bound = bounds.kronecker_lower_bound(after, g.matrix, k)
    assert after_bound >= before_bound * (1 - SLACK)
    assert after_bound <= k / spectral_condition(g.spectrum) * (1 + 1e-6) <= k * (1 + 1e-5)
    proxies = [np.kron(features, g.matrix) for features in (a.matrix, after)]
    conditions = [float(spectrum.condition_number(proxy)) for proxy in proxies]
    assert conditions[1] <= conditions[0] * (1 + 1e-6)
    ranks = [float(spectrum.kronecker_effective_rank(features, g.matrix)) for features in (a.matrix, after)]
    assert ranks[1] >= ranks[0] * (1 - SLACK)
    whole = spectrum.spectral_contraction(proxies[0], beta)  # the regulariser on the proxy itself
    assert spectrum.condition_number(whole) <= conditions[0] * (1 + 1e-6)


@FEW
@given(factors(), factors(), spsd(dimensions=(2,)), fractions)
def test_contraction_raises_a_lower_bound_on_spectral_plasticity(first, second, gate, beta):
    """[thm:spectral-contraction-increases-reK-lb, thm:sphere-monotone-lb-reK] on the surrogate model."""

    def lower_bound(layers, masses):
        values = [bounds.kronecker_lower_bound(a, g, k) for a, g, k in layers]
        return float(bounds.spectral_plasticity_lower_bound([gate.matrix], masses, jnp.stack(values)))

    layers, masses, products = [], [], []
    for a, g, sizes, widths in (first, second):
        layers.append((a.matrix, g.matrix, int(np.dot(sizes, widths))))
        masses.append(jnp.vdot(spectrum.block_traces(a.matrix, sizes), spectrum.block_traces(g.matrix, widths)))
        products.append(brute_khatri_rao(a.matrix, g.matrix, sizes, widths))
        assert_allclose(masses[-1], np.trace(products[-1]), rtol=1e-10)
    masses = jnp.stack(masses)

    before = lower_bound(layers, masses)
    alpha = np.array([gate.spectrum.sum(), *masses]) / (gate.spectrum.sum() + masses.sum())
    parts = [np.exp(entropy(gate.spectrum))]
    parts += [k / (np.linalg.cond(a) * np.linalg.cond(g)) for a, g, k in layers]
    assert_allclose(before, np.exp(entropy(alpha) + alpha @ np.log(parts)), rtol=1e-6)
    assert before <= rank_of(scipy.linalg.block_diag(gate.matrix, *products)) * (1 + SLACK)
    layers[0] = (spectrum.spectral_contraction(layers[0][0], beta), *layers[0][1:])
    assert lower_bound(layers, masses) >= before * (1 - SLACK)


def test_a_singular_layer_leaves_only_the_trivial_bound_of_zero():
    bound = bounds.spectral_plasticity_lower_bound([np.eye(2)], jnp.asarray([1.0, 2.0]), jnp.asarray([0.0, 3.0]))
    assert bound == 0
    # ... but not where the layer has no mass: (1/2) (log 2 + log 3) + log 2 of the two equal weights
    bound = bounds.spectral_plasticity_lower_bound([np.eye(2)], jnp.asarray([0.0, 2.0]), jnp.asarray([0.0, 3.0]))
    assert_allclose(bound, 2 * np.sqrt(6), rtol=1e-12)
