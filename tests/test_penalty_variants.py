"""Every variant of the penalty against matrices that are formed, and its gradient against differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matrices import brute
from networks import forward, network, np_forward, states

import sphere
from sphere import ntk
from sphere import penalty as penalties
from sphere.nets import expert_signals
from sphere.penalty import scale_free
from sphere.variants import ALL_EXPERTS, VARIANTS, PenaltyConfig, gradient_blocks, penalty

pytestmark = pytest.mark.usefixtures("x64")


def kron_blocks(a, g, experts):
    """Block Khatri-Rao product, formed."""
    a = a.reshape(experts, -1, experts, a.shape[0] // experts)
    g = g.reshape(experts, -1, experts, g.shape[0] // experts)
    rows = [np.concatenate([np.kron(a[e, :, f], g[e, :, f]) for f in range(experts)], axis=1) for e in range(experts)]
    return np.concatenate(rows)


def anisotropy_of(matrix):
    return np.sum((matrix - np.trace(matrix) / len(matrix) * np.eye(len(matrix))) ** 2)


def numeric_expert_signal(net, x, step=1e-6):
    """d m_e / d z_e at the last hidden pre-activation, by moving its bias: one expert, one unit at a time."""
    experts, width = net.experts.hidden[-1].bias.shape
    psi = np.zeros((len(x), experts, width))
    outputs = eqx.filter_jit(lambda net: jnp.sum(net(x)[1].mixtures[0].expert_output, axis=2))
    for unit in range(width):  # experts do not see each other: the same unit of all of them at once

        def moved(sign, unit=unit):
            return eqx.tree_at(
                lambda m: m.experts.hidden[-1].bias,
                net,
                net.experts.hidden[-1].bias.at[:, unit].add(sign * step),
            )

        psi[:, :, unit] = (outputs(moved(1)) - outputs(moved(-1))) / (2 * step)
    return psi


@pytest.fixture(scope="module")
def case():
    with jax.enable_x64(True):
        net, x = network("top-k", width=4, experts=3, compute="dense"), states(12)
        trace = forward(net, x)[1].mixtures[0]
        phi = [np.asarray(trace.weight)[:, :, None] * np.asarray(h) for h in trace.hidden]
        return net, x, trace, phi, numeric_expert_signal(net, x)


def second_moment(blocks):
    flat = np.asarray(blocks).reshape(len(blocks), -1)
    return flat.T @ flat / len(flat)


def expected(variant, case):
    """Each variant from formed matrices."""
    net, x, trace, phi, psi = case
    a, g = second_moment(phi[-1]), second_moment(psi)
    features = np.asarray(trace.features)
    if variant == "layer-entropy":
        # shares of the trace of J^T J by layer, from the materialised Jacobian; bias belongs to its layer
        params, static = eqx.partition(net, eqx.is_inexact_array)
        jacobian = jax.jit(jax.jacrev(lambda p: eqx.combine(p, static)(x)[0].sum(axis=1)))(params)

        def share(linear):
            return sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(linear))

        gate = [share(layer) for layer in (*jacobian.router.gate.hidden, jacobian.router.gate.head)]
        expert = [share(layer) for layer in (*jacobian.experts.hidden, jacobian.experts.head)]
        alpha = np.array(expert) / (sum(gate) + sum(expert))
        return anisotropy_of(a) + 0.5 * np.sum(alpha * np.log(alpha))
    return {
        "last": lambda: anisotropy_of(a),
        "scale-free": lambda: np.sum((a / (np.trace(a) / len(a)) - np.eye(len(a))) ** 2) / len(a),
        "fixed-scale": lambda: np.sum((a - 2.0 * np.eye(len(a))) ** 2),
        "all-layers": lambda: sum(anisotropy_of(second_moment(p)) for p in phi),
        "joint-layers": lambda: brute(np.concatenate([p.reshape(len(p), -1) for p in phi], axis=1)),
        "per-expert": lambda: sum(brute(phi[-1][:, e]) for e in range(3)),
        "unweighted": lambda: brute(features.reshape(len(features), -1)),
        "gate": lambda: brute(trace.routing.gate),
        "gradient": lambda: anisotropy_of(g),
        "feature+gradient": lambda: anisotropy_of(a) + anisotropy_of(g),
        "kronecker": lambda: anisotropy_of(np.kron(a, g)),
        "khatri-rao": lambda: anisotropy_of(kron_blocks(a, g, 3)),
    }[variant]()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_equals_its_formed_matrix(variant, case):
    net, x, *_ = case
    config = PenaltyConfig(variant=variant, target_scale=2.0, entropy_weight=0.5)
    got = eqx.filter_jit(lambda net: penalty(config, net, x, net(x)[1]))(net)
    tolerance = (
        1e-6 if variant in ("gradient", "feature+gradient", "kronecker", "khatri-rao") else 1e-10
    )  # psi: differences
    np.testing.assert_allclose(got, expected(variant, case), rtol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_the_gradient_of_its_value(variant, case):
    net, x, *_ = case
    config = PenaltyConfig(variant=variant, target_scale=2.0)
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def value(params):
        net = eqx.combine(params, static)
        return penalty(config, net, x, net(x)[1])

    rng = np.random.default_rng(3)
    direction = jax.tree.map(lambda p: rng.normal(size=p.shape) * (p.ndim > 0), params)
    evaluate = jax.jit(lambda size: value(jax.tree.map(lambda p, d: p + size * d, params, direction)))
    difference = (evaluate(1e-6) - evaluate(-1e-6)) / 2e-6
    gradient = jax.jit(jax.grad(value))(params)
    along = sum(
        np.sum(np.asarray(g) * d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    np.testing.assert_allclose(along, difference, rtol=1e-5, atol=1e-9)


def test_expert_signals_against_differences(case):
    net, x, _, _, psi = case
    np.testing.assert_allclose(eqx.filter_jit(expert_signals)(net, x)[-2], psi, atol=1e-8)


@pytest.mark.parametrize("kind", ["mlp", "top-k", "deepseek", "soft", "expert-choice"])
def test_the_penalty_of_any_network_is_that_of_its_phi(kind):
    net, x = network(kind, compute="grouped"), states()
    phi = np_forward(kind, net, x)[1].reshape(len(x), -1)
    got = eqx.filter_jit(lambda net: penalty(PenaltyConfig(), net, x, net(x)[1]))(net)
    np.testing.assert_allclose(got, brute(phi), rtol=1e-10)


def test_scale_free_form_cannot_be_followed_by_shrinking():
    phi = jnp.asarray(np.random.default_rng(0).normal(size=(10, 6)))
    gradient = jax.grad(lambda phi: scale_free(penalties.gram(phi)))(phi)
    assert float(jnp.linalg.norm(gradient)) > 1e-3
    assert abs(float(jnp.sum(gradient * phi))) < 1e-12  # orthogonal to scaling
    paper = jax.grad(sphere.sphere_penalty)(phi)
    assert float(jnp.sum(paper * phi)) > 1e-3  # the paper's form is not: shrinking lowers it
    np.testing.assert_allclose(scale_free(penalties.gram(7.0 * phi)), scale_free(penalties.gram(phi)), rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-8, 1e-10, 1e-20])
def test_scale_free_form_is_finite_for_tiny_features_in_single_precision(scale):
    with jax.enable_x64(False):
        phi = jnp.asarray(scale * np.random.default_rng(0).normal(size=(10, 6)), jnp.float32)
        value, gradient = jax.jit(jax.value_and_grad(lambda phi: scale_free(penalties.gram(phi))))(phi)
        assert np.isfinite(value)
        assert np.all(np.isfinite(gradient))


def test_variants_that_do_not_apply_are_refused():
    x = states()
    sparse = network("top-k", compute="grouped")
    trace = forward(sparse, x)[1]
    for variant in ALL_EXPERTS:
        with pytest.raises(ValueError, match="compute='dense'"):
            penalty(PenaltyConfig(variant=variant), sparse, x, trace)
    choosy = network("expert-choice", compute="grouped")
    trace = forward(choosy, x)[1]
    assert trace.mixtures[0].aligned  # slot e is expert e, but only the chosen ones were computed
    for variant in ALL_EXPERTS:
        with pytest.raises(ValueError, match="compute='dense'"):
            penalty(PenaltyConfig(variant=variant), choosy, x, trace)
    whole = choosy.with_compute("dense")
    penalty(PenaltyConfig(variant="unweighted"), whole, x, forward(whole, x)[1])
    dense = network("mlp")
    plain = forward(dense, x)[1]
    with pytest.raises(ValueError, match="needs a gate"):
        penalty(PenaltyConfig(variant="gate"), dense, x, plain)


@pytest.mark.parametrize("kind", ["top-k", "dense"])
def test_signals_are_those_of_the_linear_layer_also_before_a_layernorm(kind):
    """G_last is one matrix, whichever part of the library is asked."""
    net, x = network(kind, layer_norm=True, compute="dense"), states()
    psi = eqx.filter_jit(ntk.kronecker_factors)(net, x)[-2].psi
    np.testing.assert_allclose(eqx.filter_jit(gradient_blocks)(net, x), psi, atol=1e-12)
