"""C-CHAIN against the published program, its warm-up, and the order of its second minibatch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import OBS, filled, hyper, numbered_rollout, random_batches, small, with_methods

from sphere.algos import ppo
from sphere.algos.learner import Clock
from sphere.algos.optimiser import clipped_adam
from sphere.algos.ppo_equations import actor_loss
from sphere.algos.step import Surroundings
from sphere.methods import CChain


def plain_mean(actor, obs):
    """Of a dense relu actor with one hidden layer."""
    trunk = actor.trunk
    first, head = trunk.hidden[0], trunk.head
    hidden = np.maximum(np.asarray(obs, float) @ np.asarray(first.kernel, float) + np.asarray(first.bias), 0)
    return hidden @ np.asarray(head.kernel, float) + np.asarray(head.bias)


def test_c_chain_follows_the_published_program():
    """Its lists of past policies and losses, its coefficient, and its gradient, over three tasks' beginnings."""
    iterations, per_iteration, batch_size = 8, 3, 9
    chain = CChain(warm_up_iterations=3, window=4)
    config = with_methods(small(batch_size=batch_size), chain)
    without = with_methods(config)
    state = filled(without)
    state = dataclasses.replace(
        state, methods={"c-chain": chain.init({"actor": state.nets["actor"]}, jax.random.key(0))}
    )
    step = jax.jit(lambda *given: ppo.minibatch(config, *given[:4], Surroundings(other_inputs=given[4])))
    begin = jax.jit(chain.begin_iteration)
    rng = np.random.default_rng(0)

    @jax.jit
    def reference(actor, moments, previous, coefficient, batch, other, rate):
        def loss(actor):
            churn = jnp.mean((actor(other)[0].mean - previous(other)[0].mean) ** 2)
            return actor_loss(actor, batch, without.clip)[0] + coefficient * churn

        return clipped_adam(actor, moments, jax.grad(loss)(actor), rate, max_norm=0.5, eps=1e-5)

    for task in range(3):
        if task:
            own = jax.jit(chain.begin_task)(state.methods["c-chain"])
            state = dataclasses.replace(state, methods={"c-chain": own})
        history, policy_losses, reg_losses, coefficient = [state.nets["actor"]], [], [], 100.0
        for iteration in range(iterations):
            progress = jnp.float32((iteration + 1) / iterations)
            state = dataclasses.replace(state, methods={"c-chain": begin(state.methods["c-chain"], progress)})
            rate = ppo.scheduled(config, hyper(0.0, rate=1e-2, final=1e-3), progress)
            for batch in random_batches(rng, per_iteration, batch_size, state):
                other = jnp.asarray(rng.normal(size=(batch_size, OBS)), jnp.float32)
                before = state
                state, metrics = step(state, hyper(0.0, rate=1e-2, final=1e-3), rate, batch, other)
                reg = 0.0
                if len(history) > 2:
                    reg = np.mean((plain_mean(history[-1], other) - plain_mean(history[-2], other)) ** 2)
                np.testing.assert_allclose(metrics.penalty, reg, rtol=1e-3, atol=1e-9)
                np.testing.assert_allclose(metrics.coefficient, coefficient, rtol=1e-4)
                previous = history[-2] if len(history) > 2 else history[-1]
                active = jnp.float32(coefficient if len(history) > 2 else 0)
                want = reference(before.nets["actor"], before.moments["actor"], previous, active, batch, other, rate)[0]
                for a, b in zip(jax.tree.leaves(state.nets["actor"]), jax.tree.leaves(want), strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)
                history = [*history, state.nets["actor"]][-10:]
            policy_losses.append(float(metrics.policy_loss))
            reg_losses.append(reg)
            if iteration + 1 >= 3:
                p, r = np.mean(np.abs(policy_losses[-4:])), np.mean(reg_losses[-4:])
                coefficient = 0.05 * p / (r + 1e-8) * float(rate / 1e-2)
        assert coefficient != 100


@pytest.mark.parametrize(("iterations", "first"), [(62, 7), (488, 49), (5, 1), (1, None)])
def test_the_warm_up_of_c_chain_is_a_tenth_of_the_task(iterations, first):
    """The first iteration (from 0) whose weight follows the losses; 488 are the published 1M steps, where 50 were
    waited."""
    chain = CChain()
    own = jax.tree.map(np.asarray, chain.init({"actor": jnp.zeros(1)}, jax.random.key(0)))
    begin = jax.jit(chain.begin_iteration)
    found = None
    for i in range(min(iterations, 60)):
        own = begin(own | {"policy_losses": np.ones(100, np.float32)}, np.float32((i + 1) / iterations))
        if found is None and own["weight"] != 100:
            found = i
    assert found == first


def test_the_second_minibatch_is_another_order_of_the_same_rollout(monkeypatch):
    config = with_methods(small(num_envs=4, rollout_steps=6, batch_size=8, epochs=3), CChain())
    rollout = numbered_rollout(6, 4)
    state = jax.tree.map(jnp.zeros_like, filled(config, 1, 1))
    seen = []

    def spy(config, state, numbers, rate, batch, around):
        jax.debug.callback(
            lambda *two: seen.append([np.array(a)[:, 0] for a in two]), batch.obs, around.other_inputs, ordered=True
        )
        return state, ppo.PPOMetrics(*[jnp.zeros(())] * 11, finite=True, replaced=jnp.zeros(()))

    monkeypatch.setattr(ppo, "minibatch", spy)
    jax.jit(config.update)(state, hyper(0.0), rollout._asdict(), jnp.uint32(0), Clock(jnp.int32(0), jnp.float32(0)))
    jax.effects_barrier()
    first, second = (np.stack([pair[i] for pair in seen]).reshape(3, 24) for i in (0, 1))
    for order in (first, second):
        np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(24), (3, 1)))
    assert not (first == second).all(axis=1).any()
