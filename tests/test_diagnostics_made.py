"""Diagnostics of traces made by hand, in both layouts, whose answer is known or scikit-learn's."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from networks import np_entropy, np_jaccard, np_pairs, np_rank
from numpy.testing import assert_allclose
from sklearn.metrics import silhouette_score

from sphere import diagnostics, spectrum
from sphere.nets import Mixture, Routing

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
