"""The states that r_e(K) is compared on: kept whole, refused when changed, used by the runs of their suite."""

import equinox as eqx
import fleets
import jax
import numpy as np
import pytest

from sphere import envs
from sphere.cli import heldout as recipes
from sphere.envs import heldout
from sphere.training.fleet import Fleet
from sphere.training.loop import train

STATES = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)


def test_there_and_back(tmp_path):
    heldout.save(tmp_path / "probe.npz", STATES, {"tasks": ["probe/reach-north"]})
    found = heldout.load(tmp_path / "probe.npz")
    np.testing.assert_array_equal(found.states, STATES)
    assert found.provenance["tasks"] == ["probe/reach-north"]
    assert len(found.provenance["sha256"]) == 64


def test_changed_states_are_refused(tmp_path):
    path = tmp_path / "probe.npz"
    heldout.save(path, STATES, {})
    with np.load(path) as file:
        provenance = file["provenance"]
    np.savez(path, states=STATES + np.float32(1e-6), provenance=provenance)
    with pytest.raises(ValueError, match=r"probe\.npz was changed: its states have sha256"):
        heldout.load(path)


def test_a_fleet_takes_the_suites_batch_and_falls_back_to_random_states(tmp_path, monkeypatch):
    monkeypatch.setattr(heldout, "FOLDER", tmp_path)
    config = fleets.changed(fleets.TINY, workers=0)

    def batch(config):
        fleet = Fleet(config, tmp_path / "fleet")
        fleet.close()
        return fleet.groups[0].source.heldout

    at_random = batch(config)
    assert at_random.shape == (16, 6)
    heldout.save(tmp_path / "probe.npz", STATES, {})
    np.testing.assert_array_equal(batch(config), STATES[:16])
    many = fleets.changed(config, evaluation=fleets.changed(config.evaluation, heldout=len(STATES) + 1))
    with pytest.raises(ValueError, match=f"has {len(STATES)} states"):
        train(many, tmp_path / "many", quiet=True)
    assert not (tmp_path / "many" / "fleet.json").exists()
    heldout.save(tmp_path / "probe.npz", STATES[:, :5], {})  # of another size
    np.testing.assert_array_equal(batch(config), at_random)


def test_raw_states_are_also_standardised_for_the_ntk(tmp_path, monkeypatch):
    """Against the Jacobian itself, on states of very different scales and with a column that never changes."""
    monkeypatch.setattr(heldout, "FOLDER", tmp_path)
    states = STATES * np.float32([1, 100, 1e-3, 1, 1, 0]) + np.float32([0, 50, 1, -3, 0, 7])
    heldout.save(tmp_path / "probe.npz", states, {})
    config = fleets.changed(fleets.TINY, workers=0, seeds=(3,), rho=(0.0,), normalise_observations=False)
    fleet = Fleet(config, tmp_path / "fleet")
    try:
        fleet.begin_task()
        (found,) = fleet.groups[0].evaluate(fleet.task).diagnostics
        trunk = jax.tree.map(lambda leaf: leaf[0], fleet.policy).trunk
    finally:
        fleet.close()
    raw = states[:16].astype(np.float64)
    spread = raw.std(axis=0)
    assert spread[5] == 0
    scaled = np.where(spread > 0, (raw - raw.mean(axis=0)) / np.where(spread > 0, spread, 1), 0)
    # one state at a time: the Jacobian of the sum of the outputs by all parameters but the gate's temperature
    weights, rest = eqx.partition(trunk, lambda leaf: eqx.is_inexact_array(leaf) and leaf.ndim > 0)
    gradient = jax.jit(jax.grad(lambda weights, x: eqx.combine(weights, rest)(x[None])[0].sum()))

    def rank(batch):
        rows = [np.concatenate([np.ravel(g) for g in jax.tree.leaves(gradient(weights, x))]) for x in batch]
        singular = np.linalg.svd(np.array(rows, np.float64), compute_uv=False) ** 2
        share = singular[singular > 0] / singular.sum()
        return np.exp(-np.sum(share * np.log(share)))

    np.testing.assert_allclose(found["standardised/ntk_rank"], rank(scaled.astype(np.float32)), rtol=1e-4)
    np.testing.assert_allclose(found["heldout/ntk_rank"], rank(states[:16]), rtol=1e-3)
    assert found["standardised/ntk_rank"] > 2 * found["heldout/ntk_rank"]


def test_normalised_states_are_not_standardised_again(tmp_path):
    fleet = Fleet(fleets.changed(fleets.TINY, workers=0, seeds=(0,)), tmp_path)
    try:
        fleet.begin_task()
        assert "standardised/ntk_rank" not in fleet.groups[0].evaluate(fleet.task).diagnostics[0]
    finally:
        fleet.close()


def test_states_are_made_from_every_task_of_a_trained_policy(tmp_path):
    config = fleets.changed(fleets.TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=128)
    train(config, tmp_path / "fleet", quiet=True)
    one = recipes.make(tmp_path / "fleet", 31, tmp_path / "one.npz")
    two = recipes.make(tmp_path / "fleet", 31, tmp_path / "two.npz")
    np.testing.assert_array_equal(one.states, two.states)
    assert one.states.shape == (31, 6)
    assert one.provenance["steps"] == 256
    assert set(one.provenance["mean_return"]) == set(config.tasks)
    assert len(np.unique(one.states, axis=0)) == 31


@pytest.mark.parametrize("suite", ["metaworld", "humanoidbench"])
def test_the_shipped_batches_fit_their_suites(suite):
    batch = heldout.shipped(suite)
    assert batch is not None
    assert batch.states.shape == (512, {"metaworld": 39, "humanoidbench": 51}[suite])
    assert np.isfinite(batch.states).all()
    assert np.linalg.matrix_rank(batch.states - batch.states.mean(0)) > 20
    assert batch.provenance["settings"]["steps_per_task"] == recipes.RECIPES[suite].steps_per_task
    assert {task.split("/")[1] for task in batch.provenance["tasks"]} <= set(envs.tasks(suite))
    assert not any(batch.provenance["settings"]["simulator"].values())  # the suite's own settings
