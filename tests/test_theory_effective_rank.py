"""The paper's statements about the effective rank, its identities and mixtures, in float64."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from matrices import FEW, entropy, orthogonal, rank_of, rectangular, seeds, spectral_condition, spsd
from numpy.testing import assert_allclose

from sphere import spectrum

pytestmark = pytest.mark.usefixtures("double_precision")
SLACK = 1e-9  # of rounding, against sides of order one


@FEW
@given(spsd())
def test_effective_rank_is_the_exponential_of_the_entropy_of_the_spectrum(case):
    want = np.exp(entropy(case.spectrum))
    assert_allclose(spectrum.effective_rank(case.matrix), want, rtol=1e-8)
    assert_allclose(spectrum.effective_rank_spsd(case.matrix), want, rtol=1e-8)
    assert_allclose(spectrum.eigenvalues(case.matrix), case.spectrum, atol=1e-14 * case.spectrum[-1])


@FEW
@given(rectangular())
def test_effective_rank_is_at_most_the_rank(matrix):
    """r_e(M) <= rank(M) <= min(m, n)."""
    assert 1 - SLACK <= spectrum.effective_rank(matrix) <= np.linalg.matrix_rank(matrix) + SLACK


@FEW
@given(st.integers(1, 5), st.floats(1e-3, 1e3), seeds)
def test_effective_rank_equals_the_rank_where_the_nonzero_singular_values_are_equal(rank, scale, seed):
    rng = np.random.default_rng(seed)
    matrix = scale * orthogonal(rng, 8)[:, :rank] @ orthogonal(rng, 5)[:rank]
    assert_allclose(spectrum.effective_rank(matrix), rank, rtol=1e-12)


@FEW
@given(spsd(full_rank=True))
def test_only_a_scaled_identity_reaches_the_dimension(case):
    """[prop:psd-max-effrank]"""
    n = len(case.spectrum)
    value = float(spectrum.effective_rank_spsd(case.matrix))
    assert value <= n + SLACK
    if spectral_condition(case.spectrum) > 1.01:
        assert value < n - 1e-6
    assert_allclose(spectrum.effective_rank_spsd(case.spectrum[-1] * np.eye(n)), n, rtol=1e-12)


@FEW
@given(rectangular(), st.floats(1e-3, 1e3))
def test_kernel_and_gauss_newton_matrix_have_one_effective_rank(jacobian, scale):
    """r_e(J J^T) = r_e(J^T J) = r_e(c J^T J)  (Eq. reK-reGGN)."""
    want = np.exp(entropy(np.linalg.svd(jacobian, compute_uv=False) ** 2))
    for gram in (jacobian @ jacobian.T, jacobian.T @ jacobian, scale * jacobian.T @ jacobian):
        assert_allclose(spectrum.effective_rank_spsd(gram), want, rtol=1e-8)


@FEW
@given(st.lists(rectangular(((1, 1), (3, 2), (2, 5)), allow_zero=True), min_size=1, max_size=3))
def test_direct_sum_is_a_mixture_of_its_blocks(blocks):
    """[lem:block-effrank]"""
    whole = scipy.linalg.block_diag(*blocks)
    if whole.any():
        assert_allclose(spectrum.block_diagonal_effective_rank(blocks), rank_of(whole), rtol=1e-8)


@FEW
@given(seeds)
def test_layerwise_mixture_is_exact_for_layers_that_do_not_interact(seed):
    """[prop:block-mixture-entk], with blocks of either space: J_l^T J_l' = 0 makes G block-diagonal."""
    rng = np.random.default_rng(seed)
    basis = orthogonal(rng, 6)
    widths = (3, 4, 2)
    layers = [
        basis[:, cut] @ (10.0 ** rng.uniform(-2, 2) * rng.standard_normal((2, width)))
        for cut, width in zip((slice(0, 2), slice(2, 4), slice(4, 6)), widths, strict=True)
    ]
    kernel = sum(j @ j.T for j in layers)
    features = [j.T @ j / 6 for j in layers]
    samples = [j @ j.T / 6 for j in layers]
    want = rank_of(kernel)
    assert_allclose(rank_of(np.hstack(layers).T @ np.hstack(layers)), want, rtol=1e-8)
    assert_allclose(spectrum.layerwise_effective_rank(features[:1], features[1:]), want, rtol=1e-8)
    assert_allclose(spectrum.layerwise_effective_rank(samples[:1], samples[1:]), want, rtol=1e-8)
    # A gate without gradient, as in a dense network, contributes zeros only.
    assert_allclose(spectrum.layerwise_effective_rank([np.zeros((2, 2))], features), want, rtol=1e-8)


@FEW
@given(rectangular(((2, 3), (3, 3))), rectangular(((2, 2), (3, 1))))
def test_kronecker_products_multiply_effective_ranks(left, right):
    """[lem:kron-effrank, cor:kfac-block-effrank]"""
    assert_allclose(spectrum.kronecker_effective_rank(left, right), rank_of(np.kron(left, right)), rtol=1e-8)


@FEW
@given(spsd(), st.floats(-6.0, 2.0))
def test_a_ridge_makes_the_condition_number_finite(case, exponent):
    """[lem:spsd-to-spd]"""
    ridge = case.spectrum[-1] * 10.0**exponent
    shifted = case.matrix + ridge * np.eye(len(case.spectrum))
    assert np.linalg.eigvalsh(shifted)[0] > 0
    assert_allclose(np.linalg.norm(shifted - case.matrix, 2), ridge, rtol=1e-6)
    want = spectral_condition(case.spectrum + ridge)
    assert_allclose(spectrum.condition_number(case.matrix, ridge), want, rtol=1e-6)
    assert_allclose(spectrum.condition_number(shifted), want, rtol=1e-6)


@FEW
@given(spsd())
def test_condition_number_is_infinite_exactly_for_singular_matrices(case):
    found = spectrum.condition_number(case.matrix)
    if case.spectrum[0] == 0:
        assert found == np.inf
    else:
        assert_allclose(found, spectral_condition(case.spectrum), rtol=1e-6)
