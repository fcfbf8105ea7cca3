"""Methods that act on loss or network, against plain statements: PW, SR, SN, load balance, C-CHAIN, LayerNorm."""

import equinox as eqx
import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
import updates
from units import AS_IT_IS
from updates import experience, filled, fresh, hyper, small, with_methods

from sphere.algos import rows
from sphere.algos.learner import Clock
from sphere.algos.ppo_equations import prepare
from sphere.algos.state import effective
from sphere.methods import LayerNorm, LoadBalance, Parseval, SpectralNorm, SpectralReg, Sphere
from sphere.methods.load_balance import imbalance
from sphere.methods.method import Look, Step, Weights
from sphere.nets import GaussianActor, Linear, Value
from sphere.nets.trace import Routing


def heads(kind="top-k", **settings):
    return {
        "actor": GaussianActor(networks.network(kind, **settings), networks.ACT),
        "critic": Value(networks.network("mlp", seed=1)),
    }


def look_at(net, role="actor"):
    return Look(role, net, net, networks.states(4), None, None, lambda net: net)


def double(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), tree)


def np_layers(net):
    """Every linear layer as (part, name, kernel [in, out], bias) in double precision, expert by expert."""
    trunk, found = net.trunk, []

    def mlp(part, module, expert=None):
        layers = [(f"hidden{i}", layer) for i, layer in enumerate(module.hidden)] + [("head", module.head)]
        for name, layer in layers:
            kernel, bias = (
                np.asarray(a, float) if expert is None else np.asarray(a, float)[expert]
                for a in (layer.kernel, layer.bias)
            )
            found.append((part, name, kernel, bias))

    if not hasattr(trunk, "experts"):
        mlp("expert", trunk)
        return found
    for e in range(trunk.num_experts):
        mlp("expert", trunk.experts, e)
    if hasattr(trunk.router, "gate"):
        mlp("gate", trunk.router.gate)
    else:
        for name in ("tokenise", "slots"):
            layer = getattr(trunk.router, name)
            found.append(
                (
                    "gate",
                    name,
                    np.asarray(layer.kernel, float),
                    None if layer.bias is None else np.asarray(layer.bias, float),
                )
            )
    return found


