"""What PPO learns from: advantages, collected actions and successors, statistics of observations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from updates import OBS, experience, filled, on_device, plain_layers, plain_mlp, small

from sphere.algos import rows
from sphere.algos.ppo_equations import Rollout, gae, prepare
from sphere.algos.source import Wanted
from sphere.envs.environments import Environments
from sphere.envs.running_statistics import Statistics


def test_gae_equals_the_textbook_double_sum():
    rng = np.random.default_rng(0)
    time = 12
    r, v, next_v = rng.normal(size=(3, time))
    d, lam = 0.97 * (rng.random(time) > 0.2), 0.9 * (rng.random(time) > 0.3)
    delta = r + d * next_v - v
    want = [sum(np.prod((lam * d)[t:k]) * delta[k] for k in range(t, time)) for t in range(time)]
    found = gae(*(jnp.asarray(x, jnp.float32) for x in (r, d, v, next_v, lam)))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


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
