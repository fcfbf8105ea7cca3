"""The penalty against the materialised Gram matrix, its routes against each other, its variants against formed
matrices."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import forward, network, np_forward, states

import sphere
from sphere import ntk
from sphere import penalty as penalties
from sphere.coefficient import penalised_value_and_grad
from sphere.methods.method import Look
from sphere.methods.sphere import Sphere
from sphere.nets import expert_signals
from sphere.penalty import Gram, routed_gram, scale_free
from sphere.variants import ALL_EXPERTS, VARIANTS, PenaltyConfig, gradient_blocks, penalty, terms

pytestmark = pytest.mark.usefixtures("x64")


def brute(phi):
    """||A - tr(A)/m I||_F^2 from A itself."""
    phi = np.asarray(phi)
    a = phi.T @ phi / len(phi)
    return np.sum((a - np.trace(a) / len(a) * np.eye(len(a))) ** 2)


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


def materialise(features, experts, num_experts):
    n, k, width = features.shape
    phi = np.zeros((n, num_experts, width))
    for i in range(n):
        for j in range(k):
            phi[i, experts[i, j]] += features[i, j]
    return phi.reshape(n, -1)


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
    want = brute(materialise(features, experts, num_experts))
    want_gradient = brute_gradient(materialise(features, experts, num_experts)).reshape(24, num_experts, 6)
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
    want = brute(materialise(without, np.where(experts == empty, 0, experts), 4))
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
    phi = materialise(features, experts, num_experts)
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


# Variants -------------------------------------------------------------------------------------------------------------


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


# Coefficient ----------------------------------------------------------------------------------------------------------


def two_losses(params, x):
    hidden = jnp.tanh(x @ params["w"])
    return jnp.mean(hidden @ params["v"]), penalties.anisotropy(penalties.gram(hidden)), hidden


def problem():
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.normal(size=(4, 6))), "v": jnp.asarray(rng.normal(size=6))}
    return params, jnp.asarray(rng.normal(size=(9, 4)))


@pytest.mark.parametrize("rho", [0.3, -0.2])
@pytest.mark.parametrize("mode", ["gradient-norm", "loss-ratio", "fixed"])
def test_coefficient_modes(mode, rho):
    params, x = problem()
    values, got = jax.jit(penalised_value_and_grad(two_losses, mode))(params, rho, x)
    task, extra = (jax.grad(lambda p, i=i: two_losses(p, x)[i])(params) for i in range(2))
    norms = [np.sqrt(sum(np.sum(np.square(leaf)) for leaf in g.values()) + 1e-8) for g in (task, extra)]
    loss, size, hidden = two_losses(params, x)
    want = {
        "gradient-norm": rho * norms[0] / (norms[1] + 1e-8),
        "loss-ratio": rho * abs(loss) / (size + 1e-8),
        "fixed": rho,
    }[mode]
    np.testing.assert_allclose(values.coefficient, want, rtol=1e-12)
    for name in params:
        np.testing.assert_allclose(got[name], task[name] + want * extra[name], rtol=1e-10)
    np.testing.assert_allclose([values.loss, values.penalty], [loss, size], rtol=1e-12)
    np.testing.assert_allclose(values.aux, hidden, rtol=1e-12)


def three_losses(params, x):
    """The second term's gradient is a thousand times as long as the first's."""
    loss, first, hidden = two_losses(params, x)
    return loss, (first, 1e3 * jnp.mean(jnp.cos(hidden) ** 2)), hidden


@pytest.mark.parametrize("rho", [0.3, (0.3, -0.1), (0.0, 0.2)])
@pytest.mark.parametrize("mode", ["gradient-norm", "loss-ratio", "fixed"])
def test_terms_of_a_penalty_have_a_coefficient_each(mode, rho):
    params, x = problem()
    values, got = jax.jit(penalised_value_and_grad(three_losses, mode))(params, rho, x)
    loss, sizes, _ = three_losses(params, x)
    task = jax.grad(lambda p: three_losses(p, x)[0])(params)
    want, coefficients = dict(task), []
    for i, (ratio, size) in enumerate(zip(rho if isinstance(rho, tuple) else (rho, rho), sizes, strict=True)):
        extra = jax.grad(lambda p, i=i: three_losses(p, x)[1][i])(params)
        norms = [np.sqrt(sum(np.sum(np.square(leaf)) for leaf in g.values()) + 1e-8) for g in (task, extra)]
        coefficients.append(
            ratio
            * {"gradient-norm": norms[0] / (norms[1] + 1e-8), "loss-ratio": abs(loss) / (size + 1e-8), "fixed": 1}[mode]
        )
        want = {name: want[name] + coefficients[-1] * extra[name] for name in want}
    np.testing.assert_allclose(values.coefficient, coefficients, rtol=1e-12)
    np.testing.assert_allclose(values.penalty, sizes, rtol=1e-12)
    for name in params:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-10)


@pytest.mark.parametrize(("variant", "weight"), [("feature+gradient", 1.0), ("layer-entropy", 0.5)])
def test_in_training_each_term_is_felt_as_rho_says(variant, weight):
    """Both gradients are rho times as long as the task's, however long they are by themselves."""
    params, static = eqx.partition(network("top-k", width=16), eqx.is_inexact_array)
    x, config = states(32), PenaltyConfig(variant=variant, entropy_weight=0.5)

    def function(params):
        net = eqx.combine(params, static)
        output, trace = net(x)
        look = Look("actor", net, net, x, trace, None, lambda params: params)
        return jnp.mean(jnp.sin(output)), look, None

    def part(params, i):
        look = function(params)[1]
        return terms(config, look.raw, x, look.trace)[i]

    values, got = jax.jit(Sphere(**vars(config)).gradient("actor", function))(params, 0.1)
    task = jax.device_get(jax.jit(jax.grad(lambda params: function(params)[0]))(params))
    parts = [jax.device_get(jax.jit(jax.grad(part), static_argnums=1)(params, i)) for i in range(2)]

    def length(tree):
        return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree)))

    want = task
    for strength, part in zip((0.1, 0.1 * weight), parts, strict=True):
        share = strength * length(task) / length(part)
        want = jax.tree.map(lambda w, p, share=share: w + share * p, want, part)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9)
    assert np.ndim(values.penalty) == np.ndim(values.coefficient) == 0


