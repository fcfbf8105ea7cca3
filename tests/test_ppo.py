"""PPO against recorded updates of the released code, a plain statement of its equations, and what a fleet must not
change."""

import dataclasses
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sphere.algos import fleet as rows
from sphere.algos import ppo
from sphere.algos.learner import Clock, DataSpec
from sphere.algos.ppo import PPO, Metrics
from sphere.algos.ppo_equations import LARGEST_LOG_RATIO, Batch, Rollout, actor_loss, adapt_rate, gae, prepare
from sphere.algos.source import Wanted
from sphere.cli.replay import verify_update
from sphere.cli.verify import GOLDEN
from sphere.envs.source import Environments
from sphere.envs.statistics import Statistics
from sphere.methods import Sphere
from sphere.nets import NetConfig

RECORDED = GOLDEN / "ppo_update.npz"
OBS, ACT = 7, 3

# Small, and few: most of the time of this file goes into compiling these programs.
TINY = NetConfig(kind="mlp", width=8, depth=1)
CONFIG = PPO(
    num_envs=4,
    rollout_steps=16,
    batch_size=16,
    epochs=2,
    actor=NetConfig(kind="top-k", width=16, depth=2, experts=4, top_k=2),
    critic=NetConfig(kind="mlp", width=16, depth=2),
)
PLAIN = dataclasses.replace(CONFIG, methods=())


def fresh(config, seeds, obs_size=OBS, act_size=ACT):
    numbers = {name: jnp.full(len(seeds), value, jnp.float32) for name, value in config.numbers.items()}
    return rows.init(config, DataSpec((obs_size,), act_size), seeds, numbers)


