"""A network of tokens with two mixtures: its trace, its NTK against the materialised Jacobian, penalties, numbers and
units.

What a Transformer needs, without attention: a linear layer and a LayerNorm that all tokens share, a mixture on each
token with a residual, a second one, the mean over tokens, a linear head.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matrices import brute
from networks import EXPERTS, OUT, TOKENS, WIDTH, jacobian_of, np_mlp, np_rows, outer_product, token_inputs, token_net

from sphere import bounds, ntk
from sphere.diagnostics import diagnose, diagnose_mixtures, feature_rank
from sphere.methods import CBP, LoadBalance, ReDo, Sphere
from sphere.methods.method import Look, Step, Weights
from sphere.methods.units import activities, mlps, with_mlps
from sphere.nets import MLP, GaussianActor, TwinQ, with_compute, zero_taps
from sphere.nets.heads import Trunk
from sphere.variants import PenaltyConfig, penalty, terms

pytestmark = pytest.mark.usefixtures("x64")

N = 5


def rank_of(matrix):
    p = np.linalg.eigvalsh(matrix)
    p = p[p > 1e-14 * p.max()] / p.sum()
    return np.exp(-np.sum(p * np.log(p)))


@pytest.mark.parametrize("compute", ["dense", "grouped"])
def test_the_trace_has_both_mixtures_and_says_whose_each_layer_is(compute):
    net, x = token_net(compute), token_inputs()
    assert isinstance(net, Trunk)
    output, trace = eqx.filter_jit(net)(x)
    want, want_output = np_rows(net, x)
    np.testing.assert_allclose(output, want_output, atol=1e-10)
    for mixture, (_, gate, phi) in zip(trace.mixtures, want, strict=True):
        np.testing.assert_allclose(mixture.routing.gate, gate, atol=1e-10)
        np.testing.assert_allclose(jax.jit(feature_rank)(mixture), rank_of(phi @ phi.T), rtol=1e-8)
    # the embedding; twice a LayerNorm, a gate of two layers and experts of three, with LayerNorm after two; the head
    blocks = [[("shared", None), *[("gate", i)] * 2, *[("expert", i)] * 5] for i in range(2)]
    parts = [(layer.part, layer.mixture) for layer in trace.layers]
    assert parts == [("shared", None), *blocks[0], *blocks[1], ("shared", None)]
    assert all(layer.input.shape[0] == layer.output.shape[0] == N for layer in trace.layers)
    taps = zero_taps(net, x)
    with jax.disable_jit():  # operation by operation: optimised, two programs round in ways of their own
        np.testing.assert_array_equal(net(x, taps)[0], net(x)[0])


@pytest.mark.parametrize("router", ["top-k", "expert-choice"])
@pytest.mark.parametrize("compute", ["dense", "grouped"])
def test_the_ntk_and_its_blocks_equal_the_materialised_jacobian(compute, router):
    net, x = token_net(compute, router), token_inputs()
    jacobian = jacobian_of(net, x)
    blocks, gram = eqx.filter_jit(lambda net: (ntk.blocks(net, x), ntk.gram(net, x)))(net)
    np.testing.assert_allclose(blocks.gate, outer_product([m.router.gate for m in jacobian.mixtures]), atol=1e-10)
    np.testing.assert_allclose(blocks.expert, outer_product([m.experts for m in jacobian.mixtures]), atol=1e-10)
    np.testing.assert_allclose(
        blocks.shared, outer_product([jacobian.embed, jacobian.norms, jacobian.head]), atol=1e-10
    )
    np.testing.assert_allclose(gram, sum(blocks), atol=1e-12)
    np.testing.assert_allclose(gram, outer_product(jacobian), atol=1e-10)
    assert np.linalg.norm(blocks.shared) > 0.1 * np.linalg.norm(gram)


def test_samples_may_come_in_batches():
    for net, size in ((token_net(), 2), (token_net("dense", "expert-choice"), 2)):
        x = token_inputs(7)
        whole = eqx.filter_jit(ntk.gram)(net, x)
        np.testing.assert_allclose(eqx.filter_jit(ntk.gram)(net, x, batch_size=size), whole, atol=1e-12)


def test_inputs_of_another_shape_are_refused():
    net = token_net()
    with pytest.raises(ValueError, match="wanted three dimensions"):
        ntk.gram(net, token_inputs()[:, 0])
    with pytest.raises(ValueError, match="NaN or infinite"):
        ntk.effective_rank(net, token_inputs().at[0, 0, 0].set(jnp.nan))


@pytest.mark.parametrize("compute", ["dense", "grouped"])
def test_penalties_are_of_the_last_mixture_or_summed_over_all(compute):
    """A row of Phi for every token: A is the mean over tokens."""
    net, x = token_net(compute), token_inputs()
    each = [brute(phi) for _, _, phi in np_rows(net, x)[0]]

    @eqx.filter_jit
    def value(net, config):
        return penalty(config, net, x, net(x)[1])

    np.testing.assert_allclose(value(net, PenaltyConfig()), each[-1], rtol=1e-9)
    np.testing.assert_allclose(value(net, PenaltyConfig(mixtures="all")), sum(each), rtol=1e-9)
    np.testing.assert_allclose(value(GaussianActor(net, OUT).trunk, PenaltyConfig()), each[-1], rtol=1e-9)


def expert_gradients(moe, entered):
    """d m_e / d z_e at each expert's last hidden layer, as the derivative by its bias; [rows, experts, width]."""

    def one(row, e):
        expert = jax.tree.map(lambda leaf: leaf[e], moe.experts)

        def total(bias):
            return jnp.sum(eqx.tree_at(lambda m: m.hidden[-1].bias, expert, bias)(row[None])[0])

        return jax.grad(total)(expert.hidden[-1].bias)

    return np.asarray(jax.jit(jax.vmap(lambda row: jnp.stack([one(row, e) for e in range(EXPERTS)])))(entered))


