"""The exact NTK against the materialised Jacobian, its parts and factors, and the stochastic estimate against it."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import ACT, KINDS, OBS, config, flat_jacobian, network, states

import sphere
from sphere import ntk
from sphere.nets import GaussianActor, TwinQ, Value, build, output_signals

pytestmark = pytest.mark.usefixtures("x64")


def rank_of(k):
    p = np.linalg.eigvalsh(k)
    p = p[p > 0] / p.sum()
    return np.exp(-np.sum(p * np.log(p)))


@pytest.mark.parametrize(("layer_norm", "compute"), [(False, "dense"), (True, "grouped")])
@pytest.mark.parametrize("kind", KINDS)
def test_gram_equals_the_materialised_jacobian(kind, layer_norm, compute):
    net, x = network(kind, layer_norm=layer_norm, compute=compute, temperature=0.8), states()
    jacobian = flat_jacobian(net, x)
    gram, rank = eqx.filter_jit(lambda net: (ntk.gram(net, x), ntk.effective_rank(net, x)))(net)
    np.testing.assert_allclose(gram, jacobian @ jacobian.T, atol=1e-10, rtol=1e-10)
    np.testing.assert_allclose(rank, rank_of(jacobian @ jacobian.T), rtol=1e-10)


@pytest.mark.parametrize("kind", ["top-k", "expert-choice"])
def test_batched_evaluation_gives_the_same_numbers(kind):
    net, x = network(kind), states(29)
    whole = eqx.filter_jit(ntk.gram)(net, x)
    for size in (3, 28, 1000):
        np.testing.assert_allclose(eqx.filter_jit(ntk.gram)(net, x, batch_size=size), whole, atol=1e-12)


def test_a_last_batch_that_a_network_would_compute_in_another_form():
    net, x = network("top-k", experts=10, width=256, depth=1, compute="auto"), states(300)
    forms = {eqx.filter_eval_shape(net, x[:count])[1].mixtures[0].aligned for count in (128, 44)}
    if jax.default_backend() == "cpu":
        assert len(forms) == 2
    whole = eqx.filter_jit(ntk.gram)(net, x)
    np.testing.assert_allclose(eqx.filter_jit(ntk.gram)(net, x, batch_size=128), whole, atol=1e-11)


@pytest.mark.parametrize("kind", ["mlp", "top-k", "soft"])
def test_gate_and_expert_blocks(kind):
    net, x = network(kind), states()
    split = eqx.filter_jit(ntk.blocks)(net, x)
    params, static = eqx.partition(net, eqx.is_inexact_array)
    jacobian = jax.jit(jax.jacrev(lambda p: eqx.combine(p, static)(x)[0].sum(axis=1)))(params)

    def outer(tree):
        flat = np.concatenate([np.asarray(leaf).reshape(len(x), -1) for leaf in jax.tree.leaves(tree)], axis=1)
        return flat @ flat.T

    want = (np.zeros((20, 20)), outer(jacobian)) if kind == "mlp" else (outer(jacobian.router), outer(jacobian.experts))
    np.testing.assert_allclose(split.gate, want[0], atol=1e-10)
    np.testing.assert_allclose(split.expert, want[1], atol=1e-10)


@pytest.mark.parametrize("compute", ["dense", "grouped"])
def test_kronecker_factors_rebuild_the_expert_share(compute):
    """K_l = sum_e (phi_ie . phi_je + h_ie h_je) (psi_ie . psi_je): Eq. moe-exact-same-layer seen from the samples."""
    net, x = network("top-k", compute=compute), states()
    factors = eqx.filter_jit(ntk.kronecker_factors)(net, x)
    gate = np.asarray(eqx.filter_jit(net)(x)[1].mixtures[0].routing.gate)
    total = np.zeros((20, 20))
    for phi, psi in factors:
        inner = np.einsum("neh,meh->enm", phi, phi) + np.einsum("ne,me->enm", gate, gate)
        total += np.sum(inner * np.einsum("neh,meh->enm", psi, psi), axis=0)
    np.testing.assert_allclose(total, eqx.filter_jit(ntk.blocks)(net, x).expert, atol=1e-10)
    assert len(factors) == 3


def test_heads_and_pairs():
    x = states()
    actor = GaussianActor(network("top-k"), ACT)
    gram = eqx.filter_jit(ntk.gram)
    np.testing.assert_array_equal(gram(actor, x), gram(actor.trunk, x))  # log_std is left out
    value = Value(network("top-k"))
    np.testing.assert_array_equal(gram(value, x), gram(value.trunk, x))
    twin = TwinQ(lambda key: build(config("mlp"), OBS, 1, key=key), key=jax.random.key(0))
    np.testing.assert_allclose(gram(twin, x), gram(twin.first, x) + gram(twin.second, x), atol=1e-12)


def test_factors_of_a_head_are_its_trunks():
    x = states()
    for trunk in (network("top-k"), network("expert-choice")):
        actor = GaussianActor(trunk, ACT)
        both = eqx.filter_jit(lambda net: (ntk.factors(net, x, 6), output_signals(net, x)))
        (factors, signals), (trunks, trunk_signals) = both(actor), both(trunk)
        for ours, theirs in zip(factors, trunks, strict=True):
            np.testing.assert_array_equal(ours.signal, theirs.signal)
        for ours, theirs in zip(signals, trunk_signals, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("function", [ntk.factors, ntk.kronecker_factors])
def test_a_pair_has_no_factors_of_its_own(function):
    twin = TwinQ(lambda key: build(config("mlp"), OBS, 1, key=key), key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"pass net\.trunks\['first'\] or net\.trunks\['second'\]"):
        function(twin, states())


def test_one_expert_has_the_kernel_of_the_mlp():
    moe, x = network("top-k", experts=1, top_k=1), states()
    mlp = jax.tree.map(lambda leaf: leaf[0], moe.experts)
    np.testing.assert_allclose(eqx.filter_jit(ntk.gram)(moe, x), eqx.filter_jit(ntk.gram)(mlp, x), atol=1e-12)
    np.testing.assert_array_equal(eqx.filter_jit(ntk.blocks)(moe, x).gate, 0)


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_slq_is_within_three_standard_errors_of_exact(distribution):
    net, x = network("top-k"), states(40)
    params, static = eqx.partition(net, eqx.is_inexact_array)
    exact = float(eqx.filter_jit(ntk.effective_rank)(net, x))

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})  # it runs for longer than it compiles
    def estimate(key):
        return ntk.slq_effective_rank(
            lambda p, x: eqx.combine(p, static)(x)[0],
            params,
            x,
            key,
            probes=64,
            depth=40,
            distribution=distribution,
        )

    runs = [estimate(jax.random.key(seed)) for seed in range(20)]
    errors = np.array([(run.value - exact) / run.standard_error for run in runs])
    assert np.all(np.abs(errors) < 4)
    assert np.sum(np.abs(errors) < 3) >= 19
    # the error bars are neither too wide nor too narrow: standardised errors have a spread of about one
    assert 0.5 < np.sqrt(np.mean(errors**2)) < 1.7


def test_slq_of_a_rank_deficient_kernel_and_of_any_function():
    """A linear function: K = X X^T, of rank 3 here, so Lanczos ends before its depth."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(30, 3)))
    estimate = ntk.slq_effective_rank(lambda p, x: x @ p, jnp.zeros(3), x, jax.random.key(0), probes=200, depth=20)
    exact = rank_of(np.asarray(x @ x.T))
    assert 0 < float(estimate.standard_error) < 0.25
    assert abs(float(estimate.value) - exact) < 3 * float(estimate.standard_error)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float64])
