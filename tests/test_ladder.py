"""The probe ladder: tasks whose values and actions are known, from a constant reward to actions that depend on what is
seen.

A learner that fails on a rung has a bug that its name points at. Small networks, a high learning rate, seconds on a
CPU; most of the time is compiling, so all probes with the same spaces share one program per network.
"""

import dataclasses
from types import MappingProxyType

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sphere.algos import rows
from sphere.algos.learner import Clock
from sphere.algos.ppo import PPO
from sphere.algos.source import Wanted
from sphere.envs.environments import Environments
from sphere.envs.probes import PROBES, optimal_action, optimal_value
from sphere.nets import NetConfig

GAMMA = 0.8  # V = 5 at the time limit and 3.36, 2.95, 2.44, 1.8, 1 before the termination: far apart
SEEDS = (0, 1)

CONFIG = PPO(
    num_envs=16,
    rollout_steps=16,
    batch_size=64,
    epochs=8,
    gamma=GAMMA,
    actor=NetConfig(kind="top-k", width=16, depth=2, experts=4, top_k=2, group_size=16, tokens=4, token_size=16),
    critic=NetConfig(kind="mlp", width=32, depth=2, activation="tanh"),  # relu needs longer to bend at t = 0 to 4
)


def configuration(kind):
    """The dense actor as PPO has it; mixtures with SPHERE."""
    actor = dataclasses.replace(CONFIG.actor, kind=kind)
    return dataclasses.replace(CONFIG, actor=actor, methods=() if kind == "mlp" else CONFIG.methods)


def fresh(config, spec, numbers, constants=MappingProxyType({"temperature": 1})):
    """LeCun-normal networks by numpy: the package's own take longer to compile than these tasks to learn. What is no
    kernel is 0, or a constant where its name holds one of these."""
    seeds = jnp.arange(len(SEEDS), dtype=jnp.uint32)
    shapes = eqx.filter_eval_shape(lambda: rows.init(config, spec, seeds, numbers))
    rng = np.random.default_rng(0)

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        if "kernel" in name and "moments" not in name:
            return jnp.asarray(leaf.shape[-2] ** -0.5 * rng.normal(size=leaf.shape), leaf.dtype)
        value = next((constants[part] for part in constants if part in name), 0)
        return jnp.full(leaf.shape, value, leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def train(task, kind, iterations=30, rate=1e-2, rho=0.1, spoil=lambda data: data):
    """Runs with two seeds, together; `spoil` changes what is learned from."""
    config = configuration(kind)
    runs = len(SEEDS)
    seeds = jnp.asarray(np.array(SEEDS, np.uint32))
    of_runs = config.numbers | {"rho": rho, "learning_rate": rate, "final_learning_rate": rate / 10}
    numbers = {name: jnp.full(runs, number, jnp.float32) for name, number in of_runs.items()}
    (source,) = Environments(workers=0).open(Wanted((f"probe/{task}",), config.rollout, 1, 0), [SEEDS])
    try:
        source.enter(f"probe/{task}", None)
        state = fresh(config, source.spec, numbers)
        for i in range(iterations):
            actor = config.policy(state)
            data, _ = source.collect(actor, i * config.rollout_steps)
            clock = Clock(np.int32(i), np.float32((i + 1) / iterations))
            data = spoil(rows.annotated(config, actor, data))
            state, metrics = rows.update(config, state, numbers, data, seeds, clock)
            assert np.asarray(metrics["finite"]).all()
    finally:
        source.close()
    return state


def states(task):
    """What can be seen on a probe; of `observed-action`, a grid of the plane."""
    if task == "observed-action":
        return np.stack(np.meshgrid(*[np.linspace(-0.9, 0.9, 4)] * 2), axis=-1).reshape(-1, 2).astype(np.float32)
    seen = {
        "observed-reward": [-1, 1],
        "delayed-reward": [0, 1],
        "termination": [0, 1, 2, 3, 4],
    }
    return np.array(seen.get(task, [1]), np.float32)[:, None]


@eqx.filter_jit
def values(critics, obs):
    return eqx.filter_vmap(lambda critic: critic(obs)[0])(critics)


def answers(state, obs):
    """Values [run, n] and mean actions [run, n, act] of the trained runs."""
    value = values(state.nets["critic"], jnp.asarray(obs))
    action = rows.act(state.nets["actor"], jnp.broadcast_to(jnp.asarray(obs), (len(SEEDS), *obs.shape)))
    return np.asarray(value), np.asarray(action)


def assert_values(task, state):
    obs = states(task)
    want = optimal_value(task, obs.astype(float), GAMMA)
    np.testing.assert_allclose(answers(state, obs)[0], np.tile(want, (len(SEEDS), 1)), atol=0.05)


def action_errors(task, state):
    obs = states(task)
    return np.abs(answers(state, obs)[1] - optimal_action(task, obs.astype(float))[None])


@pytest.mark.parametrize("task", PROBES)
@pytest.mark.parametrize("kind", ["mlp", "top-k"])
def test_every_rung_is_learned(kind, task):
    state = train(task, kind)
    assert_values(task, state)
    if task in ("best-action", "observed-action"):
        assert action_errors(task, state).max() < 0.15


@pytest.mark.parametrize("kind", ["dense", "deepseek", "soft", "expert-choice"])
def test_every_mixture_learns_actions_that_depend_on_what_it_sees(kind):
    state = train("observed-action", kind)
    assert_values("observed-action", state)
    errors = action_errors("observed-action", state)
    assert errors.mean() < 0.05
    if kind != "expert-choice":  # there an expert picks samples, and one among strangers may get none
        assert errors.max() < 0.15


def test_the_ladder_tells_a_time_limit_from_a_termination():
    """A learner that takes every end of an episode for a termination is found out: it does not see the value 5."""
    state = train("time-limit", "mlp", spoil=lambda data: data | {"terminated": data["done"]})
    value, _ = answers(state, states("time-limit"))
    assert (value < 4).all()


def test_the_ladder_tells_actions_from_noise():
    """A learner whose rewards are those of another moment does not find the action."""
    state = train("observed-action", "mlp", spoil=lambda data: data | {"reward": data["reward"][:, ::-1]})
    assert action_errors("observed-action", state).mean() > 0.1
