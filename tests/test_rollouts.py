"""Rollouts that workers act in by themselves, against stepping the same pool by hand with the same policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sphere import envs
from sphere.envs import policy_arrays
from sphere.envs import rollout_driver as module
from sphere.envs.policy import FleetPolicy, normalised
from sphere.envs.rollout_driver import RolloutDriver
from sphere.nets import GaussianActor, NetConfig, build

TASK, ENVS, SEEDS, STEPS = "probe/reach-north", 3, (5, 6), 70


def pool(workers):
    return envs.make(TASK, num_envs=ENVS, seed=SEEDS, workers=workers)


@pytest.fixture(scope="module")
def actor():
    with pool(0) as example:
        sizes = example.single_observation_space.shape[0], example.single_action_space.shape[0]
    config = NetConfig(kind="top-k", width=32, depth=2, experts=4, top_k=2)
    each = [GaussianActor(build(config, *sizes, key=jax.random.key(seed)), sizes[1]) for seed in SEEDS]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)


@pytest.fixture(scope="module")
def noise(actor):
    return np.random.default_rng(0).normal(size=(STEPS, 6, actor.log_std.shape[-1])).astype(np.float32)


def by_hand(actor, noise, statistics=None):
    """The learner chooses every action: rows, episodes, and what comes after."""
    policy = FleetPolicy(policy_arrays.spec(actor), policy_arrays.arrays(actor), [(0, slice(0, 3)), (1, slice(3, 6))])
    rows, ended = [], []
    with pool(0) as stepped:
        obs, _ = stepped.reset()
        for extra in noise:
            x = (
                obs
                if statistics is None
                else normalised(obs, *(np.repeat(s, ENVS, axis=0) for s in statistics(len(rows))))
            )
            action = extra + policy(x)
            obs, reward, terminated, truncated, infos = stepped.step(action)
            rows.append((action, obs, infos["final_obs"], reward, terminated, truncated, infos["success"]))
            if "episode" in infos:
                ended.append((np.flatnonzero(infos["_episode"]), infos["episode"]))
        after = stepped.step(np.zeros_like(noise[0]))[0]
    return [np.stack(column) for column in zip(*rows, strict=True)], ended, after


def assert_same(log, finished, want, ended):
    names = ("action", "obs", "final_obs", "reward", "terminated", "truncated", "success")
    for name, column in zip(names, want, strict=True):
        np.testing.assert_array_equal(log[name], column, err_msg=name)
    assert len(finished) == len(ended) > 0
    for mine, (rows, episode) in zip(finished, ended, strict=True):
        np.testing.assert_array_equal(mine.rows, rows)
        for name in episode:
            np.testing.assert_array_equal(mine.episode[name], episode[name], err_msg=name)


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_a_rollout_equals_stepping_by_hand(workers, actor, noise, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 32)  # several pieces, the last one short
    want, ended, after = by_hand(actor, noise)
    with pool(workers) as free:
        free.reset()
        rollouts = RolloutDriver(free, policy_arrays.spec(actor), policy_arrays.arrays(actor))
        log, finished = rollouts.run(STEPS, noise)
        assert_same(log, finished, want, ended)
        np.testing.assert_array_equal(free.step(np.zeros_like(noise[0]))[0], after)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_short_rollouts_are_one_long_one_and_parameters_change_between(workers, actor, noise):
    other = jax.tree.map(lambda leaf: 0.5 * leaf, actor)
    with pool(workers) as free:
        free.reset()
        rollouts = RolloutDriver(free, policy_arrays.spec(actor), policy_arrays.arrays(actor))
        first = rollouts.run(30, noise[:30])[0].copy()
        second = rollouts.run(40, noise[30:])[0].copy()  # longer than the room of the first
        np.testing.assert_array_equal(np.concatenate([first["reward"], second["reward"]]), by_hand(actor, noise)[0][3])
        rollouts.load(policy_arrays.arrays(other))
        third = rollouts.run(30, noise[:30])[0]
        assert (third["action"] != first["action"]).any()


@pytest.mark.parametrize("workers", [0, 2])
def test_statistics_may_change_after_every_step(workers, actor, noise):
    size = policy_arrays.arrays(actor)["gate/0/kernel"].shape[1]

    def statistics(t):
        return np.full((2, size), 0.01 * t), np.full((2, size), 1 + 0.1 * t)

    want, ended, _ = by_hand(actor, noise, statistics)
    with pool(workers) as free:
        free.reset()
        mean, var = statistics(0)
        rollouts = RolloutDriver(
            free, policy_arrays.spec(actor), policy_arrays.arrays(actor) | {"mean": mean, "var": var}
        )
        seen = []

        def after(rows):
            seen.append(rows["obs"].copy())
            rollouts.load(dict(zip(("mean", "var"), statistics(len(seen)), strict=True)))

        log, finished = rollouts.run(STEPS, noise, after=after)
        assert_same(log, finished, want, ended)
        np.testing.assert_array_equal(np.stack(seen), want[1])


def test_without_a_policy_the_noise_is_the_action(noise):
    with pool(2) as free, pool(0) as stepped:
        free.reset(), stepped.reset()
        log, _ = RolloutDriver(free).run(STEPS, noise)
        want = np.stack([stepped.step(action)[0] for action in noise])
        np.testing.assert_array_equal(log["obs"], want)


def test_once_stops_where_every_environment_has_ended_an_episode(actor):
    with pool(2) as free:
        free.reset()
        rollouts = RolloutDriver(free, policy_arrays.spec(actor), policy_arrays.arrays(actor))
        long = 10 * free.horizon
        _, finished = rollouts.run(long, once=True)
        rows = np.concatenate([rows for rows, _ in finished])
        assert set(rows.tolist()) == set(range(6))
        assert len(rows) < 6 * 10


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_in_a_rollout_is_itself_and_closes_the_pool(actor, workers, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pool(workers) as free:
        free.reset()
        rollouts = RolloutDriver(free, policy_arrays.spec(actor), policy_arrays.arrays(actor))
        monkeypatch.setattr(free.episodes, "add", interrupt)  # while the workers are at the second piece
        with pytest.raises(KeyboardInterrupt):
            rollouts.run(12)
        assert free.closed


def test_a_diverged_policy_is_told_and_closes_the_pool(actor):
    with pool(1) as free:
        free.reset()
        arrays = policy_arrays.arrays(actor)
        rollouts = RolloutDriver(free, policy_arrays.spec(actor), arrays)
        rollouts.load({name: np.full_like(array, np.nan) for name, array in arrays.items()})
        with pytest.raises(envs.pool.WorkerError, match="6 of 6 environments are not finite: has the policy diverged"):
            rollouts.run(3)
        assert free.closed
