"""PPO against a plain statement of its equations, in double precision."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import ACT, OBS, PLAIN, filled, hyper, plain_layers, plain_mlp, random_batches

from sphere.algos import ppo
from sphere.algos.ppo import PPO
from sphere.algos.ppo_equations import LARGEST_LOG_RATIO, Minibatch, actor_loss
from sphere.nets import NetConfig


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
    batch = Minibatch(obs, action, now - jnp.array([distance, 0.0]), jnp.array([advantage, -advantage]), jnp.zeros(2))
    loss, grads = loss_and_gradient(actor, batch)
    ratio = np.exp(min(distance, LARGEST_LOG_RATIO))
    np.testing.assert_allclose(loss, -(min(advantage * ratio, advantage * 1.2) - advantage) / 2, rtol=1e-4)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    if distance > LARGEST_LOG_RATIO:  # what is left is the other sample's
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(grads)) < 100


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