def assert_gradient_by_finite_differences(value, net, seed=0, number=12):
    """d value / d net against central differences along random directions of single leaves."""
    rng = np.random.default_rng(seed)
    leaves, structure = jax.tree.flatten(net)
    grads = jax.tree.leaves(jax.jit(jax.grad(value))(net))
    compiled = jax.jit(value)
    for index in rng.permutation(len(leaves))[:number]:
        direction = rng.normal(size=leaves[index].shape)
        ends = []
        for h in (1e-5, -1e-5):
            moved = list(leaves)
            moved[index] = leaves[index] + h * direction
            ends.append(float(compiled(jax.tree.unflatten(structure, moved))))
        np.testing.assert_allclose(
            np.sum(np.asarray(grads[index]) * direction), (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-7
        )


def plain_parseval(net, scale):
    total = 0.0
    for _, name, kernel, _ in np_layers(net):
        if name.startswith("hidden"):
            w = kernel.T  # out x in
            gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
            total += (64 / 16) ** 2 * np.sum((gram - scale * np.eye(len(gram))) ** 2)
    return total


@pytest.mark.parametrize("kind", ["mlp", "top-k"])
def test_parseval_is_its_formula_and_has_its_gradient(kind, x64):
    nets = double(heads(kind))
    method = Parseval()
    for role, net in nets.items():
        found = method.term(None, look_at(net, role))
        assert found.weight == 1e-3
        np.testing.assert_allclose(found.value, plain_parseval(net, 2.0), rtol=1e-10)
    assert Parseval(placement="actor").term(None, look_at(nets["critic"], "critic")) is None
    assert_gradient_by_finite_differences(lambda net: method.term(None, look_at(net)).value, nets["actor"])


def test_parseval_is_zero_where_rows_are_orthogonal_with_the_right_scale():
    net = heads("mlp", width=4, depth=1)["actor"]
    kernel = np.sqrt(2) * np.linalg.qr(np.random.default_rng(0).normal(size=(7, 4)))[0]
    net = eqx.tree_at(lambda n: n.trunk.hidden[0].kernel, net, jnp.asarray(kernel, jnp.float32))
    assert float(Parseval().term(None, look_at(net)).value) < 1e-8


def settled(method, nets, steps=300):
    """The method's state after so many steps in which the parameters did not move."""
    weights = {role: Weights(net, net, net) for role, net in nets.items()}
    zero = jnp.zeros(())
    step = Step(nets, {}, {}, {}, zero, zero, jax.random.key(0), AS_IT_IS, AS_IT_IS)

    @jax.jit
    def after():
        own = method.init(nets, jax.random.key(1))
        return jax.lax.fori_loop(0, steps, lambda _, own: method.after(own, weights, step).own, own)

    return after()


@pytest.mark.parametrize("kind", ["mlp", "top-k", "soft"])
def test_spectral_regularisation_is_its_formula_with_true_singular_values(kind, x64):
    nets = double(heads(kind))
    method = SpectralReg()
    own = settled(method, nets)
    for role, net in nets.items():
        want = 0.0
        for _, _, kernel, bias in np_layers(net):
            want += (np.linalg.svd(kernel, compute_uv=False)[0] ** 2 - 1) ** 2
            want += 0 if bias is None else np.sum(bias**2) ** 2
        found = method.term(own, look_at(net, role))
        assert found.weight == 1e-4
        np.testing.assert_allclose(found.value, want, rtol=1e-6)
    assert_gradient_by_finite_differences(lambda net: method.term(own, look_at(net)).value, nets["actor"])


def test_spectral_regularisation_takes_one_power_iteration_per_step(x64):
    nets = double(heads("mlp"))
    method = SpectralReg(placement="actor")
    own = method.init(nets, jax.random.key(0))
    rng = np.random.default_rng(0)
    u = [rng.normal(size=np.shape(one)) for one in own["actor"]]
    u = [one / np.linalg.norm(one) for one in u]
    own = {"actor": [jnp.asarray(one) for one in u]}
    want, after = 0.0, []
    for (_, _, kernel, bias), one in zip(np_layers(nets["actor"]), u, strict=True):
        v = kernel @ one[0]
        v /= np.linalg.norm(v)
        w = kernel.T @ v
        want += (np.linalg.norm(w) ** 2 - 1) ** 2 + np.sum(bias**2) ** 2
        after.append(w / np.linalg.norm(w))
    np.testing.assert_allclose(method.term(own, look_at(nets["actor"])).value, want, rtol=1e-10)
    zero = jnp.zeros(())
    moved = jax.tree.map(lambda leaf: 2 * leaf + 1, nets["actor"])  # the iterate is that of the step's own parameters
    step = Step(nets, {}, {}, {}, zero, zero, jax.random.key(0), AS_IT_IS, AS_IT_IS)
    found = method.after(own, {"actor": Weights(moved, moved, moved)}, step).own["actor"]
    for a, b in zip(found, after, strict=True):
        np.testing.assert_allclose(a[0], b, atol=1e-10)


@pytest.mark.parametrize("layers", ["inner", "hidden"])
@pytest.mark.parametrize("kind", ["mlp", "top-k", "soft"])
def test_spectral_normalisation_makes_the_largest_singular_value_one(kind, layers, x64):
    nets = double(heads(kind, depth=3))
    method = SpectralNorm(layers=layers)
    own = settled(method, nets)
    for role, net in nets.items():
        acting = method.effective(own, role, net)
        for (part, name, kernel, bias), (_, _, old, old_bias) in zip(np_layers(acting), np_layers(net), strict=True):
            divided = name.startswith("hidden") and (layers == "hidden" or name != "hidden0")
            largest = np.linalg.svd(old, compute_uv=False)[0]
            np.testing.assert_allclose(kernel, old / largest if divided else old, rtol=1e-6, err_msg=f"{part} {name}")
            if divided:
                assert np.linalg.svd(kernel, compute_uv=False)[0] == pytest.approx(1, rel=1e-6)
            if bias is not None:
                np.testing.assert_array_equal(bias, old_bias)
    rng = np.random.default_rng(0)
    mix = [rng.normal(size=leaf.shape) for leaf in jax.tree.leaves(nets["actor"])]

    def value(net):  # at the constant iterate
        acting = jax.tree.leaves(method.effective(own, "actor", net))
        return sum(jnp.sum(a * b) for a, b in zip(acting, mix, strict=True))

    assert_gradient_by_finite_differences(value, nets["actor"], number=6)


def test_spectral_normalisation_acts_learns_and_values_alike():
    """The first minibatch learns from what acted: ratio 1 and kl 0; and the critic that is trained is the one that
    judges."""
    config = with_methods(small(batch_size=9, epochs=1), SpectralNorm(layers="hidden"))
    state = jax.tree.map(lambda leaf: leaf[0], fresh(config, jnp.array([3], jnp.uint32)))
    rollout = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), experience(config, 1))
    acting, actor, critic = config.policy(state), state.nets["actor"], state.nets["critic"]
    assert (acting.trunk.hidden[0].kernel != actor.trunk.hidden[0].kernel).all()
    rollout = rollout._replace(**config.annotate(acting, rollout._asdict()))
    clock = Clock(jnp.int32(0), jnp.float32(0))
    _, metrics = jax.jit(config.update)(state, hyper(0.0), rollout._asdict(), jnp.uint32(0), clock)
    assert abs(float(metrics["kl"])) < 1e-6
    assert metrics["clip_fraction"] == 0
    raw = config.annotate(actor, rollout._asdict())["log_prob"]
    assert float(jnp.max(jnp.abs(raw - rollout.log_prob))) > 1e-3
    judge = effective(config.methods, state.methods, "critic", critic)
    batch = prepare(judge, rollout, config.gamma, config.gae_lambda)
    values = batch.returns - batch.advantage
    largest = np.linalg.svd(np.asarray(critic.trunk.hidden[0].kernel), compute_uv=False)[0]
    critic = eqx.tree_at(lambda c: c.trunk.hidden[0].kernel, critic, replace_fn=lambda kernel: kernel / largest)
    np.testing.assert_allclose(values, critic(rollout.obs.reshape(9, -1))[0], rtol=1e-3, atol=1e-4)


