"""Our HumanoidBench against recorded traces of the package, and what a batch promises: seeds, state, success."""

import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import suites
from suites import assert_a_picture_changes_nothing, play, played_in_a_pool, restored, rngs

from sphere import envs
from sphere.cli.main import main
from sphere.cli.verify import GOLDEN
from sphere.envs import assets, humanoidbench, humanoidbench_rewards, humanoidbench_verify
from sphere.envs.humanoidbench import TASKS, HumanoidBench
from sphere.envs.humanoidbench_verify import verify

ARCHIVE = Path(__file__).parents[2] / "shared" / "data" / "humanoid_bench_assets.tar.xz"
TRACES = GOLDEN / "h1_traces.npz"
pytestmark = pytest.mark.usefixtures("models_compiled_once")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The suite's files, from the archive beside the checkout or as they are installed."""
    pytest.importorskip("mujoco")
    with pytest.MonkeyPatch.context() as patch:
        if ARCHIVE.exists():
            patch.setenv("SPHERE_ASSETS", str(tmp_path_factory.mktemp("assets")))
            assets.install("humanoidbench", ARCHIVE)
        else:
            try:
                assets.find("humanoidbench")
            except (FileNotFoundError, ValueError) as error:
                pytest.skip(f"no archive at {ARCHIVE}, and {error}")
        yield


begun = partial(suites.begun, HumanoidBench)


def test_listing_the_tasks_needs_neither_simulator_nor_files():
    code = "import sys, sphere.envs; print(*sphere.envs.tasks('humanoidbench')); print('mujoco' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["stand", "walk", "run", "pole", "slide", "stair", "False"]


@pytest.fixture(scope="module")
def rows(models):
    """The recorded traces, replayed."""
    return verify(TRACES)


def test_every_number_is_that_of_the_recorded_traces(rows):
    with np.load(TRACES) as file:
        steps = {task: sum(file[f"{task}/{i}/reward"].size for i in range(3)) for task in TASKS}
    assert [(row.task, row.episodes, row.steps) for row in rows] == [(task, 3, steps[task]) for task in TASKS]
    for row in rows:
        assert row.passed
        assert row.observation <= 1e-9
        assert row.reward <= 1e-9
        assert (row.terminations, row.bar) == (0, 0)


def test_verify_humanoidbench_has_the_recorded_traces_with_it(rows, monkeypatch, capsys):
    monkeypatch.setattr(humanoidbench_verify, "verify", {TRACES: rows}.__getitem__)
    assert main(["verify", "humanoidbench"]) == 0
    said = capsys.readouterr().out
    assert [line.split()[:2] for line in said.splitlines()[1 : 1 + len(TASKS)]] == [[task, "3"] for task in TASKS]
    assert "all at most 1e-9, ends equal" in said
    assert "NOT all" not in said


@pytest.fixture
def trace(models):
    """A file's worth of arrays as the program has them: two episodes of other lengths, under other names."""
    batch, arrays = HumanoidBench("stair", 1), {"stair/success_bar": np.array(700)}
    for episode, steps in (("a", 3), ("17", 6)):
        first = batch.reset(np.arange(1), rngs(steps))
        actions = np.random.default_rng(steps).uniform(-1, 1, (steps, 19)).astype(np.float32)
        obs, reward, terminated, _ = zip(*(batch.step(action[None]) for action in actions), strict=True)
        values = (actions, np.concatenate([first, *obs]), np.concatenate(reward), np.concatenate(terminated))
        arrays |= {
            f"stair/{episode}/{name}": value
            for name, value in zip(("actions", "obs", "reward", "terminated"), values, strict=True)
        }
    return arrays


