"""What tests of PPO's update share: small settings, states and experience made up by numpy, and plain networks."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sphere.algos import rows
from sphere.algos.learner import Clock, DataSpec
from sphere.algos.ppo import PPO
from sphere.algos.ppo_equations import Minibatch, Rollout
from sphere.nets import NetConfig

OBS, ACT = 7, 3

# Small, and few: most of the time of these tests goes into compiling these programs.
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


def numbered_rollout(time, envs):
    """Of one run; every number of a sample is the sample's own, counted from 0."""
    number = np.arange(time * envs, dtype=np.float32).reshape(time, envs)
    flags = np.zeros((time, envs), bool)
    return on_device(Rollout(*(number[..., None],) * 2, number, number, number[..., None], flags, flags))


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


def plain_mlp(layers, x):
    """Layers as (kernel, bias); output and last hidden features."""
    for kernel, bias in layers[:-1]:
        x = jnp.maximum(x @ kernel + bias[None], 0)
    return x @ layers[-1][0] + layers[-1][1][None], x


def plain_layers(mlp, expert=None):
    """An MLP, or one expert of a bank, as double-precision arrays."""
    pairs = [(layer.kernel, layer.bias) for layer in (*mlp.hidden, mlp.head)]
    return [tuple(np.asarray(a if expert is None else a[expert], np.float64) for a in pair) for pair in pairs]


def random_batches(rng, number, n, state, drift=0.2):
    """With log-probabilities off by `drift`: at 0.2 some ratios are clipped and some are not."""
    for _ in range(number):
        obs = rng.normal(size=(n, OBS)).astype(np.float32)
        action = rng.normal(size=(n, ACT)).astype(np.float32)
        log_prob = np.asarray(state.nets["actor"](jnp.asarray(obs))[0].log_prob(jnp.asarray(action)))
        log_prob = (log_prob + drift * rng.normal(size=n)).astype(np.float32)
        advantage, returns = (3 * rng.normal(size=(2, n)) + 1).astype(np.float32)
        yield on_device(Minibatch(obs, action, log_prob, advantage, returns))


def small(**settings):
    shape = {"num_envs": 3, "rollout_steps": 3, "batch_size": 3, "actor": TINY, "critic": TINY, "methods": ()}
    return PPO(**{**shape, **settings})


def with_methods(config, *methods):
    """The same settings with these methods and no others."""
    return dataclasses.replace(config, methods=methods)
