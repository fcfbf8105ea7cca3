"""Environments for other libraries: gymnasium's wrappers and names, Stable-Baselines3's VecEnv."""

import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics
from walk import Walk

import sphere
from sphere.envs import gym_names
from sphere.envs.pool import Pool

ROOT = Path(__file__).resolve().parents[1]
STEPS = 40


def pool(**settings):
    return Pool(Walk, "walk", 3, seeds=(5, 6), **{"workers": 0} | settings)


def actions():
    return np.random.default_rng(0).uniform(-2, 1, size=(STEPS, 6, 1)).astype(np.float32)


@pytest.mark.parametrize("workers", [0, 2])
def test_next_step_has_the_pools_trajectories_with_a_step_more_between_episodes(workers):
    """Each environment by itself: the actions that were ignored are left out in a pool that resets in the same step."""
    with sphere.envs.next_step(pool(workers=workers)) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        first, _ = envs.reset()
        seen = [envs.step(action) for action in actions()]
    for i in range(6):
        with pool() as plain:
            obs, _ = plain.reset()
            np.testing.assert_array_equal(obs[i], first[i])
            fresh, ends, begins = False, 0, None
            for action, (got, reward, terminated, truncated, infos) in zip(actions(), seen, strict=True):
                if fresh:
                    np.testing.assert_array_equal(got[i], begins)
                    assert (reward[i], terminated[i], truncated[i], infos["success"][i]) == (0, False, False, False)
                    fresh = False
                    continue
                obs, want, ended, cut, more = plain.step(action)
                fresh = ended[i] or cut[i]
                np.testing.assert_array_equal(got[i], more["final_obs"][i])
                assert (reward[i], terminated[i], truncated[i]) == (want[i], ended[i], cut[i])
                if fresh:
                    begins, ends = obs[i], ends + 1
                    assert infos["_outcome"][i]
                    for name, column in more["episode"].items():
                        assert infos["outcome"][name][i] == column[i]
            assert ends > 3


def test_gymnasiums_wrappers_count_and_normalise():
    envs = NormalizeObservation(RecordEpisodeStatistics(sphere.envs.next_step(pool())))
    envs.reset()
    counted = 0
    for action in actions():
        obs, *_, infos = envs.step(action)
        if "episode" in infos:
            done = infos["_outcome"]
            counted += done.sum()
            np.testing.assert_allclose(infos["episode"]["r"][done], infos["outcome"]["r"][done])
            np.testing.assert_array_equal(infos["episode"]["l"][done], infos["outcome"]["l"][done])
    assert counted > 20
    assert np.abs(obs).max() < 10
    envs.close()


def test_gymnasium_makes_tasks_by_name():
    gym_names.register()  # as importing sphere.envs does where gymnasium is imported before it
    name = sphere.envs.tasks("probe")[0]
    envs = gymnasium.make_vec(f"sphere/probe-{name}", num_envs=3, seed=4, workers=0)
    with sphere.envs.make(f"probe/{name}", 3, seed=4, workers=0) as plain:
        np.testing.assert_array_equal(envs.reset()[0], plain.reset()[0])
    assert envs.num_envs == 3
    assert "sphere/metaworld-hammer" in gymnasium.registry
    envs.close()


def test_the_readmes_line_works_in_a_fresh_process():
    code = """
import gymnasium as gym
import sphere
name = "probe/" + sphere.envs.tasks("probe")[0]
with sphere.envs.make(name, num_envs=2, seed=0, workers=0) as envs:
    print(envs.reset()[0].shape[0], "sphere/metaworld-hammer" in gym.registry, "jax" in __import__("sys").modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.stdout == "2 True False\n", found.stderr


def sb3():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        return pytest.importorskip("stable_baselines3", reason="needs Stable-Baselines3: pip install stable-baselines3")


def test_sb3_has_the_pools_numbers():
    sb3()
    with sphere.envs.sb3(pool()) as envs, pool() as plain:
        np.testing.assert_array_equal(envs.reset(), plain.reset()[0])
        ends = cuts = 0
        for action in actions():
            obs, reward, done, infos = envs.step(action)
            want, gain, terminated, truncated, more = plain.step(action)
            np.testing.assert_array_equal(obs, want)
            np.testing.assert_array_equal(reward, gain.astype(np.float32))
            np.testing.assert_array_equal(done, terminated | truncated)
            for i, info in enumerate(infos):
                assert ("terminal_observation" in info) == ("episode" in info) == done[i]
                if done[i]:
                    ends, cuts = ends + 1, cuts + truncated[i]
                    np.testing.assert_array_equal(info["terminal_observation"], more["final_obs"][i])
                    assert info["TimeLimit.truncated"] == (truncated[i] and not terminated[i])
                    assert info["episode"]["r"] == more["episode"]["r"][i]
        assert ends > cuts > 0
        assert envs.get_attr("horizon") == [7] * 6
        with pytest.raises(NotImplementedError, match="no methods to call"):
            envs.env_method("reset")
    assert envs.pool.closed


def test_sb3_seeds_runs():
    sb3()
    with sphere.envs.sb3(pool()) as envs, pool() as plain:
        envs.seed(11)
        np.testing.assert_array_equal(envs.reset(), plain.reset(seed=[11, 12])[0])
        np.testing.assert_array_equal(envs.reset(), plain.reset()[0])
