"""What the paper's theory does and does not say: every counterexample of docs/theory.md, in float64.

The judges are definitions in numpy (`matrices.rank_of`) and Jacobians by automatic differentiation. Numbers stand on
the page as they stand here.
"""

from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrices import FEW, diagonal, entropy, features_with, rank, rank_of, rectangular, seeds
from networks import ACT, network, states
from numpy.testing import assert_allclose

from sphere import bounds, spectrum
from sphere.nets import NetConfig, build
from sphere.nets.trace import expert_signals
from sphere.penalty import anisotropy, gram, scale_free
from sphere.variants import feature_blocks, gradient_blocks

pytestmark = pytest.mark.usefixtures("double_precision")
SLACK = 1e-9


def feature_step(phi, step_size):
    """One step of gradient descent on the penalty, by automatic differentiation through the features."""
    return np.asarray(phi - step_size * jax.grad(lambda phi: anisotropy(gram(phi)))(jnp.asarray(phi)))


def spectrum_of(phi):
    return np.sort(np.linalg.eigvalsh(phi.T @ phi / len(phi)))[::-1]


@pytest.fixture(scope="module")
def actor(double_precision):
    """A Top-2 mixture of five experts, its Jacobian of the summed outputs by parameter, and its traces."""
    net = network("top-k", compute="dense")
    net = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), net)
    x = states(6).astype(jnp.float64)
    params, tree = jax.tree_util.tree_flatten_with_path(net)
    names = [jax.tree_util.keystr(path) for path, _ in params]

    def outputs(leaves):
        return jax.tree.unflatten(tree, leaves)(x)[0].sum(axis=1)

    leaves = jax.jit(jax.jacrev(outputs))([leaf for _, leaf in params])
    jacobian = {
        name: np.asarray(leaf).reshape(len(x), -1)
        for name, leaf in zip(names, leaves, strict=True)
        if "temperature" not in name
    }
    return SimpleNamespace(net=net, x=x, mixture=net(x)[1].mixtures[-1], jacobian=jacobian)


def feature_gram(actor):
    """A_last [m, m]."""
    phi = np.asarray(feature_blocks(actor.mixture)).reshape(len(actor.x), -1)
    return phi.T @ phi / len(phi)


# What holds


@FEW
@given(st.lists(st.floats(0.0, 10.0), min_size=3, max_size=3), st.floats(0.0, 1.0))
def test_contraction_raises_the_effective_rank_itself(values, beta):
    matrix = diagonal(*values, 1.0)
    contracted = np.asarray(spectrum.spectral_contraction(matrix, beta))
    assert rank_of(contracted) >= rank_of(matrix) - SLACK


def test_at_the_output_block_the_effective_rank_is_that_of_a_last(actor):
    kernels = actor.jacobian[".experts.head.kernel"]
    assert_allclose(rank_of(kernels @ kernels.T), rank_of(feature_gram(actor)), rtol=1e-10)


@FEW
@given(st.lists(rectangular(((5, 2), (5, 5), (5, 1))), min_size=1, max_size=4))
def test_the_layerwise_form_bounds_the_kernel_from_both_sides(jacobians):
    """exp(sum alpha log r_e(K_b)) <= r_e(K) <= exp(H(alpha) + sum alpha log r_e(K_b)),  K = sum of K_b."""
    kernels = [block @ block.T for block in jacobians]
    alpha = np.array([np.trace(kernel) for kernel in kernels]) / sum(map(np.trace, kernels))
    inner = sum(a * np.log(rank_of(kernel)) for a, kernel in zip(alpha, kernels, strict=True))
    whole = np.log(rank_of(sum(kernels)))
    assert inner - SLACK <= whole <= inner + entropy(alpha) + SLACK


def test_the_same_bounds_hold_for_a_network(actor):
    kernels = [block @ block.T for block in actor.jacobian.values()]
    alpha = np.array([np.trace(kernel) for kernel in kernels]) / sum(map(np.trace, kernels))
    inner = sum(a * np.log(rank_of(kernel)) for a, kernel in zip(alpha, kernels, strict=True))
    whole = np.log(rank_of(sum(kernels)))
    assert inner + 0.01 < whole < inner + entropy(alpha) - 0.01  # neither side is reached


@FEW
@given(seeds, st.sampled_from((2, 5)), st.floats(-3.0, 3.0), st.floats(0.01, 1.0))
def test_a_small_step_on_the_features_raises_the_effective_rank(seed, m, exponent, part):
    """For step sizes up to N / (4 (3 lambda_max - mean))."""
    values = 10.0**exponent * np.random.default_rng(seed).uniform(0.01, 1, m)
    n = m + 2
    limit = n / (4 * (3 * values.max() - values.mean()))
    after = spectrum_of(feature_step(features_with(values, n), part * limit))
    assert rank(*after) >= rank(*values) - SLACK
    assert after[0] / after[-1] <= values.max() / values.min() * (1 + SLACK)


