"""Diagnostics against their definitions in plain numpy and scikit-learn, and against cases whose answer is known."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from networks import ACT, KINDS, OBS, network, np_gate, np_mlp, np_soft, states
from numpy.testing import assert_allclose
from sklearn.metrics import silhouette_score
from sklearn.neighbors import NearestNeighbors

from sphere import diagnostics, spectrum
from sphere.diagnostics import Diagnostics, diagnose
from sphere.nets import Gaussian, GaussianActor, Mixture, Routing, TwinQ

N, NEAREST = 40, 4
ROUTED = ("top-k", "deepseek", "expert-choice")  # the other kinds have nothing to group

# Compiled whole: operation by operation it takes several times as long.
active_ratio = eqx.filter_jit(diagnostics.active_ratio)
distances = eqx.filter_jit(diagnostics.distances)
dormant_ratio = eqx.filter_jit(diagnostics.dormant_ratio)
expert_load = eqx.filter_jit(diagnostics.expert_load)
feature_norm = eqx.filter_jit(diagnostics.feature_norm)
feature_rank = eqx.filter_jit(diagnostics.feature_rank)
gate_geometry = eqx.filter_jit(diagnostics.gate_geometry)
knn_jaccard = eqx.filter_jit(diagnostics.knn_jaccard)
max_violation = eqx.filter_jit(diagnostics.max_violation)
pair_similarity = eqx.filter_jit(diagnostics.pair_similarity)
routing_entropy = eqx.filter_jit(diagnostics.routing_entropy)
selections = eqx.filter_jit(diagnostics.selections)
silhouette = eqx.filter_jit(diagnostics.silhouette)
trace_weight_entropy = eqx.filter_jit(diagnostics.trace_weight_entropy)


@pytest.fixture(autouse=True)
def double_precision(x64):
    """Of every test but those that switch it off."""


def grouped(kind):
    return network(kind, compute="grouped" if kind in ROUTED else "dense")


def diagnosed(net, x):
    return diagnose(net, x, neighbours=NEAREST)


# The definitions, one state and one expert at a time ------------------------------------------------------------------


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


def np_rank(values):
    p = values[values > 1e-15 * values.max()] / values.sum()
    return np.exp(-np.sum(p * np.log(p)))


def np_entropy(weights):
    p = np.asarray(weights) / np.sum(weights)
    return -sum(q * np.log(q) for q in p if q > 0) / np.log(len(p)) if len(p) > 1 else 0.0


def np_dormant(layers, chosen, tau):
    verdicts = []
    for layer in layers:
        for e in range(chosen.shape[1]):
            rows = [np.abs(layer[i][e]) for i in range(len(layer)) if chosen[i, e]]
            if rows:
                mean = np.mean(rows, axis=0)
                verdicts += [unit / (mean.mean() + 1e-9) <= tau for unit in mean]
    return np.mean(verdicts)


def np_pairs(features, chosen):
    """Overlap and orthogonality."""
    cosines = []
    for i in range(len(chosen)):
        for e, f in itertools.combinations(np.flatnonzero(chosen[i]), 2):
            a, b = features[i][e], features[i][f]
            both = np.linalg.norm(a) * np.linalg.norm(b)
            cosines.append(a @ b / both if both > 0 else 0.0)
    return (np.mean(cosines), np.mean([1 - abs(c) for c in cosines])) if cosines else (np.nan, np.nan)


def np_jaccard(embedding, chosen, k):
    order = NearestNeighbors(n_neighbors=k).fit(embedding).kneighbors(return_distance=False)  # without a point itself
    sets = [set(np.flatnonzero(row)) for row in chosen]
    pairs = [(sets[i], sets[j]) for i in range(len(sets)) for j in order[i]]
    return np.mean([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs])


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


# Whole networks -------------------------------------------------------------------------------------------------------


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


# Traces made by hand, in both layouts ---------------------------------------------------------------------------------


def made(hidden, chosen, aligned, weight=None, embedding=None, shared=0):
    """A mixture from features [n, E, width] per layer and the chosen experts [n, E], as many per state."""
    hidden, chosen = [np.asarray(h, float) for h in hidden], np.asarray(chosen, bool)
    n, experts = chosen.shape
    gate = np.where(chosen, np.ones((n, experts)) if weight is None else weight, 0)
    slot = np.broadcast_to(np.arange(experts), (n, experts))
    if not aligned:
        slot = np.array([np.flatnonzero(row) for row in chosen])
        hidden = [np.take_along_axis(h, slot[:, :, None], axis=1) for h in hidden]
    probability = gate[:, shared:] / gate[:, shared:].sum(axis=1, keepdims=True)
    embedding = np.zeros((n, 2)) if embedding is None else embedding
    arrays = (np.log(probability + 1e-9), probability, gate, chosen, embedding)
    return Mixture(
        hidden=tuple(jnp.asarray(h) for h in hidden),
        weight=jnp.asarray(np.take_along_axis(gate, slot, axis=1)),
        expert=jnp.asarray(slot, jnp.int32),
        expert_output=jnp.zeros((n, slot.shape[1], 1)),
        routing=Routing(*(jnp.asarray(a) for a in arrays), shared=shared),
        num_experts=experts,
        aligned=aligned,
        complete=aligned,
    )


BOTH = pytest.mark.parametrize("aligned", [True, False], ids=["dense", "grouped"])


@BOTH
def test_a_dead_unit_is_dormant_and_an_expert_without_states_is_not_counted(aligned):
    h = np.ones((6, 3, 4))
    h[:, 0, 1] = 0  # a dead unit of expert 0
    h[:3, 1, 2] = 0  # alive where expert 1 was asked, dead where it was not
    h[:, 2] = 0  # expert 2 is dead all over, but never asked
    chosen = [[1, 0, 0]] * 3 + [[0, 1, 0]] * 3
    trace = made([h], chosen, aligned)
    assert_allclose(dormant_ratio(trace), 1 / 8)
    assert_allclose(active_ratio(selections(trace)), 2 / 3)
    # scores: the dead unit 0, the others of expert 0 1 / 0.75, those of expert 1 1; a second layer halves the share
    assert_allclose(dormant_ratio(trace, 1.0), 5 / 8)
    assert_allclose(dormant_ratio(made([h, np.ones((6, 3, 4))], chosen, aligned)), 1 / 16)
    sign = np.array([1, -1, 1, -1]) * np.ones((6, 3, 1))
    assert_allclose(dormant_ratio(made([sign * h], chosen, aligned)), 1 / 8)  # by size, not by sign
    assert_allclose(dormant_ratio(made([0 * h], chosen, aligned)), 1)


@BOTH
@pytest.mark.parametrize(
    ("features", "overlap", "orthogonality"),
    [
        ([[1, 2, 0], [1, 2, 0], [1, 2, 0]], 1, 0),  # identical
        ([[1, 0, 0], [0, 3, 0], [0, 0, 5]], 0, 1),  # orthogonal
        ([[1, 0, 0], [-2, 0, 0], [9, 9, 9]], -1, 0),  # opposite: still redundant; the third is not selected
        ([[1, 0, 0], [1, 1, 0], [9, 9, 9]], 0.5**0.5, 1 - 0.5**0.5),
        ([[1, 0, 0], [0, 0, 0], [9, 9, 9]], 0, 1),  # a dead expert
    ],
)
def test_overlap_and_orthogonality_of_known_pairs(features, overlap, orthogonality, aligned):
    trace = made([np.array([features] * 4)], [[1, 1, 0]] * 4, aligned, weight=np.array([[0.9, 0.1, 0.0]] * 4))
    assert_allclose(pair_similarity(trace), (overlap, orthogonality), atol=1e-15)


@BOTH
def test_shared_experts_make_pairs_but_no_load(aligned):
    features = np.random.default_rng(0).normal(size=(4, 5, 3))
    chosen = np.array([[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 0, 1]])
    trace = made([features], chosen, aligned, shared=1)
    assert_allclose(pair_similarity(trace), np_pairs(features, chosen > 0), rtol=1e-12)
    assert_allclose(expert_load(trace), [0.5, 0, 0.25, 0.25])
    assert diagnostics.top_expert(trace.routing).tolist() == [0, 0, 2, 3]
    assert_allclose(gate_geometry(trace, 3).knn_jaccard, 2 / 12)  # 0 and 1 agree, all others differ


@BOTH
def test_one_expert_per_state_has_no_pairs(aligned):
    trace = made([np.ones((4, 3, 2))], np.eye(3)[[0, 1, 2, 0]], aligned)
    assert np.isnan(pair_similarity(trace)).all()


@BOTH
def test_feature_rank_by_either_gram(aligned):
    """More states than features, and fewer."""
    rng = np.random.default_rng(0)
    for n in (20, 6):
        chosen = rng.permuted(np.tile([1, 1, 0], (n, 1)), axis=1)
        weight, features = rng.uniform(0.1, 1, (n, 3)), rng.normal(size=(n, 3, 4))
        phi = ((weight * chosen)[:, :, None] * features).reshape(n, -1)
        got = feature_rank(made([features], chosen, aligned, weight=weight))
        assert_allclose(got, np_rank(np.linalg.svd(phi, compute_uv=False) ** 2), rtol=1e-10)


@BOTH
def test_trace_weights_are_those_of_the_spectrum(aligned):
    rng = np.random.default_rng(0)
    chosen = rng.permuted(np.tile([1, 1, 0, 0], (7, 1)), axis=1)
    weight, features = rng.uniform(0.1, 1, (7, 4)), rng.normal(size=(7, 4, 3))
    beta = spectrum.routed_trace_weights(jnp.asarray(weight * chosen), jnp.asarray(features))
    trace = made([features], chosen, aligned, weight=weight)
    assert_allclose(trace_weight_entropy(trace), np_entropy(np.asarray(beta)), rtol=1e-12)
    assert_allclose(
        feature_norm(trace),
        np.mean(np.sqrt(np.sum((weight * chosen)[:, :, None] ** 2 * features**2, axis=(1, 2)))),
        rtol=1e-12,
    )


def test_an_expert_is_selected_even_if_its_weight_underflows():
    trace = made([np.ones((2, 3, 2))], [[1, 1, 0]] * 2, True, weight=np.array([[1.0, 0.0, 0.0]] * 2))
    assert diagnostics.used(trace).tolist() == [[True, True, False]] * 2
    assert_allclose(pair_similarity(trace).overlap, 1)


# Load -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "want"),
    [
        ([12, 0, 0, 0], (3, 1 / 4, 0)),  # K = 1, all to one: MaxVio = E - 1
        ([12, 12, 0, 0], (1, 1 / 2, 0.5)),  # K = 2, all to the same two: E / K - 1
        ([5, 5, 5, 5], (0, 1, 1)),
        ([0, 4, 4, 4], (1, 3 / 4, np.log(3) / np.log(4))),  # the deviation below counts too
        ([7], (0, 1, 0)),
    ],
)
def test_load_of_known_counts(counts, want):
    counts = jnp.asarray(counts, jnp.float32)
    got = [f(counts) for f in (max_violation, active_ratio, routing_entropy)]
    assert_allclose(got, want, atol=1e-6)


# Gate geometry --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_silhouette_equals_scikit_learn(seed):
    """Labels that do not occur, clusters of one and points that coincide among them."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(30, 3))
    points[5:9] = points[4]
    label = rng.choice([1, 2, 5], size=30)
    label[0], label[3] = 4, 6
    if seed == 5:
        label[:] = np.where(np.arange(30) < 29, 1, 3)
    got = silhouette(distances(jnp.asarray(points)), jnp.asarray(label), 7)
    assert_allclose(got, silhouette_score(points, label), rtol=1e-10)