def test_traces_may_have_any_episodes_and_every_difference_is_noticed(trace, tmp_path):
    def row(**changed):
        np.savez(tmp_path / "traces.npz", **(trace | {name.replace("__", "/"): v for name, v in changed.items()}))
        (found,) = verify(str(tmp_path / "traces.npz"))
        return found

    assert row() == ("stair", 2, 9, 0.0, 0.0, 0, 0.0)
    assert row().passed
    for name, entry, by in [("obs", (-1, 50), 2e-9), ("obs", (3, 0), math.nan), ("reward", 5, -2e-9)]:
        array = trace[f"stair/17/{name}"].copy()
        array[entry] += by
        found = row(**{f"stair__17__{name}": array})
        assert not found.passed
        assert not (found.observation if name == "obs" else found.reward) <= 1e-9
    assert row(stair__a__terminated=~trace["stair/a/terminated"])[5] == 3
    assert not row(stair__success_bar=np.array(800)).passed
    other_action = trace["stair/a/actions"].copy()
    other_action[0, 0] += 0.01
    assert not row(stair__a__actions=other_action).passed


def test_a_file_of_another_form_is_named(trace, tmp_path):
    path = tmp_path / "traces.npz"

    def refused(arrays, words):
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=words):
            verify(path)

    refused({name: array for name, array in trace.items() if name != "stair/a/reward"}, "lacks stair/a/reward")
    refused({name: array for name, array in trace.items() if "bar" not in name}, "success_bar")
    refused({"stair/success_bar": np.array(700)}, "lacks stair/0/actions")
    refused({"jump/0/obs": np.zeros(3)}, "holds traces of .'jump'.; want some of stand")
    refused({}, "holds traces of nothing")
    refused(trace | {"stair/a/obs": trace["stair/a/obs"][1:]}, "stair/a has .*shapes")
    path.write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match=r"not a readable .npz"):
        verify(path)


@pytest.mark.parametrize("task", ["stand", "pole", "slide"])
def test_a_restored_batch_continues_bit_for_bit(models, task):
    batch, _ = begun(task)
    play(batch, 30)  # into the fall, with contacts
    state = batch.get_state()
    want = play(batch, 12, seed=1)
    np.testing.assert_array_equal(play(restored(HumanoidBench(task, 2), state), 12, seed=1), want)
    # Rows may change places, and the next episode does not depend on the one before.
    swapped = HumanoidBench(task, 2)
    swapped.set_state({name: array[::-1] for name, array in state.items()})
    np.testing.assert_array_equal(swapped.get_state()["return"], state["return"][::-1])
    first = swapped.reset(np.arange(2), rngs(3, 3))
    np.testing.assert_array_equal(first, batch.reset(np.arange(2), rngs(3, 3)))
    np.testing.assert_array_equal(play(swapped, 5), play(batch, 5))
    np.testing.assert_array_equal(swapped.get_state()["return"], batch.get_state()["return"])


def test_a_state_restored_in_another_process_gives_the_same_numbers(models):
    actions = np.random.default_rng(0).uniform(-1, 1, (45, 2, 19))
    with envs.make("humanoidbench/stair", num_envs=2, seed=3, workers=0) as pool:
        pool.reset()
        for action in actions[:25]:
            pool.step(action)
        state = pool.get_state()
        want = [pool.step(action) for action in actions[25:]]
    with envs.make("humanoidbench/stair", num_envs=2, seed=9, workers=1) as pool:
        pool.set_state(state)
        for action, result in zip(actions[25:], want, strict=True):
            got = pool.step(action)
            for a, b in zip(got[:4], result[:4], strict=True):
                np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(got[4]["final_obs"], result[4]["final_obs"])


def test_numbers_depend_neither_on_workers_nor_on_neighbours(models):
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 3, 19)).astype(np.float32)
    seen = [played_in_a_pool("humanoidbench/walk", actions, workers, 12) for workers in (0, 2)]
    for a, b in zip(*seen, strict=True):
        np.testing.assert_array_equal(a, b)
    alone, first = begun("pole", 1)
    together, firsts = begun("pole", 5)
    np.testing.assert_array_equal(firsts[:1], first)
    for action in actions[:15]:
        results = together.step(np.concatenate([action, action[:2]])), alone.step(action[:1])
        for many, one in zip(*results, strict=True):
            np.testing.assert_array_equal(many[:1], one)