def test_penalties_on_signals_take_those_of_their_own_mixture():
    net, x = token_net(), token_inputs()
    found = np_rows(net, x)[0]
    psi = [expert_gradients(moe, one[0]).reshape(N * TOKENS, -1) for moe, one in zip(net.mixtures, found, strict=True)]
    features, gradients = [brute(one[2]) for one in found], [brute(one) for one in psi]
    config = PenaltyConfig(variant="feature+gradient", mixtures="all")
    got = eqx.filter_jit(lambda net: terms(config, net, x, net(x)[1]))(net)
    np.testing.assert_allclose(got, (sum(features), sum(gradients)), rtol=1e-9)
    last = eqx.filter_jit(lambda net: terms(PenaltyConfig(variant="gradient"), net, x, net(x)[1]))(net)
    np.testing.assert_allclose(last, gradients[-1], rtol=1e-9)
    phi, psi = eqx.filter_jit(ntk.kronecker_factors)(with_compute(net, "grouped"), x)[-1]
    assert phi.shape[:2] == psi.shape[:2] == (N * TOKENS, EXPERTS)
    with pytest.raises(ValueError, match="compute='dense'"):
        eqx.filter_jit(lambda net: penalty(config, net, x, net(x)[1]))(with_compute(net, "grouped"))


def test_each_linear_layer_has_its_share_of_the_ntk():
    net, x = token_net(), token_inputs()
    jacobian = jacobian_of(net, x)
    factors = eqx.filter_jit(ntk.factors)(net, x)
    linear = [factor for factor in factors if factor.layer.kind == "linear"]
    layers = [jacobian.embed]
    for moe in jacobian.mixtures:
        layers += [*moe.router.gate.hidden, moe.router.gate.head, *moe.experts.hidden, moe.experts.head]
    for factor, layer in zip(linear, [*layers, jacobian.head], strict=True):
        np.testing.assert_allclose(ntk.layer_gram(factor), outer_product(layer), atol=1e-10)


