"""NaN in gives NaN out, in values and gradients; very large features work, or are refused in a sentence."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import ACT, network, states
from test_diagnostics_made import made

import sphere
from sphere import bounds, diagnostics, penalty, spectrum, values
from sphere.coefficient import penalised_value_and_grad
from sphere.diagnostics import diagnose
from sphere.nets import GaussianActor
from sphere.variants import VARIANTS, PenaltyConfig
from sphere.variants import penalty as penalty_of

NAN = float("nan")


# NaN


def test_the_gradient_of_effective_rank_is_nan_where_its_matrix_is():
    for matrix in (jnp.eye(3).at[0, 2].set(jnp.nan), jnp.eye(3).at[0, 2].set(-jnp.inf)):
        for rank in (spectrum.effective_rank, spectrum.effective_rank_spsd, sphere.effective_rank):
            value, gradient = jax.value_and_grad(rank)(matrix)
            assert np.isnan(value)
            assert np.isnan(gradient).all()


def test_both_sides_of_a_bound_are_nan():
    good = jnp.diag(jnp.arange(1.0, 5.0))
    for bad in (good.at[0, 0].set(jnp.nan), good.at[0, 0].set(jnp.inf), good.at[0, 0].set(-jnp.inf)):
        found = jax.jit(lambda m: bounds.gate_expert_decoupling(m, jnp.eye(4), 40))(bad)
        assert np.isnan(found).all()
        assert np.isnan(jax.jit(lambda m: bounds.effective_rank_stability(m, jnp.eye(4)))(bad)).all()


def test_weights_and_ranks_that_are_nan():
    for weights in ([NAN], [1.0, NAN], [0.0, NAN], [NAN, NAN]):
        value, gradient = jax.jit(jax.value_and_grad(spectrum.spectral_entropy))(jnp.asarray(weights))
        assert np.isnan(value)
        assert np.isnan(gradient).any()
    mixture = jax.jit(spectrum.mixture_effective_rank)
    for ranks in ([0.0, NAN], [2.0, NAN]):  # a block of rank 0 does not hide one that is NaN
        assert np.isnan(mixture(jnp.ones(2), jnp.asarray(ranks)))
    assert np.isnan(mixture(jnp.asarray([1.0, 0.0]), jnp.asarray([2.0, NAN])))  # nor does it have no mass
    assert mixture(jnp.ones(2), jnp.asarray([0.0, 3.0])) == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_a_network_of_nan_is_nan_and_so_is_its_gradient(variant):
    net = network("top-k", width=4, experts=3, depth=1, compute="dense")
    x = states(6).at[2, 1].set(jnp.nan)
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def value(params):
        net = eqx.combine(params, static)
        return penalty_of(PenaltyConfig(variant=variant), net, x, net(x)[1])

    found, gradient = jax.jit(jax.value_and_grad(value))(params)
    assert np.isnan(found)
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(gradient))


def test_a_dead_network_has_layer_entropy_zero():
    """What is left of the trace is the head's bias: shares 0 and 1, and 0 log 0 is no NaN."""
    net, x = jax.tree.map(jnp.zeros_like, network("mlp", width=4, depth=1)), jnp.zeros((6, 7))
    value = jax.jit(lambda net: penalty_of(PenaltyConfig(variant="layer-entropy"), net, x, net(x)[1]))
    assert float(value(net)) == 0


@pytest.mark.parametrize("floor", [None, 1e-12])
def test_the_coefficient_of_a_penalty_that_is_nan_is_nan(floor):
    def losses(params, weight):
        return jnp.sum(params**2), weight * jnp.sum(params), None

    run = jax.jit(penalised_value_and_grad(losses, floor=floor, felt=True))
    for params, weight in ((jnp.ones(3), NAN), (jnp.full(3, NAN), 1.0)):
        found, gradient = run(params, 0.1, weight)
        assert np.isnan(found.coefficient)
        assert np.isnan(found.felt)
        assert np.isnan(gradient).all()
    found, gradient = run(jnp.zeros(3), 0.1, 0.0)  # nothing to weigh: 0, as before
    assert np.isfinite(found.coefficient)
    np.testing.assert_array_equal(gradient, 0)