def test_what_is_called_wrongly_is_told():
    with pytest.raises(ValueError, match="aux may be None"):
        penalised_value_and_grad(lambda p: (p @ p, p @ p))(jnp.ones(2), 0.1)
    with pytest.raises(ValueError, match="rho is one number"):
        penalised_value_and_grad(lambda p, x: (p @ x, p @ x, None))(jnp.ones(2), jnp.ones(2), 0.1)
    with pytest.raises(ValueError, match="3 values of rho for a penalty of 1 terms"):
        penalised_value_and_grad(lambda p: (p @ p, p @ p, None))(jnp.ones(2), (0.1, 0.1, 0.1))


@pytest.mark.parametrize("coefficient", ["gradient-norm", "loss-ratio", "fixed"])
def test_a_rho_that_is_no_number_is_refused(coefficient):
    call = penalised_value_and_grad(lambda p: (p @ p, p @ p, None), coefficient)
    for rho in ("0.1", None, ("0.1",)):
        with pytest.raises(TypeError, match="wanted a number"):
            call(jnp.ones(2), rho)
    for rho in (float("nan"), np.inf, jnp.asarray(jnp.nan), (jnp.nan,)):
        with pytest.raises(ValueError, match="wanted a finite number"):
            call(jnp.ones(2), rho)
    assert np.isnan(jax.jit(call)(jnp.ones(2), jnp.nan)[1]).all()  # inside jit: NaN in, NaN out


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e-6])
def test_a_penalty_with_a_tiny_gradient_is_felt_less_than_rho_says(size):
    """1e-8 under the root of the released code's norms: lambda ||grad penalty|| / ||grad task|| = rho s / sqrt(s^2 +
    1e-8)."""
    rho, x = 0.1, jnp.asarray([0.6, 0.8])
    function = penalised_value_and_grad(lambda p: (3 * p @ x, size * p @ x, None))
    values, gradient = function(jnp.zeros(2), rho)
    felt = values.coefficient * size / 3
    np.testing.assert_allclose(felt, rho * size / np.hypot(size, 1e-4), rtol=2e-4)  # 1e-8 beside 1e-4, once more
    np.testing.assert_allclose(gradient, 3 * x * (1 + felt), rtol=1e-6)