def test_slq_of_a_function_that_computes_in_another_precision(dtype):
    """Outputs x @ p, exact in any precision for these numbers: K = X X^T as before."""
    x = jnp.asarray(np.random.default_rng(1).integers(-3, 4, size=(12, 3)), jnp.float32)
    estimate = ntk.slq_effective_rank(
        lambda p, x: x.astype(dtype) @ p, jnp.zeros(3, dtype), x, jax.random.key(0), probes=200, depth=12
    )
    exact = rank_of(np.asarray(x @ x.T))
    assert abs(float(estimate.value) - exact) < 3 * float(estimate.standard_error) < 0.5


def test_slq_of_a_function_of_token_ids():
    """Each row's output is the sum of its tokens' parameters: J counts tokens."""
    tokens = np.random.default_rng(2).integers(0, 6, size=(12, 4))
    estimate = ntk.slq_effective_rank(
        lambda p, ids: p[ids].sum(axis=1), jnp.zeros(6), tokens, jax.random.key(0), probes=400, depth=12
    )
    counts = np.stack([np.bincount(row, minlength=6) for row in tokens]).astype(float)
    assert abs(float(estimate.value) - rank_of(counts @ counts.T)) < 3 * float(estimate.standard_error) < 0.5


def test_float32_is_good_enough_to_log():
    with jax.enable_x64(False):
        net, x = network("top-k"), states(64)
        single = float(eqx.filter_jit(ntk.effective_rank)(net, x))
    double = float(eqx.filter_jit(ntk.effective_rank)(network("top-k"), jnp.asarray(np.asarray(x), jnp.float64)))
    np.testing.assert_allclose(single, double, rtol=2e-3)