def filled(config, obs_size=OBS, act_size=ACT, runs=None, seed=0):
    """A state with random networks and fresh moments, by numpy: nothing to compile. With `runs`, of a fleet."""
    seeds = jnp.arange(runs or 1, dtype=jnp.uint32)
    shapes = eqx.filter_eval_shape(lambda: fresh(config, seeds, obs_size, act_size))
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        name, shape = jax.tree_util.keystr(path), leaf.shape if runs else leaf.shape[1:]
        if "moments" in name or "log_std" in name:
            return jnp.zeros(shape, leaf.dtype)
        if "temperature" in name:
            return jnp.ones(shape, leaf.dtype)
        if "rate" in name:
            return jnp.full(shape, config.learning_rate, leaf.dtype)
        scale = leaf.shape[-2] ** -0.5 if "kernel" in name else 0.1
        return jnp.asarray(scale * rng.normal(size=shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def on_device(tree):
    return jax.tree.map(jnp.asarray, tree)


def experience(config, runs, obs_size=OBS, act_size=ACT, seed=1):
    """Random, but possible: an observation follows its predecessor unless an episode ended in between."""
    rng = np.random.default_rng(seed)
    shape = (runs, config.rollout_steps, config.num_envs)

    def normal(*more):
        return rng.normal(size=(*shape, *more)).astype(np.float32)

    done = rng.random(shape) < 0.2
    obs, next_obs = normal(obs_size), normal(obs_size)
    next_obs[:, :-1] = np.where(done[:, :-1, :, None], next_obs[:, :-1], obs[:, 1:])
    log_prob = -0.5 * ACT * np.log(2 * np.pi) - 0.5 + 0.1 * normal()
    return Rollout(obs, normal(act_size), log_prob, normal(), next_obs, done & (rng.random(shape) < 0.5), done)


def hyper(rho, rate=3e-4, final=1e-4):
    rho = np.asarray(rho, np.float32)
    rates = {"learning_rate": rate, "final_learning_rate": final}
    return {"rho": jnp.asarray(rho)} | {name: jnp.full(rho.shape, one, jnp.float32) for name, one in rates.items()}


def updated(config, state, numbers, rollout, seeds):
    """One update of a fleet; the state is copied first, since the update takes its buffers."""
    state = jax.tree.map(np.array, state)
    seeds = jnp.asarray(np.asarray(seeds, np.uint32))
    clock = Clock(np.int32(0), np.float32(0.25))
    return jax.device_get(rows.update(config, state, numbers, rollout._asdict(), seeds, clock))


def run(tree, index):
    """One run of a fleet, as a fleet of one."""
    return on_device(jax.tree.map(lambda leaf: np.asarray(leaf)[index : index + 1], tree))


def assert_same_bits(found, want):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


def assert_close(found, want):
    """State and metrics to 1e-5, not to the bit: products with a run axis sum in another order, and Adam divides by
    small gradients. Eight minibatches at rate 1e-3 move a parameter by up to 8e-3, so a run with another's numbers is
    far off."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found[0]), jax.tree.leaves(want[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path))
    for name in Metrics._fields:
        np.testing.assert_allclose(found[1][name], want[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


@eqx.filter_jit
def loss_and_gradient(actor, batch):
    return eqx.filter_value_and_grad(lambda actor: actor_loss(actor, batch, PLAIN.clip)[0])(actor)


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("distance", [5.0, 30.0, 500.0])
def test_a_policy_far_from_the_one_that_acted_makes_no_infinities(distance, advantage):
    """By the formula where float32 holds it; beyond, a sample whose ratio is astronomic has a loss but no gradient."""
    actor = filled(PLAIN).nets["actor"]
    obs, action = jnp.ones((2, OBS)), jnp.zeros((2, ACT))
    now = eqx.filter_jit(lambda actor: actor(obs)[0].log_prob(action))(actor)
    batch = Batch(obs, action, now - jnp.array([distance, 0.0]), jnp.array([advantage, -advantage]), jnp.zeros(2))
    loss, grads = loss_and_gradient(actor, batch)
    ratio = np.exp(min(distance, LARGEST_LOG_RATIO))
    np.testing.assert_allclose(loss, -(min(advantage * ratio, advantage * 1.2) - advantage) / 2, rtol=1e-4)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    if distance > LARGEST_LOG_RATIO:  # what is left is the other sample's
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(grads)) < 100


# Recorded updates of the released code --------------------------------------------------------------------------------


def test_every_recorded_update_is_reproduced():
    found = verify_update(RECORDED)
    assert [f"{d.case}/{d.name}: {d.found:.2g} > {d.target:.2g}" for d in found if not d.passed] == []
    with np.load(RECORDED) as file:
        results = {key for key in file.files if "_after/" in key or key.endswith(("_loss", "mean_before"))}
        results -= {key for key in file.files if key.startswith("none/") and key.endswith("sphere_loss")}
    assert results == {f"{d.case}/{d.name}" for d in found}  # nothing recorded is passed over


def test_a_single_wrong_parameter_is_found(tmp_path):
    with np.load(RECORDED) as file:
        arrays = {key: file[key] for key in file.files if key.startswith("none/")}
    name = "actor_after/experts/layer2/kernel"
    arrays[f"none/{name}"] = arrays[f"none/{name}"].copy()
    arrays[f"none/{name}"][1, 2, 3] += 1e-4
    np.savez(tmp_path / "tampered.npz", **arrays)
    (wrong,) = [d for d in verify_update(tmp_path / "tampered.npz") if not d.passed]
    assert (wrong.case, wrong.name) == ("none", name)
    assert wrong.found == pytest.approx(1e-4, rel=0.01)


def truncated(path):
    np.savez(path, **{"none/config": np.zeros(9), "none/other": np.zeros(1000)})
    path.write_bytes(path.read_bytes()[:-200])


def damaged(path):
    np.savez_compressed(path, **{"none/config": np.random.default_rng(0).normal(size=900)})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def single_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda path: None, "is not a readable .npz"),
        (lambda path: path.write_bytes(b""), "is not a readable .npz"),
        (lambda path: path.write_text("not numbers"), "is not a readable .npz"),
        (truncated, "is not a readable .npz"),
        (damaged, "is not a readable .npz"),
        (single_array, "is not a readable .npz"),
        (lambda path: np.savez(path, a=np.zeros(3)), "holds the cases none, wanted some of grad, loss, none"),
        (lambda path: np.savez(path, **{"x/config": np.zeros(9)}), "wanted some of grad, loss, none"),
        (
            lambda path: np.savez(path, **{"none/config": np.array([5, 2, 8, 4, 3, 16, 0, 0, 1])}),
            "lacks the array",
        ),
    ],
    ids=["absent", "empty", "text", "truncated", "damaged", "npy", "foreign", "strange case", "incomplete"],
)
def test_other_files_are_answered_with_a_sentence(write, sentence, tmp_path):
    path = tmp_path / "updates.npz"
    write(path)
    with pytest.raises(ValueError, match=sentence):
        verify_update(path)


# One minibatch from the equations -------------------------------------------------------------------------------------


def plain_mlp(layers, x):
    """Layers as (kernel, bias); output and last hidden features."""
    for kernel, bias in layers[:-1]:
        x = jnp.maximum(x @ kernel + bias[None], 0)
    return x @ layers[-1][0] + layers[-1][1][None], x


def plain_layers(mlp, expert=None):
    """An MLP, or one expert of a bank, as double-precision arrays."""
    pairs = [(layer.kernel, layer.bias) for layer in (*mlp.hidden, mlp.head)]
    return [tuple(np.asarray(a if expert is None else a[expert], np.float64) for a in pair) for pair in pairs]


def plain_actor(params, obs):
    """K = E: every expert on every sample, softmax over all. Mean action and Phi [n, E * width]."""
    gate = jax.nn.softmax(plain_mlp(params["gate"], obs)[0])
    pairs = [plain_mlp(expert, obs) for expert in params["experts"]]
    mean = sum(gate[:, e, None] * output for e, (output, _) in enumerate(pairs))
    return mean, jnp.concatenate([gate[:, e, None] * features for e, (_, features) in enumerate(pairs)], axis=1)


def plain_losses(params, batch):
    """Policy loss, SPHERE loss from the formed Gram matrix, and the probability ratios."""
    mean, phi = plain_actor(params, batch.obs)
    std = jnp.exp(params["log_std"])[None]
    normal = jnp.exp(-0.5 * ((batch.action - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    ratio = jnp.exp(jnp.log(normal).sum(axis=1) - batch.old_log_prob)
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
    a = phi.T @ phi / len(phi)
    sphere = jnp.sum((a - jnp.trace(a) / len(a) * jnp.eye(len(a))) ** 2)
    return -surrogate.mean(), sphere, ratio


def plain_norm(tree, inside=0.0):
    return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree)) + inside)


class PlainAdam:
    """Kingma and Ba, algorithm 1, with eps 1e-5, behind a clip by global norm 0.5."""

    def __init__(self, params):
        self.m = self.v = jax.tree.map(np.zeros_like, params)
        self.t = 0

    def step(self, params, grad, rate):
        clip = min(1.0, 0.5 / plain_norm(grad))
        grad = jax.tree.map(lambda g: clip * np.asarray(g), grad)
        self.t += 1
        self.m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.m, grad)
        self.v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, self.v, grad)

        def move(p, m, v):
            return p - rate * (m / (1 - 0.9**self.t)) / (np.sqrt(v / (1 - 0.999**self.t)) + 1e-5)

        return jax.tree.map(move, params, self.m, self.v)


def random_batches(rng, number, n, state, drift=0.2):
    """With log-probabilities off by `drift`: at 0.2 some ratios are clipped and some are not."""
    for _ in range(number):
        obs = rng.normal(size=(n, OBS)).astype(np.float32)
        action = rng.normal(size=(n, ACT)).astype(np.float32)
        log_prob = np.asarray(state.nets["actor"](jnp.asarray(obs))[0].log_prob(jnp.asarray(action)))
        log_prob = (log_prob + drift * rng.normal(size=n)).astype(np.float32)
        advantage, returns = (3 * rng.normal(size=(2, n)) + 1).astype(np.float32)
        yield on_device(Batch(obs, action, log_prob, advantage, returns))


def test_three_minibatches_equal_the_equations():
    """Gate, experts, log_std and critic of a mixture with K = E, in double precision, after three updates."""
    rho, rate, n = 0.3, 3e-4, 32
    net = NetConfig(kind="top-k", width=6, depth=2, experts=3, top_k=3)
    critic = NetConfig(kind="mlp", width=6, depth=2)
    config = PPO(num_envs=1, rollout_steps=n, batch_size=n, actor=net, critic=critic)
    state = filled(config)
    batches = list(random_batches(np.random.default_rng(3), 3, n, state))
    step = jax.jit(partial(ppo.minibatch, config))
    trunk = state.nets["actor"].trunk
    actor = {
        "gate": plain_layers(trunk.router.gate),
        "experts": [plain_layers(trunk.experts, e) for e in range(3)],
        "log_std": np.zeros(ACT),
    }
    value = plain_layers(state.nets["critic"].trunk)
    with jax.enable_x64(True):
        task = jax.jit(jax.value_and_grad(lambda p, b: plain_losses(p, b)[::2], has_aux=True))
        extra = jax.jit(jax.value_and_grad(lambda p, b: plain_losses(p, b)[1]))
        error = jax.jit(jax.value_and_grad(lambda p, b: jnp.mean((plain_mlp(p, b.obs)[0][:, 0] - b.returns) ** 2)))
    actor_adam, critic_adam = PlainAdam(actor), PlainAdam(value)
    clipped = []
    for batch in batches:
        state, metrics = step(state, hyper(rho), jnp.float32(rate), batch)
        with jax.enable_x64(True):
            double = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), batch)
            (policy_loss, ratio), task_grad = task(actor, double)
            sphere, extra_grad = extra(actor, double)
            value_loss, value_grad = error(value, double)
        coefficient = rho * plain_norm(task_grad, 1e-8) / (plain_norm(extra_grad, 1e-8) + 1e-8)
        grad = jax.tree.map(lambda t, e, c=coefficient: np.asarray(t) + c * np.asarray(e), task_grad, extra_grad)
        value_grad = jax.tree.map(lambda g: 0.5 * np.asarray(g), value_grad)  # value coefficient 0.5
        ratio = np.asarray(ratio)
        want = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": sum(0.5 * np.log(2 * np.pi * np.e) + actor["log_std"]),
            "kl": np.mean((ratio - 1 + 1e-7) - np.log(ratio + 1e-7)),
            "clip_fraction": np.mean(np.abs(ratio - 1) > 0.2),
            "penalty": sphere,
            "coefficient": coefficient,
            "felt": coefficient * plain_norm(extra_grad) / plain_norm(task_grad),
            "actor_grad_norm": plain_norm(grad),
            "critic_grad_norm": plain_norm(value_grad),
            "learning_rate": rate,
        }
        for name, number in want.items():
            np.testing.assert_allclose(getattr(metrics, name), number, rtol=2e-4, atol=1e-6, err_msg=name)
        clipped += [plain_norm(grad) > 0.5, plain_norm(value_grad) > 0.5]
        actor = actor_adam.step(actor, grad, rate)
        value = critic_adam.step(value, value_grad, rate)
    assert any(clipped)  # else the clip was not tested
    trunk = state.nets["actor"].trunk
    found = {
        "gate": plain_layers(trunk.router.gate),
        "experts": [plain_layers(trunk.experts, e) for e in range(3)],
        "log_std": np.asarray(state.nets["actor"].log_std, np.float64),
    }
    found_leaves = jax.tree.leaves((found, plain_layers(state.nets["critic"].trunk)))
    for a, b in zip(found_leaves, jax.tree.leaves((actor, value)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


# Advantages -----------------------------------------------------------------------------------------------------------


def test_gae_equals_the_textbook_double_sum():
    rng = np.random.default_rng(0)
    time = 12
    r, v, next_v = rng.normal(size=(3, time))
    d, lam = 0.97 * (rng.random(time) > 0.2), 0.9 * (rng.random(time) > 0.3)
    delta = r + d * next_v - v
    want = [sum(np.prod((lam * d)[t:k]) * delta[k] for k in range(t, time)) for t in range(time)]
    found = gae(*(jnp.asarray(x, jnp.float32) for x in (r, d, v, next_v, lam)))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def small(**settings):
    shape = {"num_envs": 3, "rollout_steps": 3, "batch_size": 3, "actor": TINY, "critic": TINY, "methods": ()}
    return PPO(**{**shape, **settings})


def with_methods(config, *methods):
    """The same settings with these methods and no others."""
    return dataclasses.replace(config, methods=methods)


def test_a_time_limit_is_bootstrapped_and_a_termination_is_not():
    """Three steps with rewards 1, 2, 3 under a critic that says 2 everywhere; the middle step ends the episode."""
    config = small(gamma=0.9, gae_lambda=0.8)
    state = jax.tree.map(jnp.zeros_like, filled(config, 1, 1))
    state = eqx.tree_at(lambda s: s.nets["critic"].trunk.head.bias, state, jnp.array([2.0]))
    done = np.array([[False] * 3, [False, True, True], [False] * 3])
    terminated = done & np.array([False, False, True])[None]
    zeros, reward = np.zeros((3, 3), np.float32), np.tile(np.array([[1], [2], [3]], np.float32), (1, 3))
    rollout = Rollout(zeros[..., None], zeros[..., None], zeros, reward, zeros[..., None], terminated, done)
    batch = prepare(state.nets["critic"], on_device(rollout), config.gamma, config.gae_lambda)
    # delta = r + 0.9 * 2 - 2 = r - 0.2, at a termination r - 2; decay 0.9 * 0.8 = 0.72 within an episode
    want = [
        [0.8 + 0.72 * (1.8 + 0.72 * 2.8), 0.8 + 0.72 * 1.8, 0.8 + 0.72 * 0.0],
        [1.8 + 0.72 * 2.8, 1.8, 0.0],
        [2.8, 2.8, 2.8],
    ]
    np.testing.assert_allclose(batch.advantage, np.ravel(want), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batch.returns, np.ravel(want) + 2, rtol=1e-5)


def test_time_limits_equal_rewards_with_the_bootstrap_added():
    """The released form: reward += gamma V(terminal observation) at a time limit, then GAE with one done flag and the
    value of the next stored observation, backwards in a loop."""
    config = small(num_envs=4, rollout_steps=20, batch_size=20, gamma=0.97, gae_lambda=0.9)
    state = filled(config)
    rollout = Rollout(*(leaf[0] for leaf in experience(config, 1)))
    limit = rollout.done & ~rollout.terminated
    assert limit.any()
    assert rollout.terminated.any()

    def value(obs):
        return plain_mlp(plain_layers(state.nets["critic"].trunk), obs.reshape(-1, OBS))[0].reshape(obs.shape[:-1])

    reward = rollout.reward + 0.97 * np.where(limit, value(rollout.next_obs), 0)
    values = np.asarray(value(rollout.obs))
    following = np.append(values[1:], np.asarray(value(rollout.next_obs[-1:])), axis=0)
    advantage, last = np.zeros((20, 4)), np.zeros(4)
    for t in reversed(range(20)):
        going_on = 1.0 - rollout.done[t]
        delta = reward[t] + 0.97 * following[t] * going_on - values[t]
        advantage[t] = last = delta + 0.97 * 0.9 * going_on * last
    batch = prepare(state.nets["critic"], on_device(rollout), config.gamma, config.gae_lambda)
    np.testing.assert_allclose(batch.advantage.reshape(20, 4), advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.returns.reshape(20, 4), advantage + values, rtol=1e-4, atol=1e-5)


# Learning rate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("anneal", "progress", "want"),
    [(1.0, 0.0, 3e-4), (1.0, 0.5, 2e-4), (1.0, 1.0, 1e-4), (0.5, 0.25, 2e-4), (0.5, 0.5, 1e-4), (0.5, 0.8, 1e-4)],
)
def test_the_schedule_is_linear_and_then_constant(anneal, progress, want):
    rate = ppo.scheduled(small(anneal=anneal), hyper(0.0), jnp.float32(progress))
    np.testing.assert_allclose(rate, want, rtol=1e-6)


def test_the_adaptive_rate_follows_the_rule_over_random_divergences():
    """kl > 2 t: rate / 1.5; kl < t / 2: rate * 1.5; kept in [1e-5, 1e-2]."""
    target = 0.03
    rng = np.random.default_rng(0)
    # Low, high, then mixed, so that both bounds are reached and left again.
    kls = np.concatenate([rng.uniform(0, 0.02, 30), rng.uniform(0.05, 0.2, 60), rng.uniform(0, 0.1, 60)])
    rate, want = 3e-4, []
    for kl in kls:
        if kl > 2 * target:
            rate = rate / 1.5
        elif kl < target / 2:
            rate = rate * 1.5
        rate = min(max(rate, 1e-5), 1e-2)
        want.append(rate)
    assert min(want) == 1e-5
    assert max(want) == 1e-2

    def follow(rate, kl):
        rate = adapt_rate(rate, kl, target)
        return rate, rate

    found = jax.lax.scan(follow, jnp.float32(3e-4), jnp.asarray(kls, jnp.float32))[1]
    np.testing.assert_allclose(found, want, rtol=1e-4)


def test_the_adaptive_rate_replaces_the_schedule_in_a_minibatch():
    config = small(rollout_steps=8, batch_size=24, target_kl=0.03)
    state = filled(config)
    step = jax.jit(partial(ppo.minibatch, config))
    for drift, factor in ((0.0, 1.5), (0.2, 1.0), (0.8, 1 / 1.5)):
        (batch,) = random_batches(np.random.default_rng(0), 1, 24, state, drift)
        after, metrics = step(state, hyper(0.0), jnp.float32(1.0), batch)
        # This step is taken at the state's rate, not at the scheduled 1.0, and not at the one that its kl leads to.
        assert float(metrics.learning_rate) == np.float32(3e-4)
        np.testing.assert_allclose(after.rate, 3e-4 * factor, rtol=1e-6)


# A whole update -------------------------------------------------------------------------------------------------------


def test_minibatches_cover_the_rollout_once_per_epoch_and_metrics_are_means(monkeypatch):
    config = small(num_envs=4, rollout_steps=6, batch_size=8, epochs=5)
    samples = np.arange(24.0, dtype=np.float32).reshape(6, 4)
    flags = np.zeros((6, 4), bool)
    rollout = on_device(Rollout(*(samples[..., None],) * 2, samples, samples, samples[..., None], flags, flags))
    state = jax.tree.map(jnp.zeros_like, filled(config, 1, 1))
    seen = []

    def spy(config, state, hyper, rate, batch, unpack):
        jax.debug.callback(lambda *leaves: seen.append([np.array(leaf) for leaf in leaves]), *batch, ordered=True)
        number = jnp.mean(batch.obs[:4])  # of part of the minibatch: differs from one to the next
        return state, Metrics(*(number * i for i in range(11)), finite=number >= 0, replaced=number * 0)

    monkeypatch.setattr(ppo, "minibatch", spy)

    def orders(seed, iteration):
        seen.clear()
        clock = Clock(jnp.int32(iteration), jnp.float32(0))
        metrics = config.update(state, hyper(0.0), rollout._asdict(), jnp.uint32(seed), clock)[1]
        jax.effects_barrier()
        return np.stack([obs[:, 0] for obs, *_ in seen]).astype(int), metrics

    order, metrics = orders(0, 0)
    want = prepare(state.nets["critic"], rollout, config.gamma, config.gae_lambda)
    for chosen, leaves in zip(order, seen, strict=True):
        for found, whole in zip(leaves, want, strict=True):  # the fields of a sample stay together
            np.testing.assert_array_equal(found, np.asarray(whole)[chosen])
    epochs = order.reshape(5, 24)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(24), (5, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 5
    number = np.mean(order[:, :4])
    found = [metrics[name] for name in Metrics._fields[:11]]
    np.testing.assert_allclose(found, number * np.arange(11), rtol=1e-5)
    assert bool(metrics["finite"])
    np.testing.assert_array_equal(orders(0, 0)[0], order)
    assert (orders(1, 0)[0] != order).any()
    assert (orders(0, 1)[0] != order).any()


def test_a_state_keeps_its_types_so_that_an_update_compiles_once():
    seeds = jnp.arange(2, dtype=jnp.uint32)
    before = jax.eval_shape(lambda: fresh(CONFIG, seeds))
    data = experience(CONFIG, 2)._asdict()
    arguments = (hyper([0.0, 0.1]), data, seeds, Clock(np.int32(0), np.float32(0)))
    config = dataclasses.replace(CONFIG, deterministic=False)  # compiler options and eval_shape exclude each other
    after = jax.eval_shape(lambda state: rows.update(config, state, *arguments)[0], before)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type), jax.tree_util.keystr(path)


def test_fresh_networks_are_lecun_normal_and_depend_on_the_seed_alone():
    config = small(actor=dataclasses.replace(TINY, width=64), critic=dataclasses.replace(TINY, width=64))
    pair = fresh(config, jnp.array([5, 9], jnp.uint32))
    assert_same_bits(run(pair, 1), fresh(config, jnp.array([9], jnp.uint32)))
    trunks = (pair.nets["actor"].trunk, pair.nets["critic"].trunk)
    for layer in (layer for trunk in trunks for layer in (trunk.hidden[0], trunk.head)):
        assert (layer.kernel[0] != layer.kernel[1]).any()
        size, inner = layer.kernel.size, layer.kernel.shape[-2]
        assert float(jnp.std(layer.kernel)) == pytest.approx(inner**-0.5, rel=4 / np.sqrt(2 * size))  # 4 sigma
        np.testing.assert_array_equal(layer.bias, 0)
    assert (pair.nets["actor"].trunk.hidden[0].kernel != pair.nets["critic"].trunk.hidden[0].kernel).any()
    np.testing.assert_array_equal(pair.nets["actor"].log_std, 0)
    np.testing.assert_array_equal(pair.rate, np.float32(3e-4))


# A fleet --------------------------------------------------------------------------------------------------------------

SEEDS = (4, 5, 6)


@pytest.fixture(scope="module")
def fleet():
    """Three runs with rho 0, 0.1 and -0.2 and different rates: before, hyperparameters, rollout, and after one
    update."""
    state, rollout = filled(CONFIG, runs=3), experience(CONFIG, 3)
    numbers = hyper([0.0, 0.1, -0.2]) | {"learning_rate": jnp.array([3e-4, 1e-3, 3e-4], jnp.float32)}
    return state, numbers, rollout, updated(CONFIG, state, numbers, rollout, SEEDS)


def test_a_fleet_equals_its_runs_one_by_one(fleet):
    state, numbers, rollout, together = fleet
    for i, seed in enumerate(SEEDS):
        alone = updated(CONFIG, run(state, i), run(numbers, i), run(rollout, i), [seed])
        if jax.default_backend() == "cpu":  # in turns
            assert_same_bits(run(together, i), alone)
        else:
            assert_close(run(together, i), alone)


def test_runs_side_by_side_equal_runs_in_turns(fleet):
    state, numbers, rollout, _ = fleet
    clock = Clock(jnp.int32(0), jnp.float32(0.25))
    arguments = (state, numbers, rollout._asdict(), jnp.asarray(SEEDS, jnp.uint32), clock)
    found, want = (jax.jit(partial(form, CONFIG))(*arguments) for form in (rows.side_by_side, rows.in_turns))
    assert_close(found, want)


def test_side_by_side_too_rho_zero_equals_no_penalty_bit_for_bit(fleet):
    """Beside runs with another rho. (A GPU's own programs are compared where `updated` is.)"""
    state, numbers, rollout, _ = fleet
    more = (rollout._asdict(), jnp.asarray(SEEDS, jnp.uint32), Clock(jnp.int32(0), jnp.float32(0.25)))
    found, want = (jax.jit(partial(rows.side_by_side, config))(state, numbers, *more)[0] for config in (CONFIG, PLAIN))
    if jax.default_backend() == "cpu":
        assert_same_bits(run(found, 0), run(want, 0))
    assert (run(found, 1).nets["actor"].log_std != run(want, 1).nets["actor"].log_std).any()


def test_the_same_seed_twice_is_bit_equal_and_another_is_not(fleet):
    state, numbers, rollout, once = fleet
    assert_same_bits(updated(CONFIG, state, numbers, rollout, SEEDS), once)
    other = updated(CONFIG, state, numbers, rollout, (4, 5, 7))[0]
    assert_same_bits(run(other, 1), run(once[0], 1))
    assert (other.nets["actor"].log_std[2] != once[0].nets["actor"].log_std[2]).any()


def test_rho_zero_equals_no_penalty_bit_for_bit_in_a_fleet_of_one(fleet):
    state, _, rollout, _ = fleet
    arguments = (run(state, 0), hyper([0.0]), run(rollout, 0), SEEDS[:1])
    with_penalty, metrics = updated(CONFIG, *arguments)
    without, plain_metrics = updated(PLAIN, *arguments)
    if jax.default_backend() == "cpu":
        assert_same_bits(with_penalty, without)
    else:  # a lone product may be fused with what reads it; in training the penalty is left out if all rho are 0
        for a, b in zip(jax.tree.leaves(with_penalty), jax.tree.leaves(without), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    assert metrics["penalty"][0] > 0
    assert plain_metrics["penalty"][0] == metrics["coefficient"][0] == plain_metrics["coefficient"][0] == 0


def test_rho_zero_equals_no_penalty_bit_for_bit_beside_other_runs(fleet):
    state, numbers, rollout, (mixed, _) = fleet
    without, _ = updated(PLAIN, state, numbers | {"rho": jnp.zeros(3)}, rollout, SEEDS)
    assert_same_bits(run(mixed, 0), run(without, 0))
    for i in (1, 2):  # and another rho is another actor, with the critic left alone
        assert (mixed.nets["actor"].log_std[i] != without.nets["actor"].log_std[i]).any()
        assert_same_bits(run(mixed.nets["critic"], i), run(without.nets["critic"], i))


def test_rho_alone_makes_runs_differ(fleet):
    state, _, rollout, _ = fleet
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), (state, rollout))
    after, metrics = updated(CONFIG, same[0], hyper([0.0, 0.1, -0.2]), same[1], (4, 4, 4))
    kernels = after.nets["actor"].trunk.experts.hidden[-1].kernel
    gaps = [np.max(np.abs(kernels[i] - kernels[j])) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert min(gaps) > 1e-5
    assert_same_bits(run(after.nets["critic"], 1), run(after.nets["critic"], 0))
    assert metrics["coefficient"][0] == 0
    assert metrics["coefficient"][1] > 0 > metrics["coefficient"][2]


@pytest.mark.parametrize("field", ["obs", "action", "log_prob", "reward", "next_obs"])
def test_a_nan_is_reported_by_the_run_that_has_it_and_stays_there(field, fleet):
    state, numbers, rollout, (clean, clean_metrics) = fleet
    np.testing.assert_array_equal(clean_metrics["finite"], True)
    planted = getattr(rollout, field).copy()
    planted[1, 3, 2] = np.nan
    after, metrics = updated(CONFIG, state, numbers, rollout._replace(**{field: planted}), SEEDS)
    np.testing.assert_array_equal(metrics["finite"], [True, False, True])
    for i in (0, 2):
        assert_same_bits(run(after, i), run(clean, i))


# Settings, collecting, statistics -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("envs", "steps", "batch"), [(8, 100, 256), (4, 16, 24), (1, 16, 256), (3, 7, 2)])
def test_a_batch_size_that_does_not_divide_is_answered_with_ones_that_do(envs, steps, batch):
    with pytest.raises(
        ValueError, match=f"{envs * steps} samples, not a multiple of batch_size={batch}; use one of"
    ) as e:
        PPO(num_envs=envs, rollout_steps=steps, batch_size=batch)
    offered = str(e.value).split("use one of ")[1]
    assert [envs * steps % int(number) for number in offered.split(", ")] == [0] * (offered.count(",") + 1)


def test_a_penalty_that_may_be_negative_is_not_divided_by():
    with pytest.raises(ValueError, match="gradient-norm or fixed"):
        PPO(methods=(Sphere(variant="layer-entropy", coefficient="loss-ratio"),))


def test_collected_actions_are_not_clipped_and_successors_are_true():
    config = small(num_envs=3)
    state = filled(config, 6, 2, runs=2)
    actor = state.nets["actor"]
    (source,) = Environments(workers=0).open(Wanted(("probe/reach-north",), (3, 12), 1, 0), [[0, 1]])
    try:
        source.enter("probe/reach-north", None)
        data, outcomes = source.collect(actor, 0)
        raw = source.obs
    finally:
        source.close()
    rollout = Rollout.of(rows.annotated(config, actor, data))
    assert rollout.obs.shape == (2, 12, 3, 6)
    assert (np.abs(rollout.action) > 1).any()  # the simulator clips for itself
    mean = np.asarray(jax.vmap(lambda actor, obs: actor(obs)[0].mean)(actor, rollout.obs.reshape(2, -1, 6)))
    z = rollout.action.reshape(mean.shape) - mean
    log_prob = -0.5 * np.sum(z**2 + np.log(2 * np.pi), axis=-1)
    np.testing.assert_allclose(rollout.log_prob.reshape(log_prob.shape), log_prob, rtol=1e-5)
    following = np.append(rollout.obs[:, 1:], raw[:, None], axis=1)
    goes_on = ~rollout.done
    np.testing.assert_array_equal(rollout.next_obs[goes_on], following[goes_on])
    assert (rollout.next_obs[rollout.done] != following[rollout.done]).all(axis=-1).all()
    # Ten steps to an episode: one ended in every environment, by the time limit, and the return is its sum of rewards.
    np.testing.assert_array_equal(np.argwhere(rollout.done)[:, 1], 9)
    assert not rollout.terminated.any()
    assert list(zip(outcomes.run, outcomes.episode, strict=True)) == [(r, e) for r in range(2) for e in range(3)]
    np.testing.assert_array_equal(outcomes.columns["length"], 10)
    returns = outcomes.columns["return"].reshape(2, 3)
    np.testing.assert_allclose(returns, rollout.reward[:, :10].sum(axis=1), rtol=1e-5)


def test_statistics_equal_those_of_all_data_with_the_prior_count():
    """VecNormalize begins with mean 0 and variance 1 at a weight of 1e-4 samples."""
    rng = np.random.default_rng(0)
    statistics = Statistics.fresh(2, 3)
    offset, scale = rng.normal(size=(2, 2, 1, 3)) * 5
    batches = [offset + scale * rng.normal(size=(2, size, 3)) for size in (1, 7, 64, 2, 300)]
    for batch in batches:
        statistics.update(batch.astype(np.float32))
    data = np.concatenate(batches, axis=1).astype(np.float32).astype(np.float64)
    count = data.shape[1] + 1e-4
    mean = data.sum(axis=1) / count
    var = (1e-4 + np.square(data).sum(axis=1)) / count - mean**2
    np.testing.assert_allclose(statistics.count, count)
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(statistics.var, var, rtol=1e-10)
    far = data[:, :4] + np.array([0, 0, 1e4])
    want = np.clip((far - mean[:, None]) / np.sqrt(var[:, None] + 1e-8), -10, 10)
    found = statistics.normalise(far)
    assert found.dtype == np.float32
    assert (found[..., 2] == 10).all()
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_penalties_go_where_they_are_placed():
    """On the critic or on both (on the actor: all other tests); what is not penalised is as without."""
    config = small(batch_size=9)
    state, numbers = filled(config), hyper(0.5)
    (batch,) = random_batches(np.random.default_rng(0), 1, 9, state)
    after = {}
    for place in (None, "critic", "both"):
        methods = () if place is None else (Sphere(placement=place),)
        step = jax.jit(partial(ppo.minibatch, dataclasses.replace(config, methods=methods)))
        after[place] = step(state, numbers, jnp.float32(1e-3), batch)[0]
    for place in ("critic", "both"):
        for part in ("actor", "critic"):
            kernel, plain = (after[p].nets[part].trunk.hidden[0].kernel for p in (place, None))
            moved = float(jnp.max(jnp.abs(kernel - plain)))
            assert (moved > 1e-5) if place in (part, "both") else (moved < 1e-7), (place, part)


def test_a_penalty_with_a_short_gradient_is_felt_as_rho_says_by_a_relative_floor():
    """Features a hundredth of their size make the penalty's gradient a millionth: the released floor then holds it
    down."""
    config = small(batch_size=9, methods=(Sphere(),))
    state, numbers = filled(config), hyper(0.5)
    state = eqx.tree_at(
        lambda s: s.nets["actor"].trunk.hidden[0].kernel, state, replace_fn=lambda kernel: 1e-2 * kernel
    )
    state = eqx.tree_at(lambda s: s.nets["actor"].trunk.hidden[0].bias, state, replace_fn=lambda bias: 1e-2 * bias)
    (batch,) = random_batches(np.random.default_rng(0), 1, 9, state)
    felt = {}
    for floor in (None, 1e-8):
        one = dataclasses.replace(config, methods=(Sphere(floor=floor),))
        felt[floor] = float(jax.jit(partial(ppo.minibatch, one))(state, numbers, jnp.float32(1e-3), batch)[1].felt)
    assert felt[1e-8] == pytest.approx(0.5, rel=1e-3)
    assert felt[None] < 0.2 * 0.5  # where training warns