@pytest.mark.parametrize("mode", ["gradient-norm", "loss-ratio", "fixed"])
def test_rho_zero_changes_nothing_bit_for_bit(mode):
    """In float32, as in training, against the plain gradient of the task loss, for the actor that is trained."""
    with jax.enable_x64(False):
        net, x = network("top-k", width=32), states(64)
        assert x.dtype == jnp.float32
        params, static = eqx.partition(net, eqx.is_inexact_array)

        def losses(params):
            net = eqx.combine(params, static)
            output, trace = net(x)
            return jnp.mean(jnp.sin(output)), penalty(PenaltyConfig(), net, x, trace), None

        _, got = jax.jit(penalised_value_and_grad(losses, mode))(params, jnp.float32(0))
        plain = jax.jit(jax.grad(lambda params: losses(params)[0]))(params)
        # A GPU's compiler may sum a gradient in another order in another program; a CPU's does not.
        tolerance = {} if jax.default_backend() == "cpu" else {"atol": 1e-6}
        for with_penalty, without in zip(jax.tree.leaves(got), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(with_penalty, without, **{"rtol": 0, "atol": 0, **tolerance})


def test_rho_is_a_traced_scalar_of_a_fleet():
    params, x = problem()
    rhos = jnp.array([0.0, 0.1, -0.1])
    step = penalised_value_and_grad(two_losses)
    one = jax.jit(lambda rho: step(params, rho, x)[1]["w"])
    together = jax.jit(jax.vmap(one))(rhos)
    for i, rho in enumerate(rhos):
        np.testing.assert_allclose(together[i], one(rho), rtol=1e-12)


# Errors and edge values -----------------------------------------------------------------------------------------------


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
        (lambda: penalised_value_and_grad(two_losses, "norm"), "use gradient-norm, loss-ratio or fixed"),
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


@pytest.mark.parametrize("wrapped", [False, True], ids=["outside jit", "inside jit"])
@pytest.mark.parametrize("kind", [float, bool])
def test_weights_in_place_of_indices_are_refused(kind, wrapped):
    features, experts = jnp.ones((4, 2, 3)), jnp.ones((4, 2), kind)
    call = (
        jax.jit(lambda f, e: sphere.routed_penalty(f, e, 5)) if wrapped else lambda f, e: sphere.routed_penalty(f, e, 5)
    )
    with pytest.raises(ValueError, match="wanted integers"):
        call(features, experts)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_has_the_coefficient_of_single(dtype):
    """A penalty with a gradient of 1e-4 an entry, whose square float16 cannot hold, and one without any."""
    for slope in (1e-4, 0.0):

        def losses(params, slope=slope):
            return jnp.sum(params["w"]), jnp.sum(slope * params["w"]).astype(params["w"].dtype), None

        found, grads = zip(
            *(penalised_value_and_grad(losses)({"w": jnp.ones(8, kind)}, 0.1) for kind in (dtype, jnp.float32)),
            strict=True,
        )
        assert grads[0]["w"].dtype == dtype
        np.testing.assert_allclose(found[0].coefficient, found[1].coefficient, rtol=0.02)
        np.testing.assert_allclose(np.float32(grads[0]["w"]), grads[1]["w"], rtol=0.02)


def test_chosen_experts_may_be_a_list():
    features = np.random.default_rng(0).normal(size=(3, 2, 4))
    experts = [[0, 1], [2, 0], [1, 2]]
    assert sphere.routed_penalty(features, experts, 3) == sphere.routed_penalty(features, jnp.asarray(experts), 3)
    with pytest.raises(ValueError, match="wanted 0 to 2"):
        sphere.routed_penalty(features, [[0, 1], [2, 0], [1, 3]], 3)


def test_numbers_beyond_single_precision_are_refused():
    with pytest.raises(ValueError, match="2 NaN or infinite"), jax.enable_x64(False):
        sphere.sphere_penalty(np.diag([1e39, 1e39]))


@pytest.mark.parametrize("kind", ["top-k", "dense"])
def test_signals_are_those_of_the_linear_layer_also_before_a_layernorm(kind):
    """G_last is one matrix, whichever part of the library is asked."""
    net, x = network(kind, layer_norm=True, compute="dense"), states()
    psi = eqx.filter_jit(ntk.kronecker_factors)(net, x)[-2].psi
    np.testing.assert_allclose(eqx.filter_jit(gradient_blocks)(net, x), psi, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_a_relative_floor_is_felt_as_rho_says_whatever_the_scale(scale):
    """At the released floor of 1e-4 a short gradient of the penalty is hardly felt."""
    params, x = problem()

    def losses(params, x):
        loss, penalty, hidden = two_losses(params, x)
        return loss, scale * penalty, hidden

    task, extra = (jax.grad(lambda p, i=i: losses(p, x)[i])(params) for i in range(2))
    t, p = (np.sqrt(sum(np.sum(np.square(leaf)) for leaf in g.values())) for g in (task, extra))
    values, got = jax.jit(penalised_value_and_grad(losses, floor=1e-8, felt=True))(params, 0.1, x)
    want = 0.1 * t / np.sqrt(p**2 + (1e-8 * t) ** 2)
    np.testing.assert_allclose(values.coefficient, want, rtol=1e-10)
    np.testing.assert_allclose(values.felt, want * p / t, rtol=1e-10)
    for name in params:
        np.testing.assert_allclose(got[name], task[name] + want * extra[name], rtol=1e-10)
    released = jax.jit(penalised_value_and_grad(losses, felt=True))(params, 0.1, x)[0]
    np.testing.assert_allclose(released.felt, released.coefficient * p / t, rtol=1e-10)
    assert (released.felt < 0.01) == (scale < 1)
    with pytest.raises(ValueError, match=r"floor is 0, wanted a small number above 0 such as 1e-12"):
        penalised_value_and_grad(losses, floor=0)
    with pytest.raises(ValueError, match="coefficient 'fixed' knows no floor and no felt ratio"):
        penalised_value_and_grad(losses, "fixed", felt=True)