def test_acting_is_the_actor_itself_where_no_method_changes_it():
    config = with_methods(updates.CONFIG, Sphere(), LayerNorm())
    state = filled(config, runs=1)
    assert rows.policy(config, state) is state.nets["actor"]
    assert config.policy(state) is state.nets["actor"]


def routing(chosen, probability, shared=0):
    n, experts = np.shape(chosen)
    probability = jnp.asarray(probability, jnp.float32)
    return Routing(
        jnp.log(probability), probability, jnp.zeros((n, experts)), jnp.asarray(chosen), jnp.zeros((n, 1)), shared
    )


def test_load_balance_is_least_for_uniform_routing():
    uniform = routing(np.eye(4, dtype=bool)[np.arange(8) % 4], np.full((8, 4), 0.25))
    assert float(imbalance(uniform)) == pytest.approx(1)
    rng = np.random.default_rng(0)
    for _ in range(50):  # choices that follow the probabilities, as routers make them
        logits = rng.normal(size=(64, 4)) + 2 * rng.normal(size=4)
        probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        best = np.argsort(-probability, axis=1)[:, :2]
        chosen = np.zeros((64, 4), bool)
        np.put_along_axis(chosen, best, True, axis=1)
        want = 4 * sum(chosen[:, i].sum() / chosen.sum() * probability[:, i].mean() for i in range(4))
        found = float(imbalance(routing(chosen, probability)))
        assert found == pytest.approx(want, rel=1e-5)
        assert found > 1
    alone = routing(np.tile([True, False, False, False], (8, 1)), np.tile([1.0, 0, 0, 0], (8, 1)))
    assert float(imbalance(alone)) == pytest.approx(4)


def test_load_balance_leaves_shared_experts_out_and_has_a_gradient():
    net = networks.network("deepseek")
    trace = networks.forward(net, networks.states(16))[1].mixtures[0]
    chosen = np.asarray(trace.routing.chosen)[:, trace.routing.shared :]
    probability = np.asarray(trace.routing.probability)
    want = chosen.shape[1] * np.sum(chosen.mean(axis=0) / chosen.sum(axis=1).mean() * probability.mean(axis=0))
    assert float(imbalance(trace.routing)) == pytest.approx(want, rel=1e-5)
    actor = GaussianActor(net, networks.ACT)

    def value(actor):
        _, trace = actor(networks.states(16))
        return LoadBalance().term(None, look_at(actor)._replace(trace=trace)).value

    grad = jax.jit(jax.grad(value))(actor)
    assert float(jnp.max(jnp.abs(grad.trunk.router.gate.head.kernel))) > 1e-4
    assert float(jnp.max(jnp.abs(grad.trunk.experts.head.kernel))) == 0


def test_layernorm_is_in_experts_and_gate_of_the_actor():
    config = with_methods(updates.PLAIN, LayerNorm())
    state = jax.eval_shape(lambda: fresh(config, jnp.zeros(1, jnp.uint32)))
    actor, critic = state.nets["actor"], state.nets["critic"]
    norms = [len(mlp.norms) for mlp in (actor.trunk.experts, actor.trunk.router.gate, critic.trunk)]
    assert norms == [2, 2, 0]


def test_linear_is_what_spectral_regularisation_looks_for():
    """Every kernel of every kind of network is in a `Linear`: none is passed over."""
    for kind in networks.KINDS:
        net = networks.network(kind)
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(net)]
        layers = [
            one for one in jax.tree.leaves(net, is_leaf=lambda n: isinstance(n, Linear)) if isinstance(one, Linear)
        ]
        assert len(layers) == sum("kernel" in path for path in paths)