def slq(**settings):
    return slq_of(lambda p, x: x @ p, jnp.zeros(OBS), **settings)


def slq_of(fn, params, **settings):
    return ntk.slq_effective_rank(fn, params, states(), jax.random.key(0), **settings)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda net: ntk.gram(net, jnp.zeros((0, OBS))), "empty"),
        (lambda net: ntk.gram(net, jnp.zeros(OBS)), "wanted one matrix"),
        (lambda net: ntk.gram(net, jnp.full((2, OBS), jnp.inf)), "NaN or infinite"),
        (lambda net: ntk.gram(net, states(), batch_size=0), "use 1 or more"),
        (lambda net: slq(probes=1), "at least 2"),
        (lambda net: slq(distribution="u"), "rademacher"),
        (lambda net: slq(depth=0), "at least 1 step"),
        (lambda net: ntk.lanczos(lambda v: v, jnp.ones(4) / 2, -1), "at least 1 step"),
        (lambda net: ntk.effective_rank(net, states()[:, 1:]), rf"wanted \[n, {OBS}\]"),
        (lambda net: slq_of(lambda p, x: p @ x.T @ x, jnp.ones(OBS)), "a row for each state"),
        (lambda net: slq_of(lambda p, x: (x @ p, None), jnp.ones(OBS)), "gives tuple"),
        (lambda net: slq_of(lambda p, x: x[:, 0], {}), "holds no real numbers"),
        (lambda net: slq_of(lambda p, x: x[:, 0], jnp.arange(3)), "holds no real numbers"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(network("mlp"))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: ntk.effective_rank(lambda x: x @ jnp.ones(OBS), states()),
            r"slq_effective_rank\(fn, params, x, key\)",
        ),
        (lambda: ntk.effective_rank(lambda params, x: x, states()), "wanted a network of sphere.nets"),
        (lambda: ntk.effective_rank(eqx.nn.MLP(OBS, 1, 8, 1, key=jax.random.key(0)), states()), "wanted a network"),
        (lambda: ntk.blocks({"kernel": jnp.ones(2)}, states()), "wanted a network"),
        (lambda: ntk.blocks(jnp.tanh, states()), "wanted a network"),
        (lambda: ntk.kronecker_factors(None, states()), "wanted a network"),
        (lambda: slq_of(jnp.ones(OBS), lambda p, x: x @ p), "wanted a function"),
        (lambda: slq_of(lambda p, x: x[:, 0], [jnp.ones(2), jnp.tanh]), "wanted nothing but arrays"),
    ],
)
def test_what_is_no_network_or_no_function_is_told(call, sentence):
    with pytest.raises(TypeError, match=sentence):
        call()


def test_public_names():
    assert sphere.ntk.gram is ntk.gram
    assert {"effective_rank", "sphere_penalty", "routed_penalty", "ntk"} <= set(sphere.__all__)
