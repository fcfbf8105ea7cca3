"""Penalties, load balance and diagnostics of a Transformer, token by token and without its padding."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoders import EXPERTS, as_torch, forward, image_net, images, text_net, texts

from sphere.diagnostics import diagnose
from sphere.methods import LoadBalance
from sphere.methods.method import Look
from sphere.nets import Logits
from sphere.nets.trace import sampled
from sphere.variants import PenaltyConfig, penalty

pytestmark = pytest.mark.usefixtures("x64")


def brute(phi):
    """||A - (tr(A) / m) I||_F^2 with A = phi^T phi / rows."""
    a = phi.T @ phi / len(phi)
    return np.sum((a - np.trace(a) / len(a) * np.eye(len(a))) ** 2)


def features(net, x):
    """Rows of Phi for every token that is no padding, of each mixture."""
    return [phi.detach().numpy() for phi in forward(as_torch(net, "float64")[1], x)[1]]


@pytest.mark.parametrize("compute", ["dense", "grouped"])
@pytest.mark.parametrize(("make", "draw"), [(text_net, texts), (image_net, images)])
def test_the_penalty_is_of_the_mean_over_tokens_without_padding(make, draw, compute):
    net, x = make(layers=2, compute=compute), draw()
    each = [brute(phi) for phi in features(net, x)]

    @eqx.filter_jit
    def value(net, config):
        return penalty(config, net, jnp.asarray(x), net(jnp.asarray(x))[1])

    np.testing.assert_allclose(value(net, PenaltyConfig()), each[-1], rtol=1e-9)
    np.testing.assert_allclose(value(net, PenaltyConfig(mixtures="all")), sum(each), rtol=1e-9)
    rows = len(features(net, x)[0])
    np.testing.assert_allclose(value(net, PenaltyConfig(rows=rows)), each[-1], rtol=1e-9)
    if rows < np.size(x):
        np.testing.assert_allclose(value(net, PenaltyConfig(rows=rows + 1)), each[-1], rtol=1e-9)


@pytest.mark.parametrize(("make", "draw"), [(text_net, texts), (image_net, images)])
def test_some_tokens_are_spread_evenly_over_those_that_are_no_padding(make, draw):
    net, x = make(), draw(7)
    phi = features(net, x)[0]
    trace = eqx.filter_jit(net)(jnp.asarray(x))[1]
    most = len(phi) // 3
    few = sampled(trace.mixtures[0], most)
    rows = np.asarray(few.weighted().reshape(most, -1)) if few.aligned else None
    assert few.weight.shape[0] == most
    assert few.real is None or np.all(few.real)
    found = [int(np.argmin(np.abs(phi - row).sum(axis=1))) for row in rows]
    np.testing.assert_allclose(phi[found], rows, atol=1e-9)
    assert sorted(set(found)) == found  # in order, none twice
    parts = np.searchsorted(np.arange(1, most + 1) * len(phi) // most, found, side="right")
    assert list(parts) == list(range(most))  # one of each of so many equal parts
    got = eqx.filter_jit(lambda net: penalty(PenaltyConfig(rows=most), net, jnp.asarray(x), net(jnp.asarray(x))[1]))(
        net
    )
    np.testing.assert_allclose(got, brute(phi[found]), rtol=1e-9)


def test_the_gradient_of_some_tokens_has_no_scatter_that_adds_up():
    """On a GPU such a scatter would be sorted number by number."""
    mixture = eqx.filter_jit(text_net())(jnp.asarray(texts(7)))[1].mixtures[0]

    def loss(hidden):
        few = sampled(eqx.tree_at(lambda one: one.hidden, mixture, hidden), 5)
        return jnp.sum(jnp.sin(few.features))

    scatters = [
        line for line in jax.jit(jax.grad(loss)).lower(mixture.hidden).as_text().splitlines() if "scatter" in line
    ]
    assert scatters
    assert all("unique_indices = true" in line for line in scatters)


def test_variants_on_all_experts_refuse_some_tokens():
    net, x = text_net(compute="dense"), jnp.asarray(texts())
    with pytest.raises(ValueError, match="takes all rows"):
        penalty(PenaltyConfig(variant="unweighted", rows=4), net, x, net(x)[1])


def test_load_balance_counts_no_padding():
    net, x = Logits(text_net()), jnp.asarray(texts(), float)
    trace = eqx.filter_jit(net)(x)[1]
    term = LoadBalance().term(None, Look("actor", net, net, x, trace, None, lambda net: net))
    real = np.asarray(x).reshape(-1) != 0
    routing = trace.mixtures[0].routing
    logits = np.asarray(routing.logits)[real]
    chosen = np.array(
        [[e in sorted(range(EXPERTS), key=lambda e: -row[e])[:2] for e in range(EXPERTS)] for row in logits]
    )
    mean = np.asarray(jax.nn.softmax(logits)).mean(axis=0)
    np.testing.assert_allclose(term.value, EXPERTS * np.sum(chosen.sum(axis=0) / chosen.sum() * mean), rtol=1e-9)


def test_diagnostics_are_of_tokens_without_padding():
    net, x = text_net(), jnp.asarray(texts(3), float)
    lengths = [6, 6, 6]  # then nothing is left out, and the numbers are those of all tokens
    whole = jnp.asarray([[1 + (i + j) % 10 for j in range(n)] for i, n in enumerate(lengths)], float)
    got = diagnose(net, whole)
    phi = features(net, np.asarray(whole))[0]
    np.testing.assert_allclose(got.feature_norm, np.linalg.norm(phi, axis=1).mean(), rtol=1e-9)
    found = diagnose(net, x)
    assert np.isfinite(found.ntk_rank)
    real = features(net, np.asarray(x))[0]
    norms = np.linalg.norm(real, axis=1)
    assert norms.min() <= found.feature_norm <= norms.max()
    assert found.active_ratio == np.mean(np.abs(real).reshape(len(real), EXPERTS, -1).sum(axis=(0, 2)) > 0)
