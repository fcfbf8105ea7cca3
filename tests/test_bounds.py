"""Load balancing, specialisation and the perturbation bounds: every statement of the paper, in float64.

A name in brackets is the paper's label.
"""

import itertools

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from matrices import FEW, blocks_of, entropy, fractions, known, rank_of, seeds, small_fractions, spsd
from numpy.testing import assert_allclose

from sphere import bounds, spectrum

pytestmark = pytest.mark.usefixtures("double_precision")
SLACK = 1e-9  # of rounding, against sides of order one


# Load balancing and specialisation


@st.composite
def routed(draw, experts=3, width=2):
    """Top-K gates and features; some experts may never be chosen."""
    rng = np.random.default_rng(draw(seeds))
    chosen = draw(st.sets(st.integers(0, experts - 1), min_size=1))
    mask = np.zeros((8, experts))
    for row in mask:
        row[rng.choice(list(chosen), size=draw(st.integers(1, len(chosen))), replace=False)] = 1
    gates = mask * rng.uniform(0.1, 1, mask.shape)
    gates /= gates.sum(axis=1, keepdims=True)
    return gates, rng.standard_normal((8, experts, width)) * 10.0 ** rng.uniform(-2, 2, (1, experts, 1))


def feature_gram(gates, features):
    phi = (gates[:, :, None] * features).reshape(len(gates), -1)
    return phi.T @ phi / len(gates)


@FEW
@given(routed())
def test_trace_weights_follow_from_routing_and_an_idle_expert_caps_the_rank(case):
    """[lem:beta-trace-form, cor:inactive-expert-rank-cap]"""
    gates, features = case
    gram, sizes = feature_gram(gates, features), (2, 2, 2)
    traces = [np.mean([gates[i, e] ** 2 * np.linalg.norm(features[i, e]) ** 2 for i in range(8)]) for e in range(3)]
    assert_allclose(spectrum.block_traces(gram, sizes), traces, rtol=1e-10)
    beta = spectrum.expert_trace_weights(gram, sizes)
    assert_allclose(beta, traces / np.sum(traces), rtol=1e-10)
    assert_allclose(spectrum.routed_trace_weights(gates, features), beta, rtol=1e-10)
    assert_allclose(np.sum(beta), 1, rtol=1e-12)
    assert_allclose(spectrum.spectral_entropy(beta), entropy(traces), rtol=1e-9, atol=1e-12)
    idle = int(np.sum(~gates.any(axis=0)))
    assert np.linalg.matrix_rank(gram) <= 6 - 2 * idle
    assert spectrum.effective_rank_spsd(gram) <= 6 - 2 * idle + SLACK


@FEW
@given(routed())
def test_decoupled_experts_mix(case):
    """[cor:expert-block-mixture-Aexp]"""
    gram, sizes = feature_gram(*case), (2, 2, 2)
    blocks = blocks_of(gram, sizes)
    decoupled = scipy.linalg.block_diag(*(blocks[e][e] for e in range(3)))
    want = rank_of(decoupled)
    assert_allclose(spectrum.decoupled_effective_rank(gram, sizes), want, rtol=1e-8)
    assert_allclose(spectrum.effective_rank_spsd(decoupled), want, rtol=1e-8)


@FEW
@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3))
def test_balanced_isotropic_experts_are_the_best(scales):
    """[cor:balanced-isotropic-max]"""
    d, sizes = 2, (2, 2, 2)
    gram = np.diag(np.repeat(scales, d))
    beta = spectrum.expert_trace_weights(gram, sizes)
    assert_allclose(beta, np.array(scales) / sum(scales), rtol=1e-12)
    assert_allclose(spectrum.effective_rank_spsd(gram), d * np.exp(entropy(scales)), rtol=1e-10)
    assert_allclose(spectrum.decoupled_effective_rank(gram, sizes), d * np.exp(entropy(scales)), rtol=1e-10)
    assert_allclose(spectrum.condition_number(gram), max(scales) / min(scales), rtol=1e-10)
    assert spectrum.effective_rank_spsd(gram) <= d * 3 + SLACK
    even = np.full(6, scales[0])
    assert_allclose(spectrum.effective_rank_spsd(np.diag(even)), d * 3, rtol=1e-12)


