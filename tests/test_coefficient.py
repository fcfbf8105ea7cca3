"""How strongly a penalty acts: its coefficient from lengths of gradients, losses or fixed, term by term."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import network, states

from sphere import penalty as penalties
from sphere.coefficient import penalised_value_and_grad
from sphere.methods.method import Look
from sphere.methods.sphere import Sphere
from sphere.variants import PenaltyConfig, penalty, terms

pytestmark = pytest.mark.usefixtures("x64")


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
