"""Simulators on the accelerator as a source: its one program against plain loops, its state, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import TINY, changed, cut_after, final_arrays, numbers, write
from h1_physics import OnCpu
from reach_worlds import ReachWorlds
from test_humanoidbench import models  # noqa: F401 - a fixture

from sphere import registry
from sphere.algos import rows
from sphere.algos.source import Source, Wanted
from sphere.algos.state import ACT, RESET
from sphere.envs import humanoidbench_worlds, worlds
from sphere.envs.collector import COLUMNS
from sphere.envs.environments import Environments
from sphere.envs.humanoidbench import HumanoidBench
from sphere.envs.running_statistics import Statistics
from sphere.envs.worlds import Worlds
from sphere.envs.worlds_source import Moments, WorldsSource, merged, moments_of
from sphere.saved import SavedFleet
from sphere.training import loop

GPU = Environments(normalise_observations=True, workers=0, simulator="gpu")


@pytest.fixture(autouse=True)
def reach(monkeypatch):
    monkeypatch.setitem(registry.WORLDS, "probe", ReachWorlds)


def opened(seeds, settings=GPU, task="probe/reach-north", rollout=(3, 25)):
    (source,) = settings.open(Wanted((task,), rollout, 2, 4), [list(seeds)])
    source.enter(task, None)
    return source


def policies(seeds, spec):
    """Actors of fresh learners, with a run axis."""
    learner = TINY.learner
    rho = {name: np.full(len(seeds), value, np.float32) for name, value in (learner.numbers | {"rho": 0.0}).items()}
    return rows.policy(learner, rows.init(learner, spec, np.array(seeds, np.uint32), rho))


def assert_same(one, two):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)


def test_it_is_a_source_and_its_worlds_are_worlds():
    source = opened([0])
    assert isinstance(source, WorldsSource)
    assert isinstance(source, Source)
    assert isinstance(source.worlds, Worlds)


def plain_rollout(source, policy, iteration, statistics, running, raw):
    """The same by a Python loop: one jitted step of physics at a time, statistics by numpy in float64."""
    runs, envs, steps, size = source.runs, source.envs, source.steps, source.spec.action
    step = jax.jit(lambda running, action: worlds.step(source.worlds, running, action))
    spread, taken = policy.spread(), []
    keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(s), ACT), iteration) for s in source.run_seeds]
    extra = np.stack([np.asarray(jax.random.normal(key, (steps, envs, size))) for key in keys])
    obs = raw if statistics is None else statistics.normalise(raw)
    for t in range(steps):
        action = np.asarray(rows.act(policy, obs)) + spread[:, None] * extra[:, t]
        running, moved = step(running, jnp.asarray(action.reshape(runs * envs, size)))
        now, final, reward, terminated, truncated = (
            np.asarray(part).reshape(runs, envs, *np.shape(part)[1:]) for part in moved[:5]
        )
        if statistics is not None:
            statistics.update(now)
            now, final = statistics.normalise(now), statistics.normalise(final)
        taken.append((obs, action, reward, final, terminated, terminated | truncated))
        obs = now
    names = ("obs", "action", "reward", "next_obs", "terminated", "done")
    columns = (np.stack(column, axis=1) for column in zip(*taken, strict=True))
    return dict(zip(names, columns, strict=True)) | {"noise": extra}


@pytest.mark.parametrize("normalise", [True, False])
def test_a_rollout_is_that_of_a_plain_loop(normalise):
    source = opened([3, 5], dataclasses.replace(GPU, normalise_observations=normalise))
    policy = policies([3, 5], source.spec)
    raw = np.asarray(source.worlds.observe(source.running.state)).reshape(2, 3, -1)
    statistics = None
    if normalise:
        statistics = Statistics.fresh(2, 6)
        statistics.update(raw)
    want = plain_rollout(source, policy, 4, statistics, source.running, raw)
    data, _ = source.collect(policy, 4)
    assert {name: (column.shape, str(column.dtype)) for name, column in data.items()} == {
        name: (column.shape, "bool" if column.dtype == bool else "float32") for name, column in want.items()
    }
    for name, column in want.items():
        np.testing.assert_allclose(data[name], column, atol=2e-5, rtol=2e-5)
    assert want["done"].sum() >= 12
    if statistics is not None:
        np.testing.assert_allclose(source.statistics.mean, statistics.mean, atol=1e-6)
        np.testing.assert_allclose(source.statistics.var, statistics.var, atol=1e-6)
        np.testing.assert_array_equal(source.statistics.count, statistics.count)


def test_h1_is_collected_as_the_exact_environments_would_give_it(models, monkeypatch, models_compiled_once):  # noqa: F811
    """Physics of the CPU inside the program; the other side is `HumanoidBench`, stepped by hand with the actions that
    were taken."""

    class OnCpuWorlds(humanoidbench_worlds.H1Worlds):
        check = staticmethod(lambda: None)

        def __init__(self, task, num_worlds, horizon=1000):
            super().__init__(task, num_worlds, horizon, physics=OnCpu)

        def step(self, state, action):
            """Of -1, 0 and 1 the controls are the same however a compiler rounds."""
            return super().step(state, jnp.round(action))

    monkeypatch.setitem(registry.WORLDS, "humanoidbench", OnCpuWorlds)
    settings = dataclasses.replace(GPU, horizon=20)
    source = opened([1], settings, "humanoidbench/walk", (2, 50))
    policy = policies([1], source.spec)
    raw, batch, statistics = np.asarray(source.running.state.obs), HumanoidBench("walk", 2), Statistics.fresh(1, 51)
    statistics.update(raw[None])
    for i in range(2):
        batch.start(i, raw[i].astype(np.float64))
    stream, episode, elapsed = source.running.stream, np.zeros(2, np.int32), np.zeros(2, int)
    data, found = source.collect(policy, 0)
    action = np.asarray(data["action"])[0]
    for t in range(50):
        np.testing.assert_allclose(data["obs"][0, t], statistics.normalise(raw[None])[0], atol=2e-4, rtol=1e-4)
        successor, reward, terminated, _ = batch.step(np.round(np.clip(action[t], -1, 1)))
        elapsed += 1
        done = terminated | (elapsed >= 20)
        np.testing.assert_array_equal(data["terminated"][0, t], terminated)
        np.testing.assert_array_equal(data["done"][0, t], done)
        np.testing.assert_allclose(data["reward"][0, t], reward, atol=1e-5, rtol=0)
        raw, episode, elapsed = successor.astype(np.float32), episode + done, np.where(done, 0, elapsed)
        fresh = np.asarray(worlds.start(source.worlds, stream, episode)[1])
        for i in np.flatnonzero(done).tolist():
            raw[i] = fresh[i]
            batch.start(i, raw[i].astype(np.float64))
        statistics.update(raw[None])
        np.testing.assert_allclose(
            data["next_obs"][0, t], statistics.normalise(successor[None])[0], atol=2e-4, rtol=1e-4
        )
    assert len(found.run) == int(np.sum(data["done"])) >= 4
    source.close()


def test_moments_merge_as_those_of_all_observations_together():
    rng = np.random.default_rng(0)
    parts = [rng.normal(3, rng.uniform(0.01, 2), (2, n, 5)).astype(np.float32) for n in (4, 9, 30)]
    one, two, three = (moments_of(jnp.asarray(part)) for part in parts)
    whole = np.concatenate(parts, axis=1).astype(np.float64)
    nothing = Moments(jnp.zeros((2, 5)), jnp.zeros((2, 5)), jnp.zeros(2))
    for found in (merged(merged(one, two), three), merged(merged(nothing, one), merged(two, three))):
        np.testing.assert_allclose(found.mean, whole.mean(axis=1), rtol=1e-5)
        np.testing.assert_allclose(found.var, whole.var(axis=1), rtol=1e-5)
        np.testing.assert_array_equal(found.count, [43, 43])


def test_outcomes_are_the_episodes_that_ended_in_the_data():
    source = opened([0, 1])
    policy, before = policies([0, 1], source.spec), {}
    for iteration in range(3):
        data, found = source.collect(policy, iteration)
        reward, done = np.asarray(data["reward"]), np.asarray(data["done"])
        want = []
        for t in range(25):
            for run in range(2):
                for env in range(3):
                    total, length = before.get((run, env), (0.0, 0))
                    before[run, env] = total, length = total + reward[run, t, env], length + 1
                    if done[run, t, env]:
                        want.append((run, env, total, length))
                        before[run, env] = (0.0, 0)
        assert [*zip(found.run, found.episode, strict=True)] == [(run, env) for run, env, *_ in want]
        np.testing.assert_allclose(found.columns["return"], [one[2] for one in want], rtol=1e-5)
        np.testing.assert_array_equal(found.columns["length"], [one[3] for one in want])
        assert not found.columns["diverged"].any()
        assert set(found.columns) == {*COLUMNS, "diverged"}


def test_a_run_does_not_depend_on_its_fleet():
    together, alone = opened([7, 8, 9]), opened([8])
    for iteration in range(2):
        many = together.collect(policies([7, 8, 9], together.spec), iteration)[0]
        one = alone.collect(policies([8], alone.spec), iteration)[0]
        assert_same({name: column[1:2] for name, column in many.items()}, one)
    np.testing.assert_array_equal(together.statistics.mean[1:2], alone.statistics.mean)


def test_no_draw_is_repeated_by_another_task_or_visit():
    source = opened([0])
    first = np.asarray(source.running.state.x)
    source.enter("probe/reach-east", TINY.boundary)
    other = np.asarray(source.running.state.x)
    source.enter("probe/reach-north", TINY.boundary)
    again = np.asarray(source.running.state.x)
    assert len({array.tobytes() for array in (first, other, again)}) == 3
    stream = worlds.streams(np.array([0], np.uint32), RESET, "probe/reach-north", 3)
    np.testing.assert_array_equal(source.running.stream, stream)


def test_a_source_goes_on_from_its_state_with_the_same_bits():
    one = opened([2, 4])
    policy = policies([2, 4], one.spec)
    one.collect(policy, 0)
    state = jax.tree.map(np.copy, one.get_state())
    want = one.collect(policy, 1)
    two = opened([2, 4])
    two.set_state(state)
    assert_same(two.collect(policy, 1), want)
    assert_same(two.get_state(), one.get_state())
    for leaf in jax.tree.leaves(state):
        assert len(leaf) in (2, 6)  # rows by run or by world, as a fleet divides them


def test_a_fleet_that_was_cut_ends_with_the_bits_of_one_that_was_not(tmp_path):
    config = changed(TINY, source=dataclasses.replace(GPU, workers=1))
    loop.train(config, tmp_path / "straight", quiet=True)
    write(config, tmp_path / "cut")
    cut_after(5, config, tmp_path / "cut")
    cut_after(9, config, tmp_path / "cut")
    loop.train(config, tmp_path / "cut", resume=True, quiet=True)
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "straight")
    assert_same(final_arrays(tmp_path / "cut"), final_arrays(tmp_path / "straight"))


def test_a_saved_fleet_opens_its_source_as_it_was(tmp_path):
    config = changed(TINY, source=GPU, tasks=("probe/reach-east",), steps_per_task=128)
    loop.train(config, tmp_path / "out", quiet=True)
    saved = SavedFleet.open(tmp_path / "out")
    source = saved.open_source()
    assert_same(source.get_state(), saved.source)
    assert saved.evaluate("probe/reach-east", 2).columns["return"].shape == (8,)
    source.close()


def test_evaluation_is_by_the_exact_environments_and_on_request_by_the_others_too():
    cpu = opened([0, 1], dataclasses.replace(GPU, simulator="cpu"))
    gpu = opened([0, 1], dataclasses.replace(GPU, gpu_evaluation=True))
    policy = policies([0, 1], gpu.spec)
    gpu.statistics = cpu.statistics
    want, found = (source.evaluate(policy, "probe/reach-north") for source in (cpu, gpu))
    for name in COLUMNS:
        np.testing.assert_array_equal(found.columns[name], want.columns[name])
    np.testing.assert_array_equal(found.columns["gpu_length"], [10] * 4)
    assert set(found.columns) == set(gpu.settings.columns("probe"))
    assert (found.columns["gpu_return"] < 0).all()
    assert_same(gpu.evaluate(policy, "probe/reach-north").columns, found.columns)
    cpu.close()
    gpu.close()


def test_a_world_whose_numbers_are_not_finite_ends_its_episode_and_spoils_nothing(monkeypatch):
    monkeypatch.setattr(ReachWorlds, "breaks_at", 1.0)
    source = opened([0, 1])
    data, found = source.collect(policies([0, 1], source.spec), 0)
    for column in data.values():
        assert np.isfinite(np.asarray(column, np.float32)).all()
    assert 0 < found.columns["diverged"].sum() < len(found.run)
    assert (found.columns["length"][~found.columns["diverged"]] == 10).all()
    assert int(np.sum(data["terminated"])) == found.columns["diverged"].sum()
    assert np.isfinite(source.statistics.mean).all()
