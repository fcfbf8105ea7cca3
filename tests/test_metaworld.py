"""Our MetaWorld against the package's own, and what a batch promises: seeds, state, settings."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import suites
from suites import assert_a_picture_changes_nothing, play, played_in_a_pool, restored, rngs

from sphere import envs
from sphere.envs import metaworld, metaworld_origin, metaworld_verify
from sphere.envs.metaworld import MetaWorld
from sphere.envs.metaworld_verify import ENVS, EPISODE, Differences, verify

pytestmark = pytest.mark.usefixtures("models_compiled_once")
ORDER = "hammer push-wall faucet-close push-back stick-pull handle-press-side push shelf-place window-close"


begun = partial(suites.begun, MetaWorld)


def test_the_tasks_are_those_of_continual_world_and_listing_them_needs_no_simulator():
    code = "import sys, sphere.envs; print(*sphere.envs.tasks('metaworld')); print('mujoco' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [*ORDER.split(), "peg-unplug-side", "False"]


@pytest.mark.parametrize("task", MetaWorld.tasks)
def test_every_number_is_the_packages_own(task, monkeypatch):
    """Random actions, scripted policies, thrown objects, both precisions; and scenes made up for the rewards."""
    monkeypatch.setattr(metaworld_verify, "EPISODE", 80)
    (row,) = verify(steps=2 * 80 * ENVS, tasks=[task], scenes=300)
    assert (row.task, row.steps, row.episodes, row.flags) == (task, 2 * 80 * ENVS, 2 * ENVS, 0)
    assert row.observation <= 1e-9
    assert row.reward <= 1e-9
    assert row.scenes > 250
    if task not in {"hammer", "stick-pull", "peg-unplug-side", "shelf-place", "push-wall"}:  # those take longer
        assert row.successes > 0


def test_the_comparison_would_notice(monkeypatch):
    monkeypatch.setattr(metaworld_verify, "EPISODE", 5)
    monkeypatch.setattr(metaworld, "ACTION_SCALE", 0.01 + 1e-7)
    (row,) = verify(steps=ENVS * 5, tasks=["push"], scenes=1)
    assert row.observation > 1e-9
    assert isinstance(row, Differences)
    assert EPISODE >= 200


@pytest.mark.parametrize("task", MetaWorld.tasks)
def test_what_the_forward_pass_has_left_is_used_without_changing_a_bit(task):
    """Beside a batch that does every physics step from its beginning, as the package does, through contacts and
    resets."""
    quick, _ = begun(task, 3)
    whole, _ = begun(task, 3)
    rng, towards = np.random.default_rng(5), np.zeros((3, 4))
    for t in range(240):
        if t == 150:
            quick.reset(np.array([1]), rngs(8)), whole.reset(np.array([1]), rngs(8))
        if t % 20 == 0:  # down to the object and about, with the gripper opening and closing
            towards = np.c_[quick.last[:, 4:7] - quick.last[:, :3], rng.choice([-1.0, 1.0], 3)] * [8, 8, 8, 1]
            towards += rng.normal(scale=0.5, size=(3, 4))
        action = np.clip(towards + rng.normal(scale=0.4, size=(3, 4)), -1, 1).astype(np.float32)
        whole.forwarded = [False] * 3
        for ours, theirs in zip(quick.step(action), whole.step(action), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(quick.get_state()["physics"], whole.get_state()["physics"])
    assert all(quick.forwarded)


@pytest.mark.parametrize("task", ["hammer", "faucet-close", "stick-pull", "peg-unplug-side"])
def test_a_restored_batch_continues_bit_for_bit(task):
    batch, _ = begun(task)
    play(batch, 15)
    state = batch.get_state()
    want = play(batch, 15, seed=1)
    np.testing.assert_array_equal(play(restored(MetaWorld(task, 2), state), 15, seed=1), want)
    # Rows may change places, and the next episode does not depend on the one before.
    swapped = MetaWorld(task, 2)
    swapped.set_state({name: array[::-1] for name, array in state.items()})
    first = swapped.reset(np.arange(2), rngs(3, 3))
    np.testing.assert_array_equal(first, batch.reset(np.arange(2), rngs(3, 3)))
    np.testing.assert_array_equal(play(swapped, 10), play(batch, 10))


def test_a_state_restored_in_another_process_gives_the_same_numbers():
    with envs.make("metaworld/shelf-place", num_envs=2, seed=3, workers=0) as pool:
        pool.reset()
        for _ in range(5):
            pool.step(np.full((2, 4), 0.5))
        state = pool.get_state()
        want = [pool.step(np.full((2, 4), -0.5))[:2] for _ in range(10)]
    with envs.make("metaworld/shelf-place", num_envs=2, seed=9, workers=1) as pool:
        pool.set_state(state)
        for obs, reward in want:
            got = pool.step(np.full((2, 4), -0.5))
            np.testing.assert_array_equal(got[0], obs)
            np.testing.assert_array_equal(got[1], reward)


def test_numbers_depend_neither_on_workers_nor_on_neighbours():
    actions = np.random.default_rng(0).uniform(-1, 1, (45, 3, 4)).astype(np.float32)
    seen = [played_in_a_pool("metaworld/hammer", actions, workers, 20) for workers in (0, 1, 2)]
    for other in seen[1:]:
        for a, b in zip(seen[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    alone = MetaWorld("stick-pull", 1)
    alone.reset(np.arange(1), rngs(0))
    together, _ = begun("stick-pull", 3)
    actions = np.repeat(actions[:, :1], 3, axis=1)
    for action in actions:
        obs, reward, _, _ = together.step(action)
        single_obs, single_reward, _, _ = alone.step(action[:1])
        np.testing.assert_array_equal(obs[:1], single_obs)
        np.testing.assert_array_equal(reward[:1], single_reward)


@pytest.mark.parametrize("task", ["push", "window-close"])
def test_goals_are_new_every_episode_and_repeat_with_the_seed(task):
    batch, first = begun(task, 3)
    draws = batch.goal.copy()
    assert len(np.unique(draws, axis=0)) == 3
    np.testing.assert_array_equal(first[:, 36:39], batch.start.target)
    batch.reset(np.array([1]), rngs(1, 1)[1:])
    assert (batch.goal[1] != draws[1]).any()
    np.testing.assert_array_equal(batch.goal[[0, 2]], draws[[0, 2]])
    play(batch, 3)
    np.testing.assert_array_equal(batch.reset(np.arange(3), rngs(0, 0, 0)), first)
    np.testing.assert_array_equal(batch.goal, draws)
    other = batch.reset(np.arange(3), rngs(0, 0, 0, seed=1))
    assert (other != first).any(axis=1).all()


def test_frozen_goals_stay_with_their_environment():
    batch, first = begun("push", 2, goals="frozen")
    assert (batch.goal[0] != batch.goal[1]).any()
    play(batch, 3)
    np.testing.assert_array_equal(batch.reset(np.arange(2), rngs(4, 9)), first)
    with envs.make("metaworld/push", num_envs=2, workers=0, goals="frozen", horizon=3) as pool:
        start = pool.reset()[0]
        later = [pool.step(np.zeros((2, 4)))[0] for _ in range(6)]
        np.testing.assert_array_equal(later[2], start)
        np.testing.assert_array_equal(later[5], start)
        pool.switch("push")
        np.testing.assert_array_equal(pool.reset()[0], start)
    with pytest.raises(ValueError, match="last word is the episode"):
        batch.reset(np.arange(1), [np.random.default_rng(0)])


def test_an_episode_ends_at_its_horizon_with_its_own_last_observation():
    with envs.make("metaworld/handle-press-side", num_envs=2, workers=0, horizon=200) as pool:
        pool.reset()
        assert pool.horizon == 200
        for t in range(200):
            obs, _, terminated, truncated, infos = pool.step(np.full((2, 4), 0.3))
            assert truncated.all() == (t == 199)
            assert not terminated.any()
        final = infos["final_obs"]
        assert infos["episode"]["l"].tolist() == [200, 200]
        assert (final != obs).any(axis=1).all()
        np.testing.assert_array_equal(obs[:, :18], obs[:, 18:36])  # the new episode has no frame before
        assert (final[:, 36:39] != obs[:, 36:39]).any(axis=1).all()
    assert MetaWorld("push", 1).horizon == 500


def test_one_hot_appends_the_task():
    plain, first = begun("faucet-close", 1)
    marked, with_id = begun("faucet-close", 1, one_hot=True)
    assert (plain.observation_size, marked.observation_size) == (39, 49)
    np.testing.assert_array_equal(with_id, np.c_[first, np.eye(10)[[2]]])
    action = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(marked.step(action)[0], np.c_[plain.step(action)[0], np.eye(10)[[2]]])


def test_a_picture_changes_nothing():
    assert_a_picture_changes_nothing(begun("push")[0], begun("push")[0], 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"goals": "fixed"}, "goals='fixed'; want one of 'random', 'frozen'"), ({"horizon": 0}, "horizon=0")],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        MetaWorld("push", 1, **settings)
    with pytest.raises(ValueError, match="did you mean push"):
        MetaWorld("pusch", 1)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    metaworld_origin.simulator.cache_clear()
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    with pytest.raises(ImportError, match=r"pip install 'sphere-rl\[metaworld\]'"):
        MetaWorld("push", 1)


def test_a_number_that_is_none_does_not_pass_for_a_small_difference(monkeypatch):
    judge = MetaWorld.judge
    monkeypatch.setattr(
        MetaWorld, "judge", lambda self, *scene: (judge(self, *scene)[0] * np.nan, judge(self, *scene)[1])
    )
    (row,) = verify(1, ["hammer"], scenes=2)
    assert np.isnan(row.reward)
