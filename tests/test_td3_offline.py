"""TD3+BC on recorded transitions: what is asked of a data set, how it is read, and that a known action is cloned."""

import contextlib
import dataclasses
from functools import partial
from types import SimpleNamespace

import fleets
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import changed

from sphere.algos import rows
from sphere.algos.learner import Clock, DataSpec
from sphere.algos.td3_bc import TD3BC
from sphere.data import offline
from sphere.data.offline import Offline
from sphere.data.transitions import TransitionTable, read
from sphere.envs.probes import optimal_action
from sphere.nets import NetConfig
from sphere.saved import load
from sphere.training import loop

SPEC = DataSpec((2,), 2, (-1.0, -1.0), (1.0, 1.0))


def episode(obs, action, terminated=True):
    """One step, as Minari gives an episode."""
    return SimpleNamespace(
        observations=np.stack([obs, obs]), actions=action[None], rewards=np.ones(1), terminations=np.array([terminated])
    )


@pytest.fixture(scope="module")
def recorded():
    """The best action of `observed-action` and an action that is far from it, with their rewards."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (1024, 2))
    best = optimal_action("observed-action", obs)
    action = np.clip(best + rng.normal(scale=0.3, size=best.shape), -1, 1)
    reward = 1 - np.square(action - best).sum(axis=1)
    columns = (obs, action, reward, obs, np.ones(1024))
    return TransitionTable(*(np.asarray(column, np.float32) for column in columns))


TINY = changed(
    fleets.TINY,
    tasks=("probe/observed-action",),
    steps_per_task=1600,
    seeds=(0,),
    rho=(0.1,),
    source=Offline(dataset="made-here", workers=0),
    learner=TD3BC(
        rollout_steps=400,
        alpha=0.5,
        batch_size=64,
        learning_rate=3e-3,
        critic_learning_rate=3e-3,
        actor=NetConfig(kind="mlp", width=16, depth=2),
        critic=NetConfig(kind="top-k", width=8, depth=2, experts=3, top_k=2),
    ),
)


def test_it_finds_the_action_that_the_data_are_scattered_around(recorded, tmp_path, monkeypatch):
    """From start to end as `sphere train` does it, cut after two iterations and resumed."""
    monkeypatch.setattr(offline, "read", lambda name: recorded)
    loop.train(TINY, tmp_path / "whole", quiet=True)
    fleets.write(TINY, tmp_path / "cut")
    fleets.cut_after(3, TINY, tmp_path / "cut")
    loop.train(TINY, tmp_path / "cut", resume=True, quiet=True)
    assert fleets.numbers(tmp_path / "cut") == fleets.numbers(tmp_path / "whole")
    for run in TINY.runs:
        obs = np.random.default_rng(1).uniform(-0.9, 0.9, (64, 2)).astype(np.float32)
        found = load(tmp_path / "whole", run.name).act(obs)
        assert np.abs(found - optimal_action("observed-action", obs)).max() < 0.15
    lines = fleets.numbers(tmp_path / "whole")["rho0.1-seed0/metrics.jsonl"]
    assert "heldout/ntk_rank" in lines[-2]
    assert lines[-1]["final/success_at_end"] == 1


def test_runs_side_by_side_learn_from_one_table_as_runs_in_turns_do(recorded, monkeypatch):
    """As on a GPU and as on a CPU; the table has no run axis."""
    monkeypatch.setattr(offline, "read", lambda name: recorded)
    config = changed(TINY, seeds=(0, 1))
    learner, seeds = dataclasses.replace(config.learner, rollout_steps=4), np.arange(2, dtype=np.uint32)
    (source,) = config.source.open(config.wanted, [seeds.tolist()])
    with contextlib.closing(source):
        data, _ = source.collect(None, 0)
    assert data["table"].shape == (1, 1024, 8)
    numbers = {name: jnp.full(2, value) for name, value in (learner.numbers | {"rho": 0.1}).items()}
    state = rows.init(learner, source.spec, seeds, numbers)
    given = state, numbers, data, seeds, Clock(jnp.int32(0), jnp.float32(0))
    beside, turns = (jax.jit(partial(form, learner))(*given) for form in (rows.side_by_side, rows.in_turns))
    for one, other in zip(jax.tree.leaves(beside), jax.tree.leaves(turns), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert max(np.abs(leaf[0] - leaf[1]).max() for leaf in jax.tree.leaves(beside[0].nets)) > 0.1  # runs of their own


@pytest.mark.parametrize("change", [lambda obs: obs[1:], lambda obs: np.where(np.arange(1024)[:, None] == 7, 0, obs)])
def test_another_data_set_of_the_same_name_is_not_gone_on_with(change, recorded, tmp_path, monkeypatch):
    """A row less, or one that was changed; with the first it goes on."""
    monkeypatch.setattr(offline, "read", lambda _: recorded)
    loop.train(changed(TINY, steps_per_task=400), tmp_path / "fleet", quiet=True)
    obs = change(recorded.obs)
    other = TransitionTable(*(column[: len(obs)] for column in recorded))._replace(obs=obs)
    monkeypatch.setattr(offline, "read", lambda _: other)
    with pytest.raises(ValueError, match="made-here is not the one that training began with"):
        loop.train(changed(TINY, steps_per_task=400), tmp_path / "fleet", resume=True, quiet=True)
    monkeypatch.setattr(offline, "read", lambda _: recorded)
    loop.train(changed(TINY, steps_per_task=400), tmp_path / "fleet", resume=True, quiet=True)


def test_observations_are_normalised_over_the_whole_set(recorded):
    found = offline.statistics_of(recorded, 3)
    seen = found.normalise(np.tile(recorded.obs, (3, 1, 1)))
    want = (recorded.obs - recorded.obs.mean(axis=0)) / (recorded.obs.std(axis=0) + 1e-3)
    np.testing.assert_allclose(seen, np.tile(want, (3, 1, 1)), atol=1e-5)


def test_transitions_follow_from_episodes_and_a_time_limit_is_no_end():
    obs = np.arange(6.0).reshape(3, 2)
    one = SimpleNamespace(observations=obs, actions=np.ones((2, 2)), rewards=np.ones(2), terminations=np.zeros(2, bool))
    found = TransitionTable.of_episodes([one, episode(obs[0], np.zeros(2))])
    np.testing.assert_array_equal(found.obs, [[0, 1], [2, 3], [0, 1]])
    np.testing.assert_array_equal(found.next_obs, [[2, 3], [4, 5], [0, 1]])
    np.testing.assert_array_equal(found.terminated, [0, 0, 1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"obs": np.zeros((1024, 3), np.float32)}, r"observations of shape \(3,\), and the tasks have \(2,\)"),
        ({"action": np.zeros((1024, 1), np.float32)}, r"actions of shape \(1,\), and the tasks have \(2,\)"),
        ({"reward": np.full(1024, np.nan, np.float32)}, "holds 1024 NaN or infinite numbers in reward"),
        ({"reward": np.zeros(0, np.float32)}, "has no transitions"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused_in_a_sentence(recorded, change, says):
    with pytest.raises(ValueError, match=says):
        recorded._replace(**change).check("made-here", SPEC)


def test_episodes_that_were_cut_off_and_sets_without_any_are_refused():
    one = episode(np.zeros(2), np.zeros(2))
    one.observations = one.observations[:1]
    with pytest.raises(ValueError, match="1 observations and 1 actions"):
        TransitionTable.of_episodes([one])
    with pytest.raises(ValueError, match="has no episodes"):
        TransitionTable.of_episodes([])


def test_a_set_smaller_than_a_minibatch_is_refused(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(offline, "read", lambda name: TransitionTable(*(column[:32] for column in recorded)))
    with pytest.raises(ValueError, match="32 transitions, fewer than a minibatch"):
        loop.train(TINY, tmp_path / "few", quiet=True)


def test_a_set_must_be_named():
    with pytest.raises(ValueError, match="no data set is named"):
        read("")


# Data sets of MetaWorld -----------------------------------------------------------------------------------------------


def test_recording_is_seeded_and_the_scripted_policy_succeeds():
    pytest.importorskip("metaworld")
    from sphere.data.scripted import record

    episodes, behaviour = record("faucet-close", 2, 0, (0.0,), 0.0, horizon=150)
    again, _ = record("faucet-close", 2, 0, (0.0,), 0.0, horizon=150)
    other, noisy = record("faucet-close", 2, 1, (0.5,), 1.0, horizon=150)
    for one, same, differs in zip(episodes, again, other, strict=True):
        np.testing.assert_array_equal(one.observations, same.observations)
        np.testing.assert_array_equal(one.actions, same.actions)
        assert np.abs(one.actions - differs.actions).max() > 0.1
    assert episodes[0].observations.shape == (151, 39)
    assert not any(one.terminations.any() for one in episodes)
    assert all(one.truncations.tolist() == [False] * 149 + [True] for one in episodes)
    assert behaviour.success_once == 1
    assert noisy.success_once < 1  # uniform actions do not close a faucet


def test_tasks_recorded_by_several_processes_are_those_of_one():
    pytest.importorskip("metaworld")
    from sphere.data.scripted import record_all

    tasks, settings = ["push", "faucet-close"], (1, 0, (0.1,), 0.1, 10)
    beside, turns = (list(record_all(tasks, processes, *settings)) for processes in (2, 1))
    assert [row.task for _, row in beside] == tasks
    for (found, one), (wanted, other) in zip(beside, turns, strict=True):
        assert one == other
        for column, same in zip(found[0], wanted[0], strict=True):
            np.testing.assert_array_equal(column, same)


def test_a_data_set_is_written_and_read_back_by_name_and_by_path(tmp_path, monkeypatch, capsys):
    pytest.importorskip("minari")
    pytest.importorskip("metaworld")
    from sphere.cli.main import main

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    words = ["--tasks", "push", "--episodes", "2", "--horizon", "20", "--name", "metaworld/made-v0"]
    assert main(["data", "record", "metaworld", *words]) == 0
    assert "40 transitions in metaworld/made-v0; the behaviour's success" in capsys.readouterr().out
    found = read("metaworld/made-v0")
    for one, other in zip(found, read(str(tmp_path / "metaworld" / "made-v0")), strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.obs.shape == (40, 39)
    np.testing.assert_array_equal(found.obs[1:20], found.next_obs[:19])
    found.check("made", DataSpec((39,), 4, (-1.0,) * 4, (1.0,) * 4))
    data = tmp_path / "metaworld" / "made-v0" / "data" / "main_data.hdf5"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"made-v0 cannot be read"):
        read("metaworld/made-v0")
    with pytest.raises(ValueError, match=r"nowhere-v0 cannot be read"):
        read("nowhere-v0")


def test_without_the_package_the_remedy_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ValueError, match=r"pip install 'sphere-rl\[offline\]'"):
        read("metaworld/made-v0")
