"""The pool against hand-stepped episodes, itself with other workers, and everything that can go wrong."""

import os
import zlib

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import ClipReward, DictInfoToList
from processes import children
from walk import HORIZON, Walk, draw, play

from sphere import envs
from sphere.envs.pool import Pool

pytestmark = pytest.mark.usefixtures("no_orphans")


def by_hand(seed, index, actions, task="walk"):
    """One environment, one step after another, from the specification alone."""
    episode, steps = 0, []

    def start():
        return draw(np.random.default_rng([seed, zlib.crc32(task.encode()), index, episode]))

    x, drift, life = start()
    first, t, total, once = [x, 0, drift], 0, 0.0, False
    for action in actions:
        x, t = x + min(max(float(action), -2.0), 1.0) + drift, t + 1
        total, once = total + x, once or x > 0
        step = {"final_obs": [x, t, drift], "reward": x, "success": x > 0}
        step |= {"terminated": t >= life, "truncated": t >= HORIZON and t < life, "episode": None}
        if t >= life or t >= HORIZON:
            step["episode"] = {"r": total, "l": t, "success_once": once, "success_at_end": x > 0}
            episode += 1
            x, drift, life = start()
            t, total, once = 0, 0.0, False
        steps.append(step | {"obs": [x, t, drift]})
    return first, steps