# The main theorem says nothing where SPHERE is used


def test_at_the_output_block_the_bound_is_zero_before_and_after(actor):
    signals = np.asarray(eqx.filter_jit(expert_signals)(actor.net, actor.x)[-1]).reshape(len(actor.x), -1)
    gradients = signals.T @ signals / len(signals)
    assert_allclose(gradients, np.ones((5 * ACT, 5 * ACT)))
    assert spectrum.condition_number(gradients) == np.inf
    features = diagonal(4, 1)  # whatever the features are
    for matrix in (features, spectrum.sphere_step(features, 0.5)):
        assert bounds.kronecker_lower_bound(matrix, gradients, 2 * 5 * ACT) == 0


def test_with_separate_outputs_the_gradient_gram_is_still_singular():
    """Output j has the signal e_j in every expert: rank d of E d."""
    experts, outputs = 5, 3
    signals = np.concatenate([np.tile(row, experts)[None] for row in np.eye(outputs)])
    gradients = signals.T @ signals / outputs
    assert np.linalg.matrix_rank(gradients) == outputs
    assert spectrum.condition_number(gradients) == np.inf


def test_with_fewer_samples_than_features_the_feature_gram_is_singular(actor):
    features = feature_gram(actor)
    assert np.linalg.matrix_rank(features) == len(actor.x) < len(features)
    assert spectrum.condition_number(features) == np.inf


def test_a_ridge_gives_a_bound_that_is_the_ridges():
    """Ten times the ridge, ten times the bound; below 1 it says nothing, since r_e >= 1."""
    gradients = np.ones((15, 15))
    found = [float(bounds.kronecker_lower_bound(diagonal(4, 1), gradients, 30, ridge)) for ridge in (1e-6, 1e-5)]
    assert_allclose(found[1] / found[0], 10, rtol=1e-4)
    assert found[1] < 1e-4


# A step on the features is not a step on A


@FEW
@given(seeds, st.floats(0.0, 0.5))
def test_where_the_eigenvalues_go(seed, step_size):
    values, n = np.random.default_rng(seed).uniform(0, 4, 3), 5
    want = values * (1 - 4 * step_size / n * (values - values.mean())) ** 2
    assert_allclose(spectrum_of(feature_step(features_with(values, n), step_size)), np.sort(want)[::-1], atol=1e-12)


def test_half_is_no_safe_step_size():
    before = features_with((4, 1), 2)
    after = spectrum_of(feature_step(before, 0.5))
    assert_allclose(after, [6.25, 1])
    assert_allclose([rank(4, 1), rank(*after)], [1.649, 1.493], atol=1e-3)
    on_the_matrix = np.asarray(spectrum.sphere_step(diagonal(4, 1), 0.5))
    assert_allclose(on_the_matrix, 2.5 * np.eye(2))  # what the proposition is about


@pytest.mark.parametrize("step_size", [1e-4, 1e-2, 1.0, 100.0])
def test_no_step_size_is_safe_for_all_features(step_size):
    values = np.array([4.0, 1.0]) / (2 * step_size)
    after = spectrum_of(feature_step(features_with(values, 2), step_size))
    assert_allclose(rank(*after), rank(6.25, 1))
    assert rank(*after) < rank(*values) - 0.15


def test_a_direction_without_features_gets_none():
    """Gradient descent does not raise the rank, the update of the proof does."""
    phi = features_with((4, 1, 0), 5)
    assert np.linalg.matrix_rank(feature_step(phi, 0.01)) == 2
    assert np.linalg.matrix_rank(spectrum.sphere_step(phi.T @ phi / 5, 0.01)) == 3


# A bound that rises, and what it bounds falls


def test_an_isotropic_feature_gram_can_lower_the_blocks_effective_rank():
    """Two experts of width 1."""
    gradients, sizes = diagonal(4, 1), (1, 1)
    ranks, lower = [], []
    for features in (diagonal(1, 4), np.asarray(spectrum.sphere_step(diagonal(1, 4), 0.5))):
        ranks.append(rank_of(np.asarray(spectrum.khatri_rao(features, gradients, sizes, sizes))))
        lower.append(float(bounds.kronecker_lower_bound(features, gradients, 2)))
    assert_allclose(ranks, [2, 1.649], atol=1e-3)
    assert_allclose(lower, [0.125, 0.5])


def test_the_layerwise_form_is_above_what_it_stands_for():
    """Two layers with equal Jacobians, all factors isotropic: form and lower bound are 2 N, r_e(K) is N."""
    n = 4
    block = np.eye(n)
    form = float(spectrum.block_diagonal_effective_rank([block, block]))
    lower = float(
        bounds.spectral_plasticity_lower_bound([], np.full(2, float(n)), np.full(2, bounds_of_isotropic_factors(n)))
    )
    assert_allclose([form, lower, rank_of(block @ block.T + block @ block.T)], [2 * n, 2 * n, n])


