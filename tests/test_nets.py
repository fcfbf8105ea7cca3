"""Networks against plain numpy, one expert against the MLP, and what taps and traces promise."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import ACT, KINDS, MIXTURES, OBS, config, forward, network, np_forward, np_gate, states
from scipy.stats import multivariate_normal

from sphere.nets import (
    GaussianActor,
    NetConfig,
    TwinQ,
    Value,
    build,
    output_signals,
    parameter_count,
    widened,
    zero_taps,
)
from sphere.variants import feature_blocks

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(("activation", "layer_norm"), [("relu", False), ("tanh", True)])
@pytest.mark.parametrize("kind", KINDS)
def test_forward_equals_plain_numpy(kind, activation, layer_norm):
    net = network(kind, activation=activation, layer_norm=layer_norm, temperature=0.7, compute="grouped")
    x = states()
    output, trace, blocks = eqx.filter_jit(lambda net, x: (*net(x), feature_blocks(net(x)[1].mixtures[0])))(net, x)
    want, phi = np_forward(kind, net, x)
    np.testing.assert_allclose(output, want, atol=1e-12)
    np.testing.assert_allclose(blocks, phi, atol=1e-12)
    if kind != "mlp":
        np.testing.assert_allclose(trace.mixtures[0].routing.gate, np_gate(kind, net, np.asarray(x)), atol=1e-12)
        np.testing.assert_array_equal(trace.mixtures[0].routing.chosen, trace.mixtures[0].routing.gate > 0)


@pytest.mark.parametrize("compute", ["dense", "grouped"])
@pytest.mark.parametrize("kind", ["top-k", "dense", "expert-choice"])
def test_one_expert_is_the_plain_mlp_exactly(kind, compute):
    settings = {"experts": 1, "top_k": 1, "capacity": 1.0, "compute": compute, "layer_norm": True}
    x = states()
    moe = network(kind, **settings)
    mlp = jax.tree.map(lambda leaf: leaf[0], moe.experts)
    np.testing.assert_array_equal(forward(moe, x)[0], forward(mlp, x)[0])
    gradient = eqx.filter_jit(eqx.filter_grad(lambda net: jnp.sum(net(x)[0] ** 2)))
    for one, plain in zip(jax.tree.leaves(gradient(moe).experts), jax.tree.leaves(gradient(mlp)), strict=True):
        # outputs are equal bit for bit; gradients too on a CPU, while a GPU sums batches in another order
        np.testing.assert_allclose(one[0], plain, rtol=1e-13 if jax.default_backend() != "cpu" else 0, atol=0)
    for leaf in jax.tree.leaves(gradient(moe).router):
        np.testing.assert_array_equal(leaf, 0)  # the softmax of one logit is constant


def test_ties_choose_exactly_k_by_index():
    net = network("top-k")
    level = eqx.tree_at(lambda m: (m.router.gate.head.kernel, m.router.gate.head.bias), net, replace_fn=jnp.zeros_like)
    for compute in ("dense", "grouped"):
        routing = forward(level.with_compute(compute), states())[1].mixtures[0].routing
        np.testing.assert_array_equal(routing.chosen, np.arange(5)[None] < np.full((20, 1), 2))
        np.testing.assert_allclose(routing.gate[:, :2], 0.5)


@pytest.mark.parametrize("kind", MIXTURES)
def test_permuting_experts_changes_nothing_but_rounding(kind):
    net = network(kind)
    order = np.array([0, 3, 1, 4, 2]) if kind != "deepseek" else np.r_[0, np.random.default_rng(0).permutation(9) + 1]

    def reorder_gate(linear):
        columns = order if kind != "deepseek" else order[1:] - 1
        return jax.tree.map(lambda leaf: leaf[..., columns], linear)

    other = eqx.tree_at(lambda m: m.experts, net, jax.tree.map(lambda leaf: leaf[order], net.experts))
    where = (lambda m: m.router.slots) if kind == "soft" else (lambda m: m.router.gate.head)
    other = eqx.tree_at(where, other, replace_fn=reorder_gate)
    np.testing.assert_allclose(forward(other, states())[0], forward(net, states())[0], atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_do_not_mix_and_taps_are_pre_activations(kind):
    net, x = network(kind, layer_norm=True, group_size=20), states()
    taps = zero_taps(net, x)
    tapped = eqx.filter_jit(lambda taps: net(x, taps))
    output, trace = tapped(taps)
    np.testing.assert_allclose(output, forward(net, x)[0], atol=1e-14)
    assert [tap.shape for tap in taps] == [layer.output.shape for layer in trace.layers]
    signals = eqx.filter_jit(output_signals)(net, x)
    step = 1e-6
    for index, tap in enumerate(taps):  # central differences through each tap, sample by sample, against the signals
        direction = np.random.default_rng(index).normal(size=tap.shape)
        moved = [tapped((*taps[:index], tap + sign * step * direction, *taps[index + 1 :]))[0] for sign in (1, -1)]
        difference = np.sum(moved[0] - moved[1], axis=1) / (2 * step)
        np.testing.assert_allclose(difference, np.sum(signals[index] * direction, axis=(1, 2)), atol=1e-7)


def test_parameter_counts_and_the_wider_network():
    mlp = NetConfig(kind="mlp", width=256, depth=3)
    base = parameter_count(build(mlp, 39, 4, key=jax.random.key(0)))
    assert base == 39 * 256 + 256 + 2 * (256 * 256 + 256) + 256 * 4 + 4
    wide = widened(mlp, 39, 4, 10)

    def count(width):
        return 39 * width + width + 2 * (width * width + width) + width * 4 + 4

    assert count(wide.width) >= 10 * base > count(wide.width - 1)


def test_a_wider_network_of_split_experts_can_be_split():
    small = NetConfig(kind="deepseek", width=8, depth=1, experts=2, top_k=1, split=2)
    wide = widened(small, 5, 2, 3.0)

    def count(width):
        return parameter_count(build(dataclasses.replace(small, width=width), 5, 2, key=jax.random.key(0)))

    assert wide.width % 2 == 0
    assert count(wide.width) >= 3 * count(8) > count(wide.width - 2)


def test_heads():
    x, action = states(), jax.random.normal(jax.random.key(5), (20, ACT))
    actor = GaussianActor(network("top-k"), ACT)
    actor = eqx.tree_at(lambda a: a.log_std, actor, jnp.array([-0.5, 0.0, 0.3]))
    policy, _ = forward(actor, x)
    spread = np.diag(np.exp(2 * np.asarray(actor.log_std)))
    want = [multivariate_normal(m, spread).logpdf(a) for m, a in zip(policy.mean, action, strict=True)]
    np.testing.assert_allclose(policy.log_prob(action), want, rtol=1e-12)
    np.testing.assert_allclose(policy.entropy(), multivariate_normal(np.zeros(3), spread).entropy(), rtol=1e-12)
    draws = jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(jnp.std(draws, axis=0)[0], np.exp(actor.log_std), rtol=0.06)
    trunk = network("top-k")
    np.testing.assert_array_equal(*eqx.filter_jit(lambda trunk: (Value(trunk)(x)[0], trunk(x)[0][:, 0]))(trunk))
    twin = eqx.filter_jit(lambda key: TwinQ(lambda key: build(config("mlp"), OBS + ACT, 1, key=key), key=key))(
        jax.random.key(2)
    )

    @eqx.filter_jit
    def both_ways(twin, x, action):
        joint = jnp.concatenate([x, action], axis=1)
        return twin(x, action), jnp.stack([trunk(joint)[0][:, 0] for trunk in (twin.first, twin.second)])

    (values, traces), want = both_ways(twin, x, action)
    np.testing.assert_array_equal(values, want)
    assert list(traces) == list(twin.trunks) == ["first", "second"]
    assert twin.input_shape == (OBS + ACT,)
    assert actor.input_shape == (OBS,)
    assert not np.allclose(values[0], values[1])


def test_a_fleet_of_networks_is_a_vmap():
    keys = jax.random.split(jax.random.key(0), 3)
    fleet = eqx.filter_vmap(lambda key: build(config("top-k", compute="grouped"), OBS, ACT, key=key))(keys)
    together = eqx.filter_jit(eqx.filter_vmap(lambda net: net(states())[0]))(fleet)
    for i, key in enumerate(keys):
        one = forward(build(config("top-k", compute="dense"), OBS, ACT, key=key), states())[0]
        np.testing.assert_allclose(together[i], one, atol=1e-13)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"top_k": 6}, "top_k=6 experts of 5 cannot be chosen; use 1 to 5"),
        ({"top_k": 0}, "top_k=0"),
        ({"width": 0}, "want a whole number, at least 1"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"kind": "deepseek", "width": 15}, "width=15 cannot be split into 2"),
        ({"kind": "deepseek", "shared": 4}, "shared=4 leaves no routed expert"),
        ({"kind": "soft", "tokens": 1}, "needs at least 2"),
        ({"kind": "expert-choice", "capacity": 9.0}, "at most 5 experts"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        network(settings.pop("kind", "top-k"), **settings)


@pytest.mark.parametrize("kind", ["mlp", "top-k", "soft", "expert-choice"])
@pytest.mark.parametrize("shape", [(4, OBS + 1), (OBS,), (2, 4, OBS)])
def test_states_that_do_not_fit_are_refused_with_a_sentence(kind, shape):
    net = network(kind)
    actor = GaussianActor(net, ACT)
    for call in (net, jax.jit(lambda x: net(x)[0]), actor if len(shape) == 2 else net):
        with pytest.raises(ValueError, match=rf"wanted \[n, {OBS}\].*built for"):
            call(jnp.zeros(shape))


def test_wrong_number_of_taps_is_refused():
    net, x = network("mlp"), states()
    with pytest.raises(ValueError, match="make them with"):
        net(x, (*zero_taps(net, x), jnp.zeros(())))


def test_a_sharp_gate_chooses_by_its_logits():
    """Probabilities of all but one expert may be zero in float32, and say nothing about which are the next."""
    net = network("deepseek", temperature=1e-3)
    routing = forward(net, states(64))[1].mixtures[0].routing
    chosen, logits = np.asarray(routing.chosen), np.asarray(routing.logits)
    best = np.argsort(-logits, axis=1)[:, : net.router.top_k]
    want = np.zeros_like(chosen)
    want[:, : net.router.shared] = True
    np.put_along_axis(want, net.router.shared + best, True, axis=1)
    np.testing.assert_array_equal(chosen, want)


def test_capacity_is_not_rounded_up_by_rounding():
    router = network("expert-choice", experts=11, capacity=2.2).router
    assert [router._take(size) for size in (50, 51)] == [10, 11]
