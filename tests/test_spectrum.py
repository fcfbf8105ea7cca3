"""The spectral functions as a user meets them: by hand, under jit, vmap and grad, in float32.

That the equations are right is for `test_theory.py`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from matrices import FEW, entropy, known, seeds, spsd
from numpy.testing import assert_allclose

from sphere import bounds, spectrum

SIZES = (2, 3)


def gram(seed=0, n=5, rank=5):
    return known(n, rank, spread=1.0, scale=2.0, seed=seed).matrix


# Each function of one Gram matrix to one number, for what holds of all of them.
SCALARS = {
    "effective_rank": spectrum.effective_rank,
    "effective_rank_spsd": spectrum.effective_rank_spsd,
    "intrinsic_dimension": spectrum.intrinsic_dimension,
    "condition_number": spectrum.condition_number,
    "kronecker_effective_rank": lambda m: spectrum.kronecker_effective_rank(m, jnp.eye(2)),
    "block_diagonal_effective_rank": lambda m: spectrum.block_diagonal_effective_rank([m, 2 * m]),
    "layerwise_effective_rank": lambda m: spectrum.layerwise_effective_rank([m], [2 * m]),
    "effective_rank_lower_bound": lambda m: bounds.effective_rank_lower_bound(m, 3),
    "kronecker_lower_bound": lambda m: bounds.kronecker_lower_bound(m, jnp.diag(jnp.arange(1.0, 4.0)), 6),
    "spectral_plasticity_lower_bound": lambda m: bounds.spectral_plasticity_lower_bound([m], jnp.ones(1), jnp.ones(1)),
    "expert_trace_weights": lambda m: spectrum.expert_trace_weights(m, SIZES)[0],
    "decoupled_effective_rank": lambda m: spectrum.decoupled_effective_rank(m, SIZES),
    "cross_expert_coupling": lambda m: sum(bounds.cross_expert_coupling(m, SIZES)),
    "coupled_condition_number": lambda m: bounds.coupled_condition_number(m, SIZES).left,
    "effective_rank_stability": lambda m: sum(bounds.effective_rank_stability(m, jnp.eye(5))),
    "gate_expert_decoupling": lambda m: sum(bounds.gate_expert_decoupling(m, jnp.eye(5), 40)),
    "ignoring_gate": lambda m: sum(bounds.ignoring_gate(m, jnp.eye(5), 40)),
    "block_cosine": lambda m: bounds.block_cosine(m, jnp.diag(jnp.arange(1.0, 6.0))),
    "kfac_factorization": lambda m: sum(bounds.kfac_factorization(m, jnp.eye(5))),
}


def test_effective_rank_by_hand():
    assert_allclose(spectrum.effective_rank(jnp.diag(jnp.asarray([3.0, 1.0]))), 4 / 3**0.75, rtol=1e-6)
    assert_allclose(spectrum.effective_rank(jnp.asarray([[3.0, 4.0]])), 1.0, rtol=1e-6)
    assert_allclose(spectrum.effective_rank(jnp.asarray([[0.0, 2.0], [-2.0, 0.0], [0.0, 0.0]])), 2.0, rtol=1e-6)
    # No symmetry is needed: this one has both eigenvalues 1 and singular values golden ratio and its inverse.
    golden = (1 + 5**0.5) / 2
    shear = jnp.asarray([[1.0, 1.0], [0.0, 1.0]])
    assert_allclose(spectrum.effective_rank(shear), np.exp(entropy([golden, 1 / golden])), rtol=1e-6)


def test_entropy_by_hand():
    assert_allclose(spectrum.spectral_entropy(jnp.asarray([1.0, 0.0, 1.0, 2.0])), 1.5 * np.log(2), rtol=1e-6)
    assert spectrum.spectral_entropy(jnp.asarray([5.0])) == 0


def test_what_rounding_leaves_of_zero_eigenvalues_counts_as_zero():
    """Rank one in 100 dimensions: the other float32 eigenvalues are about 1e-7 of it, some below zero."""
    row = np.random.default_rng(0).standard_normal((1, 100)).astype(np.float32)
    matrix = jnp.asarray(row.T @ row)
    raw = jnp.linalg.eigvalsh(matrix)
    assert raw.min() < 0
    assert spectrum.effective_rank_spsd(matrix) == 1
    assert spectrum.condition_number(matrix) == np.inf
    assert np.sum(spectrum.eigenvalues(matrix) > 0) == np.linalg.matrix_rank(np.asarray(matrix)) == 1


@pytest.mark.parametrize("scale", [1e-30, 1e30, 3e37])
def test_scale_does_not_matter_even_at_the_ends_of_float32(scale):
    matrix = np.float32(scale) * np.diag(np.float32([1, 2, 3, 4, 5]))
    want = np.exp(entropy([1, 2, 3, 4, 5]))
    assert_allclose(spectrum.effective_rank(matrix), want, rtol=1e-5)
    assert_allclose(spectrum.effective_rank_spsd(matrix), want, rtol=1e-5)
    assert_allclose(spectrum.condition_number(matrix), 5, rtol=1e-5)


@FEW
@given(spsd(spread=2.0))
def test_float32_agrees_with_the_known_spectrum(case):
    matrix = case.matrix.astype(np.float32)
    assert spectrum.effective_rank(matrix).dtype == jnp.float32
    assert_allclose(spectrum.effective_rank(matrix), np.exp(entropy(case.spectrum)), rtol=1e-4)
    assert_allclose(spectrum.effective_rank_spsd(matrix), np.exp(entropy(case.spectrum)), rtol=1e-4)


def test_other_kinds_of_numbers_are_taken_as_float32():
    for matrix in ([[3, 0], [0, 1]], np.diag([3, 1]), jnp.diag(jnp.asarray([3.0, 1.0], jnp.bfloat16))):
        found = spectrum.effective_rank(matrix)
        assert found.dtype == jnp.float32
        assert_allclose(found, 4 / 3**0.75, rtol=1e-6)


# Transformations
STEP = 1e-6
REGULAR = [gram(1), gram(1) + STEP * gram(2), gram(1) - STEP * gram(2)]
DEGENERATE = {
    "zero": np.zeros((5, 5)),
    "singular": gram(rank=2),
    "identity": np.eye(5),
    "projection": np.diag([1.0, 1, 0, 0, 0]),
}
NOT_FINITE = [np.diag([1, bad, 1, 1, 1]) for bad in (np.nan, np.inf, -np.inf)]


@functools.cache
def values_and_gradients(name):
    """Of all these matrices in one compilation, which is what the tests below would spend their time on."""
    with jax.enable_x64(True):
        batch = jnp.stack([jnp.asarray(m) for m in (*REGULAR, *DEGENERATE.values(), *NOT_FINITE)])
        return jax.jit(jax.vmap(jax.value_and_grad(SCALARS[name])))(batch)


@pytest.mark.parametrize("name", SCALARS)
def test_values_and_gradients_under_jit_and_vmap(name, x64):
    """Against the eager value, and against finite differences along a direction."""
    values, gradients = values_and_gradients(name)
    assert values.dtype == jnp.float64
    assert_allclose(values[0], SCALARS[name](REGULAR[0]), rtol=1e-10)
    slope = (values[1] - values[2]) / (2 * STEP)
    assert_allclose(np.vdot(gradients[0], gram(2)), slope, rtol=1e-5, atol=1e-8)


@FEW
@given(seeds)
def test_gradient_at_a_singular_matrix_is_the_textbook_one_on_its_range(seed):
    """dr_e = r_e sum_i -(log p_i + H) / Tr(M)  u_i^T dM u_i over the nonzero eigenvalues."""
    case = known(5, 3, 2.0, 1.0, seed)
    values, vectors = np.linalg.eigh(case.matrix)
    p = values[2:] / values[2:].sum()
    weights = -np.exp(entropy(p)) * (np.log(p) + entropy(p)) / values[2:].sum()
    want = (vectors[:, 2:] * weights) @ vectors[:, 2:].T
    with jax.enable_x64(True):
        for function in (spectrum.effective_rank, spectrum.effective_rank_spsd):
            assert_allclose(jax.grad(function)(jnp.asarray(case.matrix)), want, atol=1e-8 * np.abs(want).max())


def test_ridge_and_contraction_can_be_traced():
    matrix = jnp.diag(jnp.asarray([1.0, 3.0]))
    ridges = jnp.asarray([0.0, 1.0])
    assert_allclose(jax.vmap(lambda r: spectrum.condition_number(matrix, r))(ridges), [3, 2], rtol=1e-6)
    steps = jax.vmap(lambda beta: spectrum.spectral_contraction(matrix, beta))(jnp.asarray([0.0, 0.5]))
    assert_allclose(steps, [np.diag([1.0, 3.0]), np.diag([1.5, 2.5])], rtol=1e-6)
    assert_allclose(jax.jit(spectrum.sphere_step)(matrix, 0.25), np.diag([1.5, 2.5]), rtol=1e-6)


def test_block_products_can_be_traced():
    a, g = jnp.asarray(gram(0), jnp.float32), jnp.asarray(gram(1, 3, 3), jnp.float32)
    for function in (spectrum.khatri_rao, spectrum.tracy_singh):
        compiled = jax.jit(function, static_argnums=(2, 3))
        assert_allclose(compiled(a, g, SIZES, (1, 2)), function(a, g, SIZES, (1, 2)), rtol=1e-6)


def test_routed_weights_can_be_traced():
    gates = jnp.asarray([[1.0, 0.0], [0.5, 0.5]])
    features = jnp.ones((2, 2, 3))
    assert_allclose(jax.jit(spectrum.routed_trace_weights)(gates, features), [5 / 6, 1 / 6], rtol=1e-6)
    assert_allclose(jax.jit(spectrum.routed_trace_weights)(0 * gates, features), [0, 0], atol=0)


# Inside jit there are no errors, only documented values
AT_ZERO = dict.fromkeys(SCALARS, 0.0) | {
    "condition_number": np.inf,
    "coupled_condition_number": np.inf,
    "spectral_plasticity_lower_bound": 1.0,  # of the expert layer that is not zero
    "cross_expert_coupling": np.log(5),  # the trivial bound; likewise below, beside the entropy of the identity
    "effective_rank_stability": 2 * np.log(5),
}


@pytest.mark.parametrize("name", SCALARS)
def test_inside_jit_zero_has_its_value_gradients_are_finite_and_nan_stays_nan(name):
    values, gradients = (part[len(REGULAR) :] for part in values_and_gradients(name))
    assert_allclose(values[0], AT_ZERO[name], rtol=1e-12)
    for value, gradient, kind in zip(values, gradients, DEGENERATE, strict=False):
        assert not np.isnan(value), kind
        assert np.isfinite(gradient).all(), kind
    assert np.isnan(values[len(DEGENERATE) :]).all()


@pytest.mark.parametrize("name", SCALARS)
def test_gradients_of_what_is_not_finite_are_nan(name):
    """The last matrices hold a NaN, an infinity, and minus infinity; of a function of the diagonal the rest is 0."""
    _, gradients = values_and_gradients(name)
    for gradient in gradients[-3:]:
        assert np.isnan(np.diagonal(gradient)).any()


def test_float32_gradient_at_a_rank_one_matrix():
    gradient = jax.grad(spectrum.effective_rank)(jnp.ones((3, 4), jnp.float32))
    assert gradient.dtype == jnp.float32
    assert_allclose(gradient, np.zeros((3, 4)), atol=1e-6)  # one direction: p = 1 whatever its size


def test_known_numbers_inside_jit_are_still_checked():
    """A constant closed over is known while tracing: good ones pass, bad ones raise there and then."""
    constant = np.eye(3, dtype=np.float32)
    assert_allclose(jax.jit(lambda: spectrum.effective_rank_spsd(constant))(), 3, rtol=1e-6)
    with pytest.raises(ValueError, match="all zeros"):
        jax.jit(lambda: spectrum.effective_rank_spsd(0 * constant))()