def test_every_diagnostic_of_a_diverged_network_is_nan():
    actor = GaussianActor(network("top-k", width=4, experts=3, depth=1, compute="dense"), ACT)
    whole = diagnose(actor, states(12))._asdict()
    assert not any(np.isnan(value) for value in whole.values())
    broken = diagnose(jax.tree.map(lambda leaf: leaf * jnp.nan, actor), states(12))._asdict()
    assert {name for name, value in broken.items() if not np.isnan(value)} == set()


def test_one_nan_feature_reaches_what_is_made_of_it():
    features = np.random.default_rng(0).normal(size=(6, 3, 4))
    features[2, 1, 0] = np.nan
    mixture = made([features], np.ones((6, 3)), aligned=True, embedding=np.arange(12.0).reshape(6, 2))
    found = eqx.filter_jit(diagnostics.health)(mixture)
    features_only = {"feature_rank", "dormant_ratio", "feature_norm", "overlap", "orthogonality"}
    nan = {name for name, value in found.items() if np.isnan(value)} - {"silhouette"}  # of one cluster: does not apply
    assert nan == features_only | {"trace_weight_entropy"}


# Large numbers


def test_ordinary_numbers_keep_their_bits_and_large_ones_are_scaled_by_a_power_of_two():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.float32)
    for scale in (1e-30, 1.0, 1e6):
        found, factor = values.moderate(scale * x)
        assert factor == 1
        np.testing.assert_array_equal(found, scale * x)
    for scale in (1e9, 1e18, 1e38):
        found, factor = values.moderate(scale * x)
        assert float(np.log2(factor)) == round(float(np.log2(factor)))
        assert 0.01 < np.abs(found).max() <= 512
        np.testing.assert_array_equal(found / factor, scale * x)
    assert np.isnan(values.moderate(jnp.asarray([1.0, jnp.nan]))[0][1])


@pytest.mark.parametrize(("scale", "known"), [(1e18, True), (3e37, True), (1e38, False)])
def test_a_spectrum_that_overflows_is_nan_and_not_zero(scale, known):
    """The largest singular value of the last is beyond float32, though no entry is."""
    matrix = np.random.default_rng(3).normal(size=(7, 4)).astype(np.float32)
    found = spectrum.effective_rank(np.float32(scale) * matrix)
    assert np.isnan(found) != known
    if known:
        np.testing.assert_allclose(found, spectrum.effective_rank(matrix), rtol=1e-5)


@pytest.mark.parametrize("scale", [1e15, 1e18, 3e37])
def test_features_whose_penalty_does_not_fit_are_refused(scale):
    phi = scale * np.random.default_rng(2).normal(size=(8, 4)).astype(np.float32)
    with pytest.raises(ValueError, match=r"too large .* \(up to about 1e9 they do in float32\); divide them"):
        sphere.sphere_penalty(phi)
    with pytest.raises(ValueError, match="too large"):
        sphere.routed_penalty(phi[:, None], jnp.zeros((8, 1), int), 3)
    assert not np.isfinite(jax.jit(sphere.sphere_penalty)(phi))  # inside jit: not a number that could be taken for one


def test_features_of_1e9_have_the_penalty_of_double_precision():
    phi = 1e9 * np.random.default_rng(3).normal(size=(8, 4)).astype(np.float32)
    a = phi.astype(float).T @ phi.astype(float) / 8
    want = np.sum((a - np.trace(a) / 4 * np.eye(4)) ** 2)
    np.testing.assert_allclose(sphere.sphere_penalty(phi), want, rtol=1e-5)


def scaled(mixture, scale):
    return eqx.tree_at(lambda m: m.hidden, mixture, tuple(scale * hidden for hidden in mixture.hidden))


