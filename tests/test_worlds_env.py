"""Worlds on an accelerator as a gymnasium vector environment, and as functions for users of JAX."""

import gymnasium
import jax
import numpy as np
import pytest
from reach_worlds import ReachWorlds

from sphere import envs, registry
from sphere.envs.gym_names import NextStep
from sphere.errors import UserError

NAME = "probe/reach-east"


@pytest.fixture(autouse=True)
def reach(monkeypatch):
    monkeypatch.setitem(registry.WORLDS, "probe", ReachWorlds)


def actions(steps, count):
    return np.random.default_rng(0).uniform(-1.2, 1.2, (steps, count, 2)).astype(np.float32)


def played(env, steps):
    rows = [env.reset()[0]]
    for action in actions(steps, env.num_envs):
        rows.append(env.step(action))
    return rows


def test_it_is_a_vector_environment_with_the_infos_of_a_pool():
    with envs.make(NAME, 3, seed=5, simulator="gpu") as env, envs.make(NAME, 3, seed=5, workers=0) as pool:
        assert isinstance(env, gymnasium.vector.VectorEnv)
        for name in ("single_observation_space", "single_action_space", "action_space", "num_envs", "metadata"):
            assert getattr(env, name) == getattr(pool, name)
        ours, theirs = played(env, 21), played(pool, 21)
        assert ours[0].shape == theirs[0].shape
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            assert one[4].keys() == other[4].keys()
            for a, b in zip(one[:4], other[:4], strict=True):
                assert a.shape == b.shape
                assert type(a) is type(b)
            np.testing.assert_array_equal(one[3], other[3])  # both end by their time limit, at the same step
            if "episode" in one[4]:
                assert one[4]["episode"].keys() == other[4]["episode"].keys()
                np.testing.assert_array_equal(one[4]["episode"]["l"], other[4]["episode"]["l"])


def test_where_an_episode_ends_the_next_has_begun():
    with envs.make(NAME, 2, seed=1, simulator="gpu") as env:
        first, *rows = played(env, 20)
        total = np.zeros(2)
        for t, (obs, reward, terminated, truncated, infos) in enumerate(rows, start=1):
            total += reward
            assert not terminated.any()
            assert truncated.all() == (t % 10 == 0)
            if truncated.all():
                assert (obs != infos["final_obs"]).any()
                np.testing.assert_allclose(infos["episode"]["r"], total, rtol=1e-5)
                total[:] = 0
            else:
                np.testing.assert_array_equal(obs, infos["final_obs"])
        assert (env.reset()[0] != first).any()  # the next episode
        np.testing.assert_array_equal(env.reset(seed=1)[0], first)


def test_runs_of_a_fleet_are_those_they_would_be_alone():
    with envs.make(NAME, 2, seed=[3, 8], simulator="gpu") as both, envs.make(NAME, 2, seed=8, simulator="gpu") as one:
        np.testing.assert_array_equal(both.reset()[0][2:], one.reset()[0])
        for action in actions(12, 4):
            for a, b in zip(both.step(action)[:4], one.step(action[2:])[:4], strict=True):
                np.testing.assert_array_equal(a[2:], b)


def test_a_state_is_restored_and_gymnasiums_wrappers_work():
    with envs.make(NAME, 2, seed=0, simulator="gpu") as env:
        played(env, 7)
        state = env.get_state()
        want = [env.step(action) for action in actions(5, 2)]
        env.set_state(state)
        for action, result in zip(actions(5, 2), want, strict=True):
            np.testing.assert_array_equal(env.step(action)[0], result[0])
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(NextStep(envs.make(NAME, 2, simulator="gpu")))
    wrapped.reset()
    ended = [wrapped.step(action)[4] for action in actions(11, 2)]
    assert [("episode" in infos) for infos in ended] == [False] * 9 + [True, False]
    wrapped.close()


def test_the_functions_are_pure_and_give_what_the_environment_gives():
    reset, step = envs.functions(NAME, 3)

    @jax.jit
    def rollout(seed, actions):
        start, obs = reset(seed)
        return obs, jax.lax.scan(step, start, actions)[1]

    obs, moved = rollout(4, actions(21, 3))
    with envs.make(NAME, 3, seed=4, simulator="gpu") as env:
        first, *rows = played(env, 21)
        np.testing.assert_array_equal(obs, first)
        for t, (after, reward, terminated, truncated, infos) in enumerate(rows):
            want = (after, infos["final_obs"], reward, terminated, truncated, infos["success"])
            for a, b in zip(moved[:6], want, strict=True):
                np.testing.assert_array_equal(a[t], b)
    assert int(moved.ended.done.sum()) == 6


def test_mistakes_are_said():
    with envs.make(NAME, 2, simulator="gpu") as env:
        with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
            env.step(np.zeros((2, 2)))
        env.reset()
        with pytest.raises(ValueError, match=r"shape \(3, 2\), want \(2, 2\)"):
            env.step(np.zeros((3, 2)))
        with pytest.raises(ValueError, match="finite numbers"):
            env.step(np.full((2, 2), np.nan))
        with pytest.raises(ValueError, match="want 1 whole numbers from 0"):
            env.reset(seed=[1, 2])
    with pytest.raises(UserError, match="metaworld has no simulator on a GPU"):
        envs.make("metaworld/hammer", simulator="gpu")
    with pytest.raises(UserError, match="metaworld has no simulator on a GPU"):
        envs.functions("metaworld/hammer", 4)