def test_the_layers_entropy_is_of_one_mixtures_experts_among_all_layers():
    """alpha_l by its definition, tokens counted one by one."""
    net, x = token_net(), token_inputs()
    shares = {None: 0.0, 0: [], 1: []}
    for factor in eqx.filter_jit(ntk.factors)(net, x):
        if factor.layer.kind == "linear":
            sizes = (np.sum(np.square(v), axis=-1) for v in (factor.layer.input, factor.signal))
            share = np.sum((next(sizes) + 1) * next(sizes))
            shares[None] += share
            if factor.layer.part == "expert":
                shares[factor.layer.mixture].append(share)
    alphas = [np.array(shares[i]) / shares[None] for i in range(2)]
    want = [np.sum(alpha * np.log(alpha)) for alpha in alphas]
    for mixtures, value in (("last", want[1]), ("all", sum(want))):
        config = PenaltyConfig(variant="layer-entropy", mixtures=mixtures)
        got = eqx.filter_jit(lambda net, config=config: terms(config, net, x, net(x)[1]))(net)
        np.testing.assert_allclose(got[1], value, rtol=1e-9)


def test_numbers_of_the_last_mixture_have_the_usual_names_and_all_have_numbered_ones():
    net, x = token_net(), token_inputs()
    want = [rank_of(phi @ phi.T) for _, _, phi in np_rows(net, x)[0]]
    whole, each = diagnose(GaussianActor(net, OUT), x)._asdict(), diagnose_mixtures(GaussianActor(net, OUT), x)
    np.testing.assert_allclose(whole["ntk_rank"], rank_of(outer_product(jacobian_of(net, x))), rtol=1e-8)
    np.testing.assert_allclose([each[f"mixture{i}/feature_rank"] for i in range(2)], want, rtol=1e-8)
    of_mixture = set(whole) - {"ntk_rank", "gradient_norm"}
    assert set(each) == {f"mixture{i}/{name}" for i in range(2) for name in of_mixture}
    for name in of_mixture:
        np.testing.assert_array_equal(each[f"mixture1/{name}"], whole[name])
    assert each["mixture0/feature_rank"] != each["mixture1/feature_rank"]
    assert diagnose_mixtures(net.mixtures[0], jnp.ones((3, WIDTH))) == {}


@pytest.mark.parametrize("compute", ["dense", "grouped"])
def test_units_of_all_mixtures_are_found_by_name(compute):
    net, x = token_net(compute), token_inputs()
    actor = GaussianActor(net, OUT)
    names = ["0/expert", "0/gate", "1/expert", "1/gate"]
    assert list(mlps(actor)) == list(mlps(net)) == names
    found = eqx.filter_jit(lambda net: activities(net(x)[1], names))(net)
    for i, (entered, gate, _) in enumerate(np_rows(net, x)[0]):
        moe = net.mixtures[i]
        for e in range(EXPERTS):
            rows = [np.abs(np_mlp(moe.experts, row, e)[1]) for row in entered[gate[:, e] > 0]]
            assert found[f"{i}/expert"].tokens[e] == len(rows)
            np.testing.assert_allclose(
                found[f"{i}/expert"].total[-1][e], np.sum(rows, axis=0) if rows else 0, atol=1e-9
            )
        hidden = [np.abs(np_mlp(moe.router.gate, row)[1]) for row in entered]
        np.testing.assert_allclose(found[f"{i}/gate"].mean[0][0], np.mean(hidden, axis=0), atol=1e-9)
    changed = mlps(actor)
    changed["1/gate"] = jax.tree.map(lambda leaf: leaf + 1, changed["1/gate"])
    after = with_mlps(actor, changed)
    same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), after, actor)
    assert not any(jax.tree.leaves(same.trunk.mixtures[1].router.gate))
    assert all(jax.tree.leaves(eqx.tree_at(lambda t: t.trunk.mixtures[1].router.gate, same, None)))