@pytest.mark.parametrize("scale", [1e18, 1e30])
@pytest.mark.parametrize("aligned", [True, False])
def test_diagnostics_of_features_of_1e18_are_those_of_ordinary_ones(scale, aligned):
    rng = np.random.default_rng(4)
    chosen = np.array([rng.permutation([1, 1, 0]) for _ in range(9)])
    mixture = made([rng.normal(size=(9, 3, 40))], chosen, aligned, embedding=rng.normal(size=(9, 2)))
    mixture = jax.tree.map(lambda a: a.astype(jnp.float32) if jnp.issubdtype(a.dtype, jnp.floating) else a, mixture)
    health = eqx.filter_jit(diagnostics.health)
    ordinary, large = health(mixture), health(scaled(mixture, jnp.float32(scale)))
    for name, value in ordinary.items():
        want = value * scale if name == "feature_norm" else value
        np.testing.assert_allclose(large[name], want, rtol=1e-5, err_msg=name)


def test_scale_free_forms_do_not_depend_on_scale_up_to_the_end_of_the_range():
    net, x = network("top-k", width=4, experts=3, depth=1), states(8)
    net = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), net)
    config = PenaltyConfig(variant="scale-free")

    def value(factor, x):
        trace = net(x)[1]
        return penalty_of(
            config, net, x, eqx.tree_at(lambda t: t.mixtures[0], trace, scaled(trace.mixtures[0], factor))
        )

    evaluate = jax.jit(jax.value_and_grad(value))
    ordinary, _ = evaluate(jnp.float32(1), x)
    for factor in (1e9, 1e18, 1e30):
        found, slope = evaluate(jnp.float32(factor), x)
        np.testing.assert_allclose(found, ordinary, rtol=1e-5)
        assert np.isfinite(slope)
    gram = jnp.asarray(np.diag([1.0, 2.0, 3.0]) + 0.2, jnp.float32)
    other = jnp.asarray(np.diag([3.0, 1.0, 1.0]), jnp.float32)
    for function in (
        lambda s: bounds.block_cosine(s * gram, other),
        lambda s: jnp.stack(bounds.effective_rank_stability(s * gram, s * other)),
        lambda s: jnp.stack(bounds.gate_expert_decoupling(s * gram, s * other, 6)),
        lambda s: jnp.stack(bounds.ignoring_gate(s * gram, s * other, 6)),
        lambda s: jnp.stack(bounds.cross_expert_coupling(s * gram, (1, 2))),
        lambda s: spectrum.routed_trace_weights(gram, s * jnp.ones((3, 3, 8), jnp.float32)),
    ):
        np.testing.assert_allclose(function(jnp.float32(1e36)), function(jnp.float32(1)), rtol=1e-5)


def test_in_float32_eigenvalues_below_the_rounding_of_the_largest_are_dropped():
    """As docs/metrics.md says of an offset batch: too small a rank, and never too large."""
    values = np.concatenate([[1.0], np.full(255, 2e-5)])
    assert float(spectrum.effective_rank_spsd(np.diag(values).astype(np.float32))) == 1
    with jax.enable_x64(True):
        assert float(spectrum.effective_rank_spsd(np.diag(values))) > 1.05


# The gate of DS-MoE


def test_the_gate_variant_does_not_count_experts_that_are_always_on():
    """Their weights are constant columns of ones, which no gate can change and whose Gram dwarfs that of the rest."""
    net, x = network("deepseek", shared=1), states(10)
    trace = eqx.filter_jit(net)(x)[1]
    routing = trace.mixtures[0].routing
    assert routing.shared == 1
    np.testing.assert_array_equal(routing.gate[:, 0], 1)
    want = penalty.anisotropy(penalty.gram(routing.gate[:, 1:]))
    np.testing.assert_allclose(penalty_of(PenaltyConfig(variant="gate"), net, x, trace), want, rtol=1e-6)