def bounds_of_isotropic_factors(n):
    return float(bounds.kronecker_lower_bound(np.eye(n), np.eye(1), n))


def test_a_layer_that_is_evened_out_and_shrinks_can_lower_the_whole():
    """The theorem holds the layers' weights fixed; a step on the features shrinks the trace of its layer."""
    after = spectrum_of(feature_step(features_with((4, 1), 2), 0.05))
    assert_allclose(after, [2.89, 1.3225])
    assert rank(*after) > rank(4, 1) + 0.1
    assert_allclose([rank(100, 4, 1), rank(100, *after)], [1.240, 1.215], atol=1e-3)


# The penalty


def test_a_smaller_penalty_can_come_with_a_smaller_effective_rank():
    def of(*eigenvalues):
        phi = jnp.asarray(features_with(eigenvalues, 2))
        return float(anisotropy(gram(phi))), float(scale_free(gram(phi)))

    before, after = of(4, 1), of(2, 0.25)
    assert_allclose([before[0], after[0]], [4.5, 1.53125])
    assert_allclose([rank(4, 1), rank(2, 0.25)], [1.649, 1.417], atol=1e-3)
    assert after[1] > before[1]  # the scale-free form sees it


def test_with_fewer_samples_than_features_the_penalty_shrinks_an_even_spectrum():
    """N = 2 samples, m = 20 features, spectrum as even as it can be: only the scale is left to be lowered."""
    phi = features_with((1, 1), 2) @ np.eye(2, 20)
    assert_allclose(rank_of(phi.T @ phi), 2)
    assert_allclose(float(anisotropy(gram(jnp.asarray(phi)))), 2 * (1 - 2 / 20))
    after = spectrum_of(feature_step(phi, 0.1))[:2]
    assert_allclose(after, np.full(2, (1 - 4 * 0.1 / 2 * 0.9) ** 2))
    slope = jax.grad(lambda phi: scale_free(gram(phi)))(jnp.asarray(phi))
    assert_allclose(slope, 0, atol=1e-12)


# The gate


def test_one_gate_parameter_can_decide_the_effective_rank_of_all():
    experts = np.ones(10)
    assert_allclose(rank(*experts), 10)
    assert_allclose(rank(1000, *experts), 1.082, atol=1e-3)
    assert_allclose(rank(0.001, *experts), 10, atol=0.01)


def test_many_gate_parameters_can_count_for_nothing():
    """Top-1 with a softmax over the chosen expert: the weight is 1, and the gate has no gradient."""
    net = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), network("top-k", top_k=1))
    x = states(6).astype(jnp.float64)
    gradient = jax.jit(jax.grad(lambda gate: jnp.sum(swapped(net, gate)(x)[0])))(net.router.gate)
    leaves = jax.tree.leaves(gradient)
    assert sum(leaf.size for leaf in leaves) == 485
    assert not any(np.any(leaf) for leaf in leaves)


def test_the_gate_of_metaworld_has_as_many_parameters_as_the_page_says():
    """Its inputs are 39 numbers; sizes alone, nothing is built."""
    net = eqx.filter_eval_shape(lambda key: build(NetConfig(), 39, 4, key=key), jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(net.router.gate))
    assert count == 144_394
    assert f"{count:,}" in (Path(__file__).parents[1] / "docs" / "theory.md").read_text("utf-8")


def swapped(net, gate):
    return eqx.tree_at(lambda net: net.router.gate, net, gate)


def test_a_gate_has_room_for_any_effective_rank_that_a_batch_can_have(actor):
    gate = np.concatenate([block for name, block in actor.jacobian.items() if "router" in name], axis=1)
    assert gate.shape[1] > len(actor.x)
    assert np.linalg.matrix_rank(gate) == len(actor.x)


# The variants `kronecker` and `khatri-rao`


def test_features_after_a_layer_do_not_belong_to_the_signal_at_it(actor):
    """For one sample A * G is exact. A before the layer gives its block, A after it the block of no layer."""
    signal = np.asarray(eqx.filter_jit(gradient_blocks)(actor.net, actor.x))[0]

    def trace(layer):
        features = np.asarray(feature_blocks(actor.mixture, layer))[0]
        return float(np.sum(np.sum(features**2, axis=1) * np.sum(signal**2, axis=1)))

    exact = {name: float(np.sum(block[0] ** 2)) for name, block in actor.jacobian.items()}
    assert_allclose(trace(-2), exact[".experts.hidden[1].kernel"], rtol=1e-10)
    assert all(abs(trace(-1) / value - 1) > 0.01 for value in exact.values() if value)