@pytest.mark.parametrize("method", [CBP(maturity=0, replacement_rate=0.5), ReDo(period=1, tau=0.9)])
def test_methods_reset_units_in_both_mixtures(method):
    nets, x = {"actor": GaussianActor(token_net(), OUT)}, token_inputs()
    weights = {role: Weights(net, net, net) for role, net in nets.items()}

    def itself(net):
        return net

    def after(nets):
        step = Step(
            before=nets,
            trace={role: net(x)[1] for role, net in nets.items()},
            loss={},
            terms={"actor": {}},
            rate_fraction=jnp.ones(()),
            steps=jnp.asarray(0),
            key=jax.random.key(0),
            unpack={"actor": itself},
            pack={"actor": itself},
        )
        return method.after(method.init(nets, jax.random.key(1)), weights, step)

    done = jax.jit(after)(nets)
    before, now = (mlps(net) for net in (nets["actor"], done.weights["actor"].params))
    for name in before:
        changed = np.any(np.asarray(before[name].hidden[0].kernel != now[name].hidden[0].kernel), axis=1)
        assert 0 < changed.sum() < changed.size, name
    assert done.replaced > 0


def test_load_balancing_is_summed_over_mixtures():
    actor, x = GaussianActor(token_net(), OUT), token_inputs()
    trace = eqx.filter_jit(actor)(x)[1]
    term = LoadBalance().term(None, Look("actor", actor, actor, x, trace, None, lambda net: net))
    chosen = [gate > 0 for _, gate, _ in np_rows(actor.trunk, x)[0]]
    share = [c.sum(axis=0) / c.sum() for c in chosen]
    mean = [np.asarray(mixture.routing.probability).mean(axis=0) for mixture in trace.mixtures]
    want = sum(EXPERTS * np.sum(f * p) for f, p in zip(share, mean, strict=True))
    np.testing.assert_allclose(term.value, want, rtol=1e-9)


# Heads with several trunks


def twin_of(kind_of):
    twin = eqx.filter_jit(lambda: TwinQ(kind_of, key=jax.random.key(3)))()
    obs, action = jnp.asarray(np.random.default_rng(2).normal(size=(6, 5))), jnp.ones((6, 2))
    return twin, jnp.concatenate([obs, action], axis=1), eqx.filter_jit(twin)(obs, action)[1]


def test_a_penalty_on_a_pair_is_the_sum_over_its_trunks():
    twin, joint, trace = twin_of(lambda key: MLP(7, 1, 6, 2, key=key))
    each = [brute(np.array([np_mlp(trunk, row)[1] for row in np.asarray(joint)])) for trunk in twin.trunks.values()]
    value = eqx.filter_jit(partial(penalty, PenaltyConfig()))(twin, joint, trace)
    np.testing.assert_allclose(value, sum(each), rtol=1e-6)

    def function(params):
        look = Look("critic", params, params, joint, trace, None, lambda net: net)
        return jnp.sum(params.first.head.kernel), look, None

    values, _ = eqx.filter_jit(Sphere(placement="critic").gradient("critic", function))(twin, 0.1)
    np.testing.assert_allclose(values.penalty, sum(each), rtol=1e-6)


def test_units_of_a_pair_have_the_names_of_its_trunks():
    twin, _, trace = twin_of(lambda key: MLP(7, 1, 6, 2, key=key))
    assert list(mlps(twin)) == ["first/expert", "second/expert"]
    found = activities(trace, mlps(twin))
    for name, one in trace.items():
        want = np.abs(np.asarray(one.mixtures[0].features))[:, 0].mean(axis=0)
        np.testing.assert_allclose(found[f"{name}/expert"].mean[-1][0], want, rtol=1e-6)


def test_shared_parts_stand_with_the_gate_in_the_bounds():
    """Both inequalities hold with everything that is no expert in the gate's place."""
    blocks = eqx.filter_jit(ntk.blocks)(token_net(), token_inputs())
    for bound in (bounds.gate_expert_decoupling, bounds.ignoring_gate):
        left, right = jax.jit(bound, static_argnums=2)(blocks.gate + blocks.shared, blocks.expert, 2 * N)
        assert 0 < left <= right
