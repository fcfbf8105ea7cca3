"""The penalty against the materialised Gram matrix, its routes against each other, and what is refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import brute, one_hot_features

import sphere
from sphere import penalty as penalties
from sphere.coefficient import penalised_value_and_grad
from sphere.penalty import Gram, routed_gram, scale_free

pytestmark = pytest.mark.usefixtures("x64")


def brute_gradient(phi):
    """(4/N) Phi (A - tr(A)/m I), from dL/dA = 2 (A - tr(A)/m I) and A = Phi^T Phi / N."""
    phi = np.asarray(phi)
    a = phi.T @ phi / len(phi)
    return 4 / len(phi) * phi @ (a - np.trace(a) / len(a) * np.eye(len(a)))


def test_the_product_of_rows_has_the_derivatives_of_x_xT():
    """Forward, backward, and both again: users differentiate the penalty in any way they like."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, dx, weight = (jax.random.normal(key, shape) for key, shape in zip(keys, [(5, 3), (5, 3), (5, 5)], strict=True))
    found, moved = jax.jvp(penalties.rows_by_rows, (x,), (dx,))
    np.testing.assert_allclose(found, x @ x.T, rtol=1e-12)
    np.testing.assert_allclose(moved, dx @ x.T + x @ dx.T, rtol=1e-12)

    def value(x):
        return jnp.sum(weight * penalties.rows_by_rows(x))  # no symmetry in the cotangent

    both = weight + weight.T
    np.testing.assert_allclose(jax.grad(value)(x), both @ x, rtol=1e-12)
    np.testing.assert_allclose(jax.jvp(jax.grad(value), (x,), (dx,))[1], both @ dx, rtol=1e-12)


def routed(n, k, width, num_experts, seed, unused=()):
    """Random tokens; ties of experts within the batch are certain, `unused` experts never appear."""
    rng = np.random.default_rng(seed)
    allowed = [e for e in range(num_experts) if e not in unused]
    experts = np.stack([rng.choice(allowed, size=k, replace=False) for _ in range(n)])
    return rng.normal(size=(n, k, width)), experts


