"""Stochastic Lanczos quadrature as a user meets it: under transformations, at any scale of the outputs, with NaN, with
few probes. That it finds the exact value is for `test_ntk.py`."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sphere import ntk, slq
from sphere.spectrum import effective_rank_spsd

N, OBS, WIDTH = 12, 4, 5
rng = np.random.default_rng(0)
X = rng.normal(size=(N, OBS)).astype(np.float32)
PARAMS = {"inner": rng.normal(size=(OBS, WIDTH)).astype(np.float32), "outer": np.ones(WIDTH, np.float32)}


def network(params, x):
    return jnp.tanh(x @ params["inner"]) @ params["outer"]


def estimate(params, scale=1.0, **settings):
    key = jax.random.key(0)
    return ntk.slq_effective_rank(lambda p, x: scale * network(p, x), params, X, key, **({"probes": 8} | settings))


compiled = jax.jit(estimate)
slope = jax.jit(jax.grad(lambda params, scale: estimate(params, scale).value))


def exact(params):
    jacobian = jax.jacrev(lambda p: network(p, jnp.asarray(X, p["outer"].dtype)))(params)
    flat = jnp.concatenate([leaf.reshape(N, -1) for leaf in jax.tree.leaves(jacobian)], axis=1)
    return effective_rank_spsd(flat @ flat.T)


def test_traced_parameters_under_jit_vmap_and_grad():
    want = estimate(PARAMS)
    for found in (compiled(PARAMS, 1.0), jax.tree.map(lambda v: v[0], jax.vmap(estimate)(_twice(PARAMS)))):
        np.testing.assert_allclose(found.value, want.value, rtol=1e-4)
        np.testing.assert_allclose(found.standard_error, want.standard_error, rtol=1e-3)
    gradient = slope(PARAMS, 1.0)
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, PARAMS)
    assert all(np.isfinite(leaf).all() and np.any(leaf) for leaf in jax.tree.leaves(gradient))


def _twice(params):
    return jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)


def test_probes_that_make_up_the_identity_give_the_exact_value_and_gradient(x64):
    """Of z = sqrt(n) e_i the mean of z z^T is I: no chance is left, and with full depth Lanczos is exact."""
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), PARAMS)
    z = N**0.5 * jnp.eye(N)

    def value(params):
        return slq.from_probes(lambda p: network(p, jnp.asarray(X, jnp.float64)), params, z, N).value

    found, gradient = jax.jit(jax.value_and_grad(value))(params)
    want, want_gradient = jax.value_and_grad(exact)(params)
    np.testing.assert_allclose(found, want, rtol=1e-9)
    for name in params:
        np.testing.assert_allclose(gradient[name], want_gradient[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-25, 1e-10, 1e10, 1e25])
def test_the_scale_of_the_outputs_does_not_matter_in_float32(scale):
    found, want = compiled(PARAMS, scale), compiled(PARAMS, 1.0)
    np.testing.assert_allclose(found.value, want.value, rtol=1e-3)
    np.testing.assert_allclose(found.standard_error, want.standard_error, rtol=1e-2)


def test_a_function_of_nan_is_nan_and_one_without_parameters_is_zero():
    found = compiled(PARAMS, jnp.nan)
    assert np.isnan(found).all()
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(slope(PARAMS, jnp.nan)))
    assert np.isnan(found.interval).all()
    one = jax.jit(lambda x: ntk.slq_effective_rank(network, PARAMS, x, jax.random.key(0), probes=8))
    assert np.isnan(one(jnp.asarray(X).at[3, 1].set(jnp.nan)).value)
    nothing = compiled(PARAMS, 0.0)
    assert (nothing.value, nothing.standard_error) == (0, 0)
    assert nothing.interval == (0, 0)


def test_no_estimate_and_no_interval_is_below_one_or_an_estimate_above_n():
    """One direction and a little more, four probes: two of five estimates would fall below 1."""
    x = jnp.asarray(np.column_stack([np.full(N, 10.0), X[:, :2]]), jnp.float32)

    @jax.jit
    def found(key):
        return ntk.slq_effective_rank(lambda p, x: x @ p, jnp.zeros(3), x, key, probes=4)

    for seed in range(20):
        one = found(jax.random.key(seed))
        low, high = one.interval
        assert 1 <= one.value <= N
        assert 1 <= low <= one.value <= high


def test_defaults_are_enough_for_a_small_bias():
    """Many estimates by the defaults: their mean is within 2% of the exact value, that by four probes is above it."""
    x = jnp.asarray(np.linalg.qr(rng.normal(size=(24, 24)))[0] / np.arange(1, 25), jnp.float32)  # eigenvalues 1 / k^2
    value = exact_of(np.asarray(x, float))

    def mean(probes):
        keys = jax.random.split(jax.random.key(1), 4096 // probes)
        one = jax.jit(
            lambda key: ntk.slq_effective_rank(lambda p, x: x @ p, jnp.zeros(24), x, key, probes=probes).value
        )
        return np.mean(jax.lax.map(one, keys)) / value

    default = inspect.signature(ntk.slq_effective_rank).parameters["probes"].default
    assert abs(mean(default) - 1) < 0.02
    assert mean(4) > 1.05


def exact_of(x):
    p = np.linalg.eigvalsh(x @ x.T)
    p = p[p > 1e-12] / p.sum()
    return np.exp(-np.sum(p * np.log(p)))
