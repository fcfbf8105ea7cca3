"""Fleets of TD3: trained, killed at any moment, resumed, and divided, with the same numbers to the last digit."""

import dataclasses

import fleets
import jax
import jax.numpy as jnp
import kill
import numpy as np
import pytest
from fleets import OFF_POLICY as TINY
from fleets import changed

from sphere.envs import policy_arrays
from sphere.envs.policy import FleetPolicy
from sphere.nets import DeterministicActor, Explorer, NetConfig, build
from sphere.storage.appended import AppendedRows
from sphere.training import limits, loop
from sphere.training.plan import plan
from sphere.training.settings import Boundary


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A fleet that nobody disturbed."""
    directory = tmp_path_factory.mktemp("td3") / "whole"
    loop.train(TINY, directory, quiet=True)
    return directory


def memory(directory):
    """All rows that the newest checkpoint remembers, by run."""
    ends = fleets.final_arrays(directory)["tree/memory/end"].tolist()
    width, fits = 2 * 6 + 2 + 2, TINY.learner.buffer_size
    names = [run.name for run in TINY.runs]
    return [AppendedRows(directory / name, width).read(end - fits, end) for name, end in zip(names, ends, strict=True)]


def assert_same(one, other):
    fleets.assert_same(one, other)
    for rows, others in zip(memory(one), memory(other), strict=True):
        np.testing.assert_array_equal(rows, others)


def test_records_hold_what_critics_and_updates_are(whole):
    lines = fleets.numbers(whole)["rho0.1-seed0/metrics.jsonl"]
    trained = [line for line in lines if "train/critic_loss" in line]
    assert len(trained) == 20
    # learning starts with 128 transitions in every task: the first of an iteration's 64 see no update
    assert [line["train/critic_loss"] > 0 for line in trained] == 2 * [False, *[True] * 9]
    evaluated = next(line for line in lines if "heldout/ntk_rank" in line)
    for name in (
        "heldout/dormant_ratio",
        "heldout/routing_entropy",
        "heldout/second/ntk_rank",
        "heldout/actor/ntk_rank",
    ):
        assert np.isfinite(evaluated[name]), name


def test_a_memory_holds_one_task_and_not_more_than_fits(whole):
    arrays = fleets.final_arrays(whole)
    assert arrays["tree/memory/end"].tolist() == [1280, 1280]
    assert arrays["tree/memory/origin"].tolist() == [640, 640]  # the last task's
    assert not any("table" in name for name in arrays)


def test_actions_are_uniform_while_it_warms_up(whole):
    """Evenly spread in [-1, 1]: variance 1/3, and nothing at the ends, where clipped noise would gather."""
    rows = AppendedRows(whole / "rho0.1-seed0", 16).read(0, 128)
    action = rows[:, 6:8]
    assert abs(action.var() - 1 / 3) < 0.05
    assert np.abs(action).max() < 1
    later = AppendedRows(whole / "rho0.1-seed0", 16).read(128, 640)[:, 6:8]
    assert np.abs(later).max() <= 1


@pytest.mark.parametrize("iterations", [4, 11, 16])
def test_a_fleet_that_was_cut_and_resumed_ends_with_the_same_numbers(whole, tmp_path, iterations):
    fleets.write(TINY, tmp_path / "cut")
    fleets.cut_after(iterations, TINY, tmp_path / "cut")
    loop.train(TINY, tmp_path / "cut", resume=True, quiet=True)
    assert_same(tmp_path / "cut", whole)


def test_a_fleet_of_two_equals_two_fleets_of_one(whole, tmp_path):
    """All of training and every episode; diagnostics are computed for all runs at once and round by their number."""

    def trained(lines):
        return [{name: value for name, value in line.items() if name.startswith("train/")} for line in lines]

    together = fleets.numbers(whole)
    for seed in (0, 1):
        loop.train(changed(TINY, seeds=(seed,)), tmp_path / str(seed), quiet=True)
        alone = fleets.numbers(tmp_path / str(seed))
        assert len(alone) == 2
        for file, lines in alone.items():
            same = trained if "metrics" in file else list
            assert same(lines) == same(together[file])


def test_what_a_task_switch_keeps_is_a_setting(tmp_path):
    config = changed(TINY, boundary=Boundary(replay=True), seeds=(0,))
    loop.train(config, tmp_path / "kept", quiet=True)
    lines = fleets.numbers(tmp_path / "kept")["rho0.1-seed0/metrics.jsonl"]
    trained = [line["train/critic_loss"] > 0 for line in lines if "train/critic_loss" in line]
    assert trained == [False, *[True] * 19]  # no second warm-up


def test_a_dry_run_states_the_memory_and_touches_nothing(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    text = plan(TINY, whole)
    # 400 rows of 16 numbers, two runs
    assert f"replay {2 * 400 * 16 * 4 // 1024} KiB, on disk as much" in text
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_memory_larger_than_the_machine_is_refused_before_anything_is_written(tmp_path):
    """By arithmetic on numbers of one entry first, then by its real width: two runs of 64 bytes a transition."""
    for size, sentence in (
        (10**12, r"TiB of them for the memory of 1,000,000,000,000 transitions of 2 runs"),
        (limits.host_memory() // 64, r"a memory of [0-9,]+ transitions takes .* GiB are free"),
    ):
        huge = changed(TINY, learner=dataclasses.replace(TINY.learner, buffer_size=size))
        with pytest.raises(ValueError, match=sentence):
            loop.train(huge, tmp_path / "huge", quiet=True)
        assert not (tmp_path / "huge" / "fleet.json").exists()


def test_workers_act_as_the_actor_does():
    keys = jax.random.split(jax.random.key(0), 2)
    low, high = (-1.0, 0.0), (1.0, 3.0)
    each = [
        DeterministicActor(build(NetConfig(kind="mlp", width=8, depth=2), 5, 2, key=key), low, high) for key in keys
    ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    fleet = Explorer(stacked, np.array([0.1, 0.2], np.float32), np.zeros(2, bool))
    obs = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    spec, arrays = policy_arrays.spec(fleet), policy_arrays.arrays(fleet)
    found = FleetPolicy(spec, arrays, [(0, slice(0, 3)), (1, slice(3, 6))])(obs)
    want = np.concatenate([each[0].act(jnp.asarray(obs[:3])), each[1].act(jnp.asarray(obs[3:]))])
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fleet.spread(), [[0.1, 0.15], [0.2, 0.3]], rtol=1e-6)
    assert not fleet.uniform()


def test_killed_at_random_moments_it_ends_with_the_same_numbers(whole, tmp_path):
    """kill -9; `python scripts/kills.py 200` does so many times more."""
    kill.train_with_kills(TINY, tmp_path / "killed", tmp_path / "cache", kills=2, seed=3)
    assert_same(tmp_path / "killed", whole)