def assert_same(a, b):
    a, b = list(a), list(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def pools():
    """Two runs of three environments, in this process and over 1, 2 and 4 workers."""
    made = {workers: Pool(Walk, "walk", 3, seeds=(5, 6), workers=workers) for workers in (0, 1, 2, 4)}
    yield made
    for pool in made.values():
        pool.close()


@pytest.fixture
def pool():
    with Pool(Walk, "walk", 3, seeds=(5, 6), workers=0) as pool:
        yield pool


def test_it_is_a_gymnasium_vector_env(pool):
    assert isinstance(pool, gymnasium.vector.VectorEnv)
    assert pool.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert (pool.num_envs, pool.num_runs, pool.horizon) == (6, 2, HORIZON)
    assert pool.single_observation_space.shape == (3,)
    assert pool.single_action_space == gymnasium.spaces.Box(np.float32(-2), np.float32(1), (1,), np.float32)
    assert pool.observation_space.shape == (6, 3)
    assert pool.action_space.shape == (6, 1)
    obs, infos = pool.reset(seed=[1, 2], options={})
    assert obs in pool.observation_space
    assert infos == {}
    pool.action_space.seed(0)
    obs, reward, terminated, truncated, infos = pool.step(pool.action_space.sample())
    assert obs in pool.observation_space
    assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
    assert reward.shape == terminated.shape == truncated.shape == infos["success"].shape == (6,)


def test_gymnasium_wrappers_accept_it(pool):
    wrapped = DictInfoToList(ClipReward(pool, -1, 1))
    wrapped.reset()
    for _ in range(HORIZON):
        *_, infos = wrapped.step(np.zeros((6, 1)))
    assert {len(info) for info in infos} <= {1, 2, 3}
    assert any("episode" in info and info["episode"]["l"] > 0 for info in infos)


def test_every_step_equals_stepping_by_hand(pool):
    actions = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    hands = [by_hand(seed, index, actions[:, 3 * run + index]) for run, seed in enumerate((5, 6)) for index in range(3)]
    obs, _ = pool.reset()
    np.testing.assert_allclose(obs, [first for first, _ in hands], rtol=1e-6)
    ended = {"terminated": 0, "truncated": 0}
    for t, action in enumerate(actions):
        want = [steps[t] for _, steps in hands]
        obs, reward, terminated, truncated, infos = pool.step(action[:, None])
        done = np.array([step["episode"] is not None for step in want])
        np.testing.assert_allclose(obs, [step["obs"] for step in want], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(infos["final_obs"], [step["final_obs"] for step in want], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(reward, [step["reward"] for step in want], rtol=1e-9)
        np.testing.assert_array_equal(terminated, [step["terminated"] for step in want])
        np.testing.assert_array_equal(truncated, [step["truncated"] for step in want])
        np.testing.assert_array_equal(infos["success"], [step["success"] for step in want])
        np.testing.assert_array_equal(infos["_final_obs"], done)
        assert ("episode" in infos) == ("_episode" in infos) == done.any()
        if done.any():
            np.testing.assert_array_equal(infos["_episode"], done)
            for name, array in infos["episode"].items():
                wanted = [step["episode"][name] if step["episode"] else 0 for step in want]
                np.testing.assert_allclose(array, wanted, rtol=1e-9)
        ended["terminated"] += terminated.sum()
        ended["truncated"] += truncated.sum()
    assert min(ended.values()) > 5  # both ways to end were really seen


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_do_not_change_a_bit(pools, workers):
    here, there = pools[0], pools[workers]
    assert_same([here.reset(seed=[5, 6])[0]], [there.reset(seed=[5, 6])[0]])
    assert_same(play(here), play(there))
    assert_same([here.switch("run")[0]], [there.switch("run")[0]])
    assert_same(play(here), play(there))
    assert_same([here.switch("walk")[0]], [there.switch("walk")[0]])


def test_other_runs_do_not_change_a_bit(pools):
    fleet = pools[2]
    fleet.reset(seed=[3, 9])
    actions = np.random.default_rng(1).normal(size=(20, 6, 1))
    together = [fleet.step(action)[:4] for action in actions]
    with Pool(Walk, "walk", 3, seeds=[9], workers=0) as alone:
        alone.reset()
        for action, fleet_step in zip(actions, together, strict=True):
            assert_same(alone.step(action[3:])[:4], [array[3:] for array in fleet_step])


def test_no_two_episodes_draw_the_same(pool):
    seen = [
        pool.reset()[0],
        pool.reset()[0],
        pool.switch("run")[0],
        pool.switch("walk")[0],
        pool.reset(seed=[1, 2])[0],
    ]
    starts = np.concatenate(seen)[:, 0]
    assert len(np.unique(starts)) == len(starts) == 30


def test_reset_with_seeds_begins_again_and_without_goes_on(pool):
    first = pool.reset()[0]
    assert not np.array_equal(first, pool.reset()[0])
    assert_same([first], [pool.reset(seed=[5, 6])[0]])
    once = list(play(pool))
    pool.reset(seed=[5, 6])
    assert_same(once, play(pool))


def test_switch_is_deterministic_and_keeps_the_processes(pools):
    pool = pools[2]
    pids = {worker.process.pid for worker in pool._workers}
    results = []
    for _ in range(2):
        pool.reset(seed=[5, 6])
        list(play(pool, 10))
        results.append([pool.switch("run")[0], *play(pool)])
        pool.switch("walk")
    assert_same(*results)
    assert pids == {worker.process.pid for worker in pool._workers} <= children(os.getpid())


@pytest.mark.parametrize(("before", "after"), [(0, 4), (1, 2), (4, 0)])
def test_a_captured_state_continues_the_same_over_any_workers(pools, before, after, tmp_path):
    pools[before].reset(seed=[5, 6])
    list(play(pools[before], 11))
    state = pools[before].get_state()
    assert all(len(array) == 6 for array in state.values())
    assert 0 < state["elapsed"].max() < HORIZON  # in the middle of episodes
    np.savez(tmp_path / "state.npz", **state)
    straight = [state["obs"], *play(pools[before], key=7)]
    pools[after].reset(seed=[1, 2])
    list(play(pools[after], 3))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as stored:
        obs = pools[after].set_state(dict(stored))
    assert_same(straight, [obs, *play(pools[after], key=7)])


def test_a_capture_is_a_copy_and_restoring_twice_gives_the_same_twice(pool):
    pool.reset()
    list(play(pool, 4))
    state = pool.get_state()
    results = []
    for _ in range(2):
        pool.set_state(state)
        results.append(list(play(pool)))
    assert_same(*results)


def test_a_run_can_move_to_another_fleet(pool):
    pool.reset()
    list(play(pool, 4))
    state = {name: array[3:] for name, array in pool.get_state().items()}
    with Pool(Walk, "walk", 3, seeds=[0], workers=0) as alone:
        alone.set_state(state)
        for action in np.random.default_rng(0).normal(size=(20, 6, 1)):
            assert_same([array[3:] for array in pool.step(action)[:4]], alone.step(action[3:])[:4])


def test_two_pools_overlap(pools):
    a, b = pools[1], pools[2]
    a.reset(seed=[5, 6])
    b.reset(seed=[5, 6])
    for action in np.random.default_rng(0).normal(size=(9, 6, 1)):
        a.step_async(action)
        b.step_async(action)
        assert_same(b.step_wait()[:4], a.step_wait()[:4])


def test_results_are_never_written_to_again(pool):
    obs, _ = pool.reset()
    step = pool.step(np.ones((6, 1)))
    arrays = [obs, *step[:4], step[4]["final_obs"], step[4]["success"]]
    copies = [array.copy() for array in arrays]
    list(play(pool))
    assert_same(arrays, copies)


def test_actions_are_clipped_to_the_box_and_may_be_jax_arrays(pool):
    import jax.numpy as jnp  # here, because workers import this file

    pool.reset(seed=[5, 6])
    wild = pool.step(jnp.full((6, 1), 100.0))
    pool.reset(seed=[5, 6])
    assert_same(wild[:4], pool.step(np.ones((6, 1)))[:4])


def test_pictures_come_from_the_right_environment(pools):
    obs, _ = pools[4].reset()
    np.testing.assert_allclose([frame[0, 0] for frame in pools[4].render()], obs[:, 0], rtol=1e-6)
    np.testing.assert_allclose(pools[4].render(5, 2)[1], np.full((2, 2), obs[2, 0]), rtol=1e-6)
    with pytest.raises(IndexError, match=r"environments \(6,\) were asked for; this pool has 0 to 5"):
        pools[4].render(6)


def test_make_knows_suites_and_tasks_by_name():
    assert "reach-north" in envs.tasks("probe")
    with envs.make("probe/reach-north", num_envs=2, seed=[3, 4], workers=0) as pool:
        assert (pool.num_envs, pool.num_runs, pool.task) == (4, 2, "reach-north")
    with envs.make("probe/reach-north", num_envs=2, workers=0) as pool:
        assert (pool.num_envs, pool.num_runs) == (2, 1)
    with pytest.raises(ValueError, match="no suite 'prob'; did you mean probe"):
        envs.make("prob/reach-north")
    with pytest.raises(ValueError, match="no task 'reach-nort'; did you mean reach-north"):
        envs.make("probe/reach-nort")
    with pytest.raises(ValueError, match="'reach-north' has no suite; write 'suite/task', for example 'probe/"):
        envs.make("reach-north")


def test_a_suite_names_the_pool_that_its_settings_need(monkeypatch):
    class Own(Pool):
        pass

    class Walker(Walk):
        @staticmethod
        def pool(trouble="", **others):
            return Own if trouble == "late" else Pool

    monkeypatch.setattr(envs, "suite", lambda name: Walker)
    for settings, kind in (({"trouble": "late"}, Own), ({}, Pool)):
        with envs.make("walk/walk", 2, workers=0, **settings) as pool:
            assert type(pool) is kind
            assert pool.reset()[0].shape == (2, 3)