def test_a_reset_draws_every_joint_around_the_keyframe(models):
    batch, first = begun("run", 3)
    key = batch.model.key_qpos[0]
    want = [np.r_[key + rng.uniform(-0.01, 0.01, 26), np.zeros(25)] for rng in rngs(0, 0, 0)]
    np.testing.assert_array_equal(first, want)
    play(batch, 3)
    later = batch.reset(np.array([1]), rngs(1, 1)[1:])
    assert (later != first[1]).any()
    np.testing.assert_array_equal(batch.reset(np.arange(3), rngs(0, 0, 0)), first)
    assert (batch.observation_size, batch.horizon, len(batch.action_low)) == (51, 1000, 19)


def test_an_action_of_one_is_the_end_of_a_joints_range(models):
    batch, _ = begun("stand", 3)
    batch.step(np.array([[-1.0], [0.0], [1.0]], np.float32) * np.ones(19, np.float32))
    low, high = batch.model.actuator_ctrlrange.T
    np.testing.assert_allclose([data.ctrl for data in batch.data], [low, (low + high) / 2, high], atol=1e-6)


def test_touching_a_pole_costs_nine_tenths(models):
    batch, first = begun("pole", 2)
    state = first[1].copy()
    state[:2] = 1.0, 0.75  # where a pole stands
    batch.start(1, state)
    before = batch.measured.touched.copy()
    _, reward, _, _ = batch.step(np.zeros((2, 19), np.float32))
    assert (before.tolist(), batch.measured.touched.tolist()) == ([False, False], [False, True])
    untouched = humanoidbench_rewards.pole(batch.measured._replace(touched=np.zeros(2, bool)))
    np.testing.assert_allclose(reward / untouched, [1, 0.1])


@pytest.mark.parametrize(("task", "least"), [("walk", 0.2), ("pole", 0.5), ("stair", None)])
def test_an_episode_terminates_where_the_robot_is_too_low_or_leans_too_far(models, task, least):
    batch, _ = begun(task, 4)
    for _ in range(60):
        observation, _, terminated, _ = batch.step(np.ones((4, 19), np.float32))
        value = batch.measured.upright if least is None else observation[:, 2]
        np.testing.assert_array_equal(terminated, value < (0.1 if least is None else least))
        if terminated.all():
            break
    assert terminated.any()


def test_success_is_a_return_that_has_reached_the_bar(models, monkeypatch):
    monkeypatch.setitem(TASKS, "stand", TASKS["stand"]._replace(success_bar=3.0))
    with envs.make("humanoidbench/stand", num_envs=2, workers=0, horizon=8) as pool:
        pool.reset()
        total, successes = np.zeros(2), []
        for t in range(16):
            _, reward, _, truncated, infos = pool.step(np.zeros((2, 19)) if t < 8 else np.ones((2, 19)))
            total += reward
            np.testing.assert_array_equal(infos["success"], total >= 3.0)
            if truncated.all():
                episode = infos["episode"]
                np.testing.assert_array_equal(episode["success_at_end"], episode["r"] >= 3.0)
                np.testing.assert_array_equal(episode["success_at_end"], episode["success_once"])
                successes.append(bool(episode["success_at_end"].all()))
                total[:] = 0
        assert len(successes) == 2
        assert successes[0]
    monkeypatch.undo()
    assert [TASKS[task].success_bar for task in HumanoidBench.tasks] == [800, 700, 700, 700, 700, 700]


def test_a_picture_changes_nothing(models):
    assert_a_picture_changes_nothing(begun("stair")[0], begun("stair")[0], 8)


def test_bad_settings_and_missing_files_are_named(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="did you mean stair"):
        HumanoidBench("stairs", 1)
    with pytest.raises(ValueError, match="horizon=0"):
        HumanoidBench("walk", 1, horizon=0)
    pytest.importorskip("mujoco")
    monkeypatch.setenv("SPHERE_ASSETS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="get them with: sphere assets humanoidbench"):
        HumanoidBench("walk", 1)
    humanoidbench.simulator.cache_clear()
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=r"pip install 'sphere-rl\[humanoidbench\]'"):
        HumanoidBench("walk", 1)