@pytest.mark.parametrize("shape", [(30, 8), (8, 30), (1, 5), (9, 9)])
def test_penalty_and_gradient_equal_those_of_the_materialised_gram(shape):
    phi = np.random.default_rng(0).normal(size=shape)
    value, gradient = jax.value_and_grad(sphere.sphere_penalty)(jnp.asarray(phi))
    np.testing.assert_allclose(value, brute(phi), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(gradient, brute_gradient(phi), rtol=1e-10, atol=1e-10)


def test_gradient_by_finite_differences():
    phi = np.random.default_rng(1).normal(size=(6, 5))
    gradient = jax.grad(sphere.sphere_penalty)(jnp.asarray(phi))
    for i, j in [(0, 0), (3, 2), (5, 4)]:
        step = np.zeros_like(phi)
        step[i, j] = 1e-6
        difference = (brute(phi + step) - brute(phi - step)) / 2e-6
        np.testing.assert_allclose(gradient[i, j], difference, rtol=1e-7)


@pytest.mark.parametrize("num_experts", [1, 4, 10, 64])
def test_three_routes_agree_with_ties_and_unused_experts(num_experts):
    k = min(2, num_experts)
    unused = (0, num_experts - 1) if num_experts >= 4 else ()
    features, experts = routed(24, k, 6, num_experts, seed=num_experts, unused=unused)
    want = brute(one_hot_features(features, experts, num_experts))
    want_gradient = brute_gradient(one_hot_features(features, experts, num_experts)).reshape(24, num_experts, 6)
    f, e = jnp.asarray(features), jnp.asarray(experts)
    for route in ("routed", "dense", "auto"):

        def value(f, route=route):
            return penalties.anisotropy(routed_gram(f, e, num_experts, route))

        got, gradient = jax.jit(jax.value_and_grad(value))(f)
        np.testing.assert_allclose(got, want, rtol=1e-10)
        np.testing.assert_allclose(gradient, np.take_along_axis(want_gradient, experts[:, :, None], 1), atol=1e-10)
    np.testing.assert_allclose(sphere.routed_penalty(f, e, num_experts), want, rtol=1e-10)


@pytest.mark.parametrize("empty", [-1, 4])
def test_a_place_without_an_expert_counts_nowhere(empty):
    features, experts = routed(9, 2, 3, 4, seed=0)
    experts[2, 1] = experts[5, 0] = empty
    without = np.where((experts == empty)[:, :, None], 0, features)
    want = brute(one_hot_features(without, np.where(experts == empty, 0, experts), 4))
    for route in ("routed", "dense"):
        got = penalties.anisotropy(routed_gram(jnp.asarray(features), jnp.asarray(experts), 4, route))
        np.testing.assert_allclose(got, want, rtol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_routed_gram_on_random_shapes(n, num_experts, width, seed):
    k = 1 + seed % num_experts
    features, experts = routed(n, k, width, num_experts, seed)
    with jax.enable_x64(True):
        got = jax.jit(partial(routed_gram, num_experts=num_experts, route="routed"))(features, experts)
    phi = one_hot_features(features, experts, num_experts)
    a = phi.T @ phi / n
    np.testing.assert_allclose(got.trace, np.trace(a), rtol=1e-10)
    np.testing.assert_allclose(got.square, np.sum(a * a), rtol=1e-10)
    assert got.size == len(a)


def test_the_routed_route_never_builds_phi_and_does_not_grow_with_the_number_of_experts():
    f, e = jnp.zeros((8, 2, 4)), jnp.zeros((8, 2), int)
    programs = [
        str(jax.make_jaxpr(lambda f, e, n=n: penalties.anisotropy(routed_gram(f, e, n)))(f, e)) for n in (100, 100_000)
    ]
    assert len(programs[0]) == pytest.approx(len(programs[1]), abs=40)
    assert "400000" not in programs[1].replace("400000.0", "")  # m itself is a number in it, no array has that size


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: sphere.sphere_penalty(jnp.zeros((3, 4))), "all zeros"),
        (lambda: sphere.sphere_penalty(jnp.zeros((0, 4))), "empty"),
        (lambda: sphere.sphere_penalty(jnp.ones(4)), "wanted one matrix"),
        (lambda: sphere.sphere_penalty(jnp.array([[1.0, jnp.nan]])), "1 NaN or infinite"),
        (lambda: sphere.routed_penalty(jnp.ones((3, 2, 4)), jnp.zeros((3, 2), int), 1), "num_experts is 1"),
        (lambda: sphere.routed_penalty(jnp.ones((3, 2, 4)), jnp.zeros((3, 1), int), 4), r"wanted \(3, 2\)"),
        (lambda: sphere.routed_penalty(jnp.ones((3, 2, 4)), jnp.full((3, 2), 4), 4), "wanted 0 to 3"),
        (lambda: sphere.routed_penalty(jnp.ones((3, 2)), jnp.zeros((3, 2), int), 4), "three dimensions"),
        (
            lambda: penalised_value_and_grad(lambda p: (p @ p, p @ p, None), "norm"),
            "use gradient-norm, loss-ratio or fixed",
        ),
    ],
)
def test_bad_input_is_answered_with_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_inside_jit_zero_features_have_penalty_and_gradient_zero():
    zeros = jnp.zeros((5, 3))
    for form in (sphere.sphere_penalty, lambda phi: scale_free(penalties.gram(phi))):
        value, gradient = jax.jit(jax.value_and_grad(form))(zeros)
        assert float(value) == 0
        np.testing.assert_array_equal(gradient, 0)
    assert float(scale_free(Gram(jnp.zeros(()), jnp.zeros(()), 3))) == 0


@pytest.mark.parametrize("wrapped", [False, True], ids=["outside jit", "inside jit"])
@pytest.mark.parametrize("kind", [float, bool])
def test_weights_in_place_of_indices_are_refused(kind, wrapped):
    features, experts = jnp.ones((4, 2, 3)), jnp.ones((4, 2), kind)
    call = (
        jax.jit(lambda f, e: sphere.routed_penalty(f, e, 5)) if wrapped else lambda f, e: sphere.routed_penalty(f, e, 5)
    )
    with pytest.raises(ValueError, match="wanted integers"):
        call(features, experts)


def test_chosen_experts_may_be_a_list():
    features = np.random.default_rng(0).normal(size=(3, 2, 4))
    experts = [[0, 1], [2, 0], [1, 2]]
    assert sphere.routed_penalty(features, experts, 3) == sphere.routed_penalty(features, jnp.asarray(experts), 3)
    with pytest.raises(ValueError, match="wanted 0 to 2"):
        sphere.routed_penalty(features, [[0, 1], [2, 0], [1, 3]], 3)


def test_numbers_beyond_single_precision_are_refused():
    with pytest.raises(ValueError, match="2 NaN or infinite"), jax.enable_x64(False):
        sphere.sphere_penalty(np.diag([1e39, 1e39]))