def test_silhouette_of_known_clusters():
    distance = distances(jnp.array([[0.0], [0.0], [1.0], [1.0]]))
    assert silhouette(distance, jnp.array([0, 0, 2, 2]), 7) == 1
    assert silhouette(distance, jnp.array([0, 1, 2, 3]), 7) == 0  # scikit-learn refuses; every singleton has 0
    assert np.isnan(silhouette(distance, jnp.array([2, 2, 2, 2]), 7))


@pytest.mark.parametrize("k", [5, 100])
def test_knn_jaccard_equals_scikit_learn(k):
    rng = np.random.default_rng(k)
    points, chosen = rng.normal(size=(30, 3)), rng.random((30, 6)) < 0.3
    assert not chosen.any(axis=1).all()  # expert choice may leave a state without any
    got = knn_jaccard(distances(jnp.asarray(points)), jnp.asarray(chosen), k)
    assert_allclose(got, np_jaccard(points, chosen, min(k, 29)), rtol=1e-12)


def test_knn_jaccard_leaves_a_state_itself_out():
    distance = distances(jnp.array([[0.0], [0.0], [9.0], [9.0]]))
    chosen = jnp.asarray([[1, 0], [0, 1], [1, 0], [1, 1]], bool)
    assert_allclose(knn_jaccard(distance, chosen, 1), (0 + 0 + 0.5 + 0.5) / 4)
    assert np.isnan(knn_jaccard(distance[:1, :1], chosen[:1], 1))


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
