"""Diagnostics against their definitions in plain numpy and scikit-learn, and against cases whose answer is known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from networks import (
    ACT,
    KINDS,
    OBS,
    network,
    np_entropy,
    np_gate,
    np_jaccard,
    np_mlp,
    np_pairs,
    np_rank,
    np_soft,
    states,
)
from numpy.testing import assert_allclose
from sklearn.metrics import silhouette_score

from sphere import diagnostics
from sphere.diagnostics import Diagnostics, diagnose
from sphere.nets import Gaussian, GaussianActor, TwinQ

N, NEAREST = 40, 4
ROUTED = ("top-k", "deepseek", "expert-choice")  # the other kinds have nothing to group


@pytest.fixture(autouse=True)
def double_precision(x64):
    """Of every test but those that switch it off."""


def grouped(kind):
    return network(kind, compute="grouped" if kind in ROUTED else "dense")


def diagnosed(net, x):
    return diagnose(net, x, neighbours=NEAREST)


def np_hidden(mlp, x, expert=None):
    """Features after every hidden layer of one input vector."""
    cut = [eqx.tree_at(lambda m: m.hidden, mlp, mlp.hidden[: i + 1]) for i in range(len(mlp.hidden))]
    return [np_mlp(m, x, expert)[1] for m in cut]


def np_features(kind, net, x):
    """Features of every layer, state and expert, [layers][n][E], and the gate [n, E]."""
    if kind == "mlp":
        layers = zip(*(np_hidden(net, row) for row in x), strict=True)
        return [[[h] for h in layer] for layer in layers], np.ones((len(x), 1))
    table = []
    for row in x:
        inputs = np_soft(net.router, row)[0] if kind == "soft" else [row] * net.num_experts
        table.append([np_hidden(net.experts, inputs[e], e) for e in range(net.num_experts)])
    layers = [[[h[layer] for h in experts] for experts in table] for layer in range(len(net.experts.hidden))]
    return layers, np_gate(kind, net, x)


def np_dormant(layers, chosen, tau):
    verdicts = []
    for layer in layers:
        for e in range(chosen.shape[1]):
            rows = [np.abs(layer[i][e]) for i in range(len(layer)) if chosen[i, e]]
            if rows:
                mean = np.mean(rows, axis=0)
                verdicts += [unit / (mean.mean() + 1e-9) <= tau for unit in mean]
    return np.mean(verdicts)


def np_load(counts):
    """MaxVio, active ratio, normalised entropy."""
    mean = sum(counts) / len(counts)
    return max(abs(c - mean) / mean for c in counts), sum(c > 0 for c in counts) / len(counts), np_entropy(counts)


def defined(kind, net, x):
    """Every diagnostic but the two of the kernel."""
    x = np.asarray(x)
    layers, gate = np_features(kind, net, x)
    chosen = gate > 0
    phi = (gate[:, :, None] * np.array(layers[-1])).reshape(len(x), -1)
    overlap, orthogonality = np_pairs(layers[-1], chosen)
    shared = net.router.shared if kind == "deepseek" else 0
    silhouette = jaccard = np.nan
    if kind == "soft":
        tokenise = net.router.tokenise
        flat = x @ np.asarray(tokenise.kernel) + np.asarray(tokenise.bias)
        embedding, label = flat.reshape(len(x), net.router.tokens, -1).mean(axis=1), gate.argmax(axis=1)
    elif kind != "mlp":
        embedding = np.array([np_hidden(net.router.gate, row)[-1] for row in x])
        label = np.array([np_mlp(net.router.gate, row)[0].argmax() for row in x])
    if kind != "mlp":
        silhouette = silhouette_score(embedding, label)
        jaccard = np_jaccard(embedding, chosen[:, shared:], NEAREST)
    max_violation, active, entropy = np_load(chosen[:, shared:].sum(axis=0))
    return {
        "feature_rank": np_rank(np.linalg.svd(phi, compute_uv=False) ** 2 / len(x)),
        "dormant_ratio": np_dormant(layers, chosen, 0.025),
        "feature_norm": np.mean([np.linalg.norm(row) for row in phi]),
        "overlap": overlap,
        "orthogonality": orthogonality,
        "silhouette": silhouette,
        "knn_jaccard": jaccard,
        "max_violation": max_violation,
        "active_ratio": active,
        "routing_entropy": entropy,
        "trace_weight_entropy": np_entropy(np.sum(phi.reshape(*gate.shape, -1) ** 2, axis=(0, 2))),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_equals_its_definition(kind):
    net, x = grouped(kind), states(N)
    got = diagnosed(net, x)._asdict()
    want = defined(kind, net, x)
    assert set(got) - set(want) == {"ntk_rank", "gradient_norm"}
    for name, value in want.items():
        assert_allclose(got[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_kernel_numbers_are_those_of_the_jacobian():
    """Of a plain network; that the kernel of every other is exact is shown in test_ntk."""
    net, x = network("mlp", compute="dense"), states(N)
    gradient = eqx.filter_vmap(eqx.filter_grad(lambda net, row: jnp.sum(net(row[None])[0])), in_axes=(None, 0))
    leaves = jax.tree.leaves(eqx.filter_jit(gradient)(net, x))
    jacobian = np.concatenate([np.asarray(leaf).reshape(N, -1) for leaf in leaves], axis=1)
    got = diagnosed(net, x)
    assert_allclose(got.gradient_norm, np.linalg.norm(jacobian, axis=1).mean(), rtol=1e-10)
    assert_allclose(got.ntk_rank, np_rank(np.linalg.svd(jacobian, compute_uv=False) ** 2), rtol=1e-9)


def test_grouped_equals_dense():
    net, x = network("top-k", compute="grouped"), states(N)
    by_group, dense = diagnosed(net, x), diagnosed(net.with_compute("dense"), x)
    assert_allclose(by_group, dense, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_finite_where_it_applies_and_close_to_double(kind):
    """The other compute, through an actor: so that both count for every kind."""
    x = np.asarray(states(N), np.float32)
    double = diagnosed(grouped(kind), jnp.asarray(x, jnp.float64))  # compiled above
    with jax.enable_x64(False):
        single = diagnosed(GaussianActor(network(kind, compute="dense"), ACT), jnp.asarray(x))
    assert {value.dtype for value in single} == {jnp.dtype("float32")}
    assert {value.shape for value in single} == {()}
    missing = {name for name, value in single._asdict().items() if not np.isfinite(value)}
    assert missing == ({"overlap", "orthogonality", "silhouette", "knn_jaccard"} if kind == "mlp" else set())
    for name, value in single._asdict().items():
        assert_allclose(value, getattr(double, name), rtol=2e-3, atol=1e-5, err_msg=name)


def test_a_fleet_is_a_vmap():
    nets = [network("top-k", seed=seed, compute="grouped") for seed in range(3)]
    x = jnp.stack([states(N, seed=10 + seed) for seed in range(3)])
    fleet = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nets)
    together = eqx.filter_jit(eqx.filter_vmap(diagnosed))(fleet, x)
    assert isinstance(together, Diagnostics)
    for i, net in enumerate(nets):
        assert_allclose([value[i] for value in together], diagnosed(net, x[i]), rtol=1e-9, atol=1e-12)


def test_a_dead_network_has_numbers():
    with jax.enable_x64(False):
        actor = jax.tree.map(jnp.zeros_like, GaussianActor(network("top-k", compute="dense"), ACT))
        actor = eqx.tree_at(lambda a: a.trunk.router.temperature, actor, jnp.ones(()))
        got = diagnosed(actor, jnp.ones((N, OBS)))._asdict()
    assert got["feature_rank"] == got["feature_norm"] == got["overlap"] == got["trace_weight_entropy"] == 0
    assert got["dormant_ratio"] == got["orthogonality"] == got["knn_jaccard"] == 1
    assert_allclose(got["ntk_rank"], 1, rtol=1e-6)  # what is left is the bias of the head, the same for every state
    assert_allclose(got["max_violation"], 5 / 2 - 1, rtol=1e-6)
    assert {name for name, value in got.items() if np.isnan(value)} == {"silhouette"}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: diagnose(network("top-k"), states(N), neighbours=0), "neighbours=0; use 1 or more"),
        (lambda: diagnose(network("mlp"), jnp.zeros((0, OBS))), "empty"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_a_pair_is_diagnosed_trunk_by_trunk():
    twin = TwinQ(lambda key: network("mlp"), key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"pass net.trunks\['first'\] or net.trunks"):
        diagnose(twin, states(N))


def test_saturation_is_the_probability_that_an_action_is_cut_off():
    rng = np.random.default_rng(3)
    mean, log_std = 2 * rng.standard_normal((50, 3)), rng.uniform(-3, 1, 3)
    low, high = np.array([-1.0, -2.0, 0.0]), np.array([1.0, 0.5, 3.0])
    normal = scipy.stats.norm(mean, np.exp(log_std))
    want = np.mean(normal.cdf(low) + normal.sf(high))
    assert_allclose(
        diagnostics.saturation(Gaussian(jnp.asarray(mean), jnp.asarray(log_std)), low, high), want, rtol=1e-5
    )
    fresh = Gaussian(jnp.zeros((4, 2)), jnp.zeros(2))
    assert_allclose(diagnostics.saturation(fresh, -np.ones(2), np.ones(2)), 0.3173, atol=1e-4)
    far = Gaussian(jnp.full((4, 2), 9.0), jnp.full(2, -1.0))
    assert_allclose(diagnostics.saturation(far, -np.ones(2), np.ones(2)), 1)
    assert_allclose(diagnostics.saturation(far, np.full(2, -np.inf), np.full(2, np.inf)), 0)  # nothing to be cut off at
