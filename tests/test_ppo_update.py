"""A whole update of PPO: learning rates, order of minibatches, types, first networks, where penalties act, refusals."""

import dataclasses
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import (
    CONFIG,
    TINY,
    assert_same_bits,
    experience,
    filled,
    fresh,
    hyper,
    numbered_rollout,
    random_batches,
    run,
    small,
)

from sphere.algos import ppo, rows
from sphere.algos.learner import Clock
from sphere.algos.ppo import PPO, PPOMetrics
from sphere.algos.ppo_equations import adapt_rate, prepare
from sphere.methods import Sphere


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


def test_minibatches_cover_the_rollout_once_per_epoch_and_metrics_are_means(monkeypatch):
    config = small(num_envs=4, rollout_steps=6, batch_size=8, epochs=5)
    rollout = numbered_rollout(6, 4)
    state = jax.tree.map(jnp.zeros_like, filled(config, 1, 1))
    seen = []

    def spy(config, state, hyper, rate, batch, unpack):
        jax.debug.callback(lambda *leaves: seen.append([np.array(leaf) for leaf in leaves]), *batch, ordered=True)
        number = jnp.mean(batch.obs[:4])  # of part of the minibatch: differs from one to the next
        return state, PPOMetrics(*(number * i for i in range(11)), finite=number >= 0, replaced=number * 0)

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
    found = [metrics[name] for name in PPOMetrics._fields[:11]]
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