@FEW
@given(routed(), small_fractions)
def test_weak_coupling_of_experts_moves_the_effective_rank_little(case, coupling):
    """[prop:effrank-cross-coupling]; A_bd + t (A - A_bd) is semidefinite for t in [0, 1]."""
    full, sizes = feature_gram(*case), (2, 2, 2)
    decoupled = np.where(np.kron(np.eye(3), np.ones((2, 2))) > 0, full, 0)
    gram = decoupled + coupling * (full - decoupled)
    found = bounds.cross_expert_coupling(gram, sizes)
    assert_allclose(found.left, abs(np.log(rank_of(gram)) - np.log(rank_of(decoupled))), atol=1e-9)
    epsilon = np.sqrt(6) * np.linalg.norm(gram - decoupled) / np.trace(gram)
    assert_allclose(found.right, stability(epsilon, 6), rtol=1e-9, atol=1e-12)
    assert found.left <= found.right + SLACK


@FEW
@given(spsd(dimensions=(5,), full_rank=True, spread=2.0), small_fractions)
def test_weak_coupling_of_experts_keeps_the_condition_number(case, coupling):
    """[prop:kappa-cross-coupling]"""
    sizes = (2, 3)
    blocks = blocks_of(case.matrix, sizes)
    decoupled = scipy.linalg.block_diag(blocks[0][0], blocks[1][1])
    gram = decoupled + coupling * (case.matrix - decoupled)
    found = bounds.coupled_condition_number(gram, sizes)
    assert_allclose(found.left, np.linalg.cond(gram), rtol=1e-8)
    norm, inner = np.linalg.norm(gram - decoupled, 2), np.linalg.eigvalsh(decoupled)
    assert found.left <= found.right * (1 + SLACK)
    if norm < inner[0] * 0.99:
        assert_allclose(found.right, (inner[-1] + norm) / (inner[0] - norm), rtol=1e-6)
    elif norm > inner[0] * 1.01:
        assert found.right == np.inf


# Perturbation bounds


def stability(epsilon, n):
    if epsilon > 1 - 1 / n:
        return np.log(n)
    return epsilon * np.log(max(n - 1, 1)) + entropy([epsilon, 1 - epsilon])


@pytest.mark.parametrize("n", [1, 2, 3, 10])
@pytest.mark.parametrize("share", [0.0, 1e-9, 0.3, 0.999, 1.0])
def test_the_stability_bound_is_attained_by_one_outcome_against_a_spread_one(n, share):
    """Fannes-Audenaert is tight for p = (1, 0, ..., 0) and q = (1 - eps, eps/(n-1), ...)."""
    epsilon = share * (1 - 1 / n)
    spread = np.array([1 - epsilon] + [epsilon / max(n - 1, 1)] * (n - 1))
    assert_allclose(bounds.stability_bound(epsilon, n), entropy(spread), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("n", [1, 2, 5, 1000])
def test_beyond_its_range_the_stability_bound_is_the_trivial_one(n):
    for epsilon in (1.0 - 1 / n, 1.0, 1.5, 1e6, float("inf")):
        assert_allclose(bounds.stability_bound(epsilon, n), np.log(n), rtol=1e-12, atol=1e-15)


@FEW
@given(fractions)
def test_binary_entropy(epsilon):
    assert_allclose(bounds.binary_entropy(epsilon), entropy([epsilon, 1 - epsilon]), rtol=1e-12, atol=1e-15)


@FEW
@given(spsd(dimensions=(2, 5)), small_fractions, st.integers(1, 2), st.floats(0.0, 4.0), seeds)
def test_close_matrices_have_close_effective_ranks(case, distance, rank, spread, seed):
    """[lem:effrank-stability], with the steps of its proof."""
    n = len(case.spectrum)
    other = known(n, rank, spread, case.spectrum[-1], seed)
    near = (1 - distance) * case.matrix + distance * other.matrix
    found = bounds.effective_rank_stability(case.matrix, near)
    change, trace = np.linalg.norm(case.matrix - near), min(np.trace(case.matrix), np.trace(near))
    epsilon = np.sqrt(n) * change / trace
    assert_allclose(found.right, stability(epsilon, n), rtol=1e-7, atol=1e-12)
    assert_allclose(found.left, abs(np.log(rank_of(case.matrix) / rank_of(near))), atol=1e-9)
    assert found.left <= found.right + SLACK
    inner = np.linalg.eigvalsh(near)
    assert np.linalg.norm(inner - case.spectrum) <= change + 1e-12 * case.spectrum[-1]  # Hoffman-Wielandt
    variation = np.abs(inner / inner.sum() - case.spectrum / case.spectrum.sum()).sum() / 2
    assert variation <= epsilon + SLACK


@FEW
@given(st.sampled_from([(4, 3, 5), (6, 2, 3)]), st.floats(-6.0, 2.0), seeds)
def test_gate_bounds_from_sample_space_equal_those_from_gauss_newton_blocks(shape, exponent, seed):
    """[cor:gate-expert-decoupling-bound, cor:ignore-gating-bound] and the block cosine."""
    samples, gate_width, expert_width = shape
    rng = np.random.default_rng(seed)
    gate = 10.0**exponent * rng.standard_normal((samples, gate_width))
    expert = rng.standard_normal((samples, expert_width))
    jacobian = np.hstack([gate, expert])
    whole = jacobian.T @ jacobian / samples
    inner, outer = slice(0, gate_width), slice(gate_width, None)
    diagonal = scipy.linalg.block_diag(whole[inner, inner], whole[outer, outer])
    alone = scipy.linalg.block_diag(np.zeros((gate_width, gate_width)), whole[outer, outer])
    p = gate_width + expert_width
    grams = gate @ gate.T, expert @ expert.T
    for function, approximation, tight in (
        (bounds.gate_expert_decoupling, diagonal, min(p, 2 * samples)),
        (bounds.ignoring_gate, alone, min(p, samples)),
    ):
        found = function(*grams, p)
        assert_allclose(found.left, abs(np.log(rank_of(whole) / rank_of(approximation))), atol=1e-9)
        epsilon = np.sqrt(p) * np.linalg.norm(whole - approximation) / min(np.trace(whole), np.trace(approximation))
        assert_allclose(found.right, stability(epsilon, p), rtol=1e-8)
        tighter = function(*grams, tight)
        assert found.left - SLACK <= tighter.right <= found.right + SLACK

    norms = [np.linalg.norm(whole[a, b]) for a, b in ((inner, outer), (inner, inner), (outer, outer))]
    cosine = bounds.block_cosine(*grams)
    assert_allclose(cosine, norms[0] / np.sqrt(norms[1] * norms[2]), rtol=1e-9)
    assert 0 <= cosine <= 1
    assert_allclose(bounds.block_cosine(grams[0], grams[0]), 1, rtol=1e-12)


@FEW
@given(st.sampled_from([(1, 2, 3), (6, 3, 2)]), fractions, seeds)
def test_kfac_error_is_bounded_by_the_fluctuation_of_its_factors(shape, share, seed):
    """[cor:kfac-factorization-bound]; gradients that follow the features make the factors move together."""
    tokens, m, n = shape
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((tokens, m))
    g = (1 - share) * rng.standard_normal((tokens, n)) + share * np.linalg.norm(a, axis=1, keepdims=True)
    y, x = np.einsum("ti,tj->tij", a, a), np.einsum("ti,tj->tij", g, g)
    exact = np.mean([np.kron(x[t], y[t]) for t in range(tokens)], axis=0)
    error = exact - np.kron(x.mean(0), y.mean(0))
    found = bounds.kfac_factorization(a, g)
    assert_allclose(found.left, np.linalg.norm(error), rtol=1e-6, atol=1e-7)
    fluctuation = [np.sqrt(np.mean(np.sum((part - part.mean(0)) ** 2, axis=(1, 2)))) for part in (x, y)]
    assert_allclose(found.right, fluctuation[0] * fluctuation[1], rtol=1e-6, atol=1e-7)
    assert found.left <= found.right + 1e-6

    direction = rng.standard_normal((n, m))
    curvature, proxy = bounds.kfac_curvatures(a, g, direction)
    vector = direction.ravel()
    assert_allclose(curvature, vector @ exact @ vector, rtol=1e-10)
    assert_allclose(proxy, vector @ np.kron(x.mean(0), y.mean(0)) @ vector, rtol=1e-10)
    assert abs(curvature - proxy) <= np.linalg.norm(error) * np.sum(direction**2) + SLACK


def test_kfac_is_exact_where_the_factors_do_not_fluctuate_together():
    signs = np.array(list(itertools.product([1.0, 2.0], [1.0, 3.0])))  # every size of a with every size of g
    found = bounds.kfac_factorization(signs[:, :1] * np.ones((4, 2)), signs[:, 1:] * np.ones((4, 3)))
    assert_allclose(found.left, 0, atol=1e-6)
    assert found.right > 1
