"""A trained policy from its directory: it acts as it did when it was evaluated, and no process is started for that."""

import subprocess

import fleets
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import TINY, changed

import sphere
from sphere.envs.handles import Process
from sphere.saved import SavedFleet
from sphere.storage import run_directory
from sphere.training.fleet import Fleet
from sphere.training.loop import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained") / "fleet"
    train(changed(TINY, steps_per_task=128, workers=0), directory, quiet=True)
    return directory


@pytest.fixture(params=[True, False], ids=["normalised", "raw"])
def fleet(request, trained, tmp_path):
    if request.param:
        return trained
    config = changed(TINY, steps_per_task=128, seeds=(0,), rho=(0.1,), normalise_observations=False, workers=0)
    train(config, tmp_path / "raw", quiet=True)
    return tmp_path / "raw"


def no_process(*_, **__):
    raise AssertionError("a process was started")


def test_a_policy_acts_as_the_trained_network_without_a_process(fleet, monkeypatch):
    """Against the training state of the fleet itself."""
    config = SavedFleet.open(fleet).config
    whole = Fleet(config, fleet)
    try:
        whole.resume()
        row, statistics = len(config.runs) - 1, whole.groups[0].source.statistics
        actor = jax.tree.map(lambda leaf: leaf[row], whole.policy)
    finally:
        whole.close()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", no_process)
        patch.setattr(Process, "__init__", no_process)
        policy = sphere.load(fleet / config.runs[row].name)
        obs = np.random.default_rng(0).normal(size=(5, 6))
        found = policy.act(obs)
        one = policy.act(obs[2])
    seen = obs if statistics is None else (obs - statistics.mean[row]) / np.sqrt(statistics.var[row] + 1e-8)
    want = actor(jnp.asarray(np.clip(seen, -10, 10), jnp.float32))[0].mean
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one, found[2], rtol=1e-5, atol=1e-6)
    assert one.shape == (2,)


def test_evaluation_of_a_loaded_policy_is_that_of_training(fleet):
    """The final evaluation of the sequence, episode by episode: the same seeds, the same policy, the same numbers."""
    name = "rho0.1-seed0"
    recorded = [one for one in run_directory.read_episodes(fleet / name) if one["kind"] == "final"]
    policy = sphere.load(fleet, name)
    for task in TINY.tasks:
        own = [one for one in recorded if one["task"] == task]
        assert len(own) == TINY.evaluation.episodes
        found = policy.evaluate(task, episodes=TINY.evaluation.episodes)
        for column in ("return", "length", "success_once", "success_at_end"):
            assert found[column] == pytest.approx(np.mean([one[column] for one in own]), rel=1e-6), (task, column)
    assert policy.evaluate("reach-east", episodes=3) == policy.evaluate(episodes=3)  # it was there in the end


@pytest.mark.parametrize(
    ("place", "run", "sentence"),
    [
        ("", None, "has 4 runs; name one of them"),
        ("", "rho0.1-seed7", "did you mean rho0.1-seed"),
        ("rho0.1-seed0", "rho0-seed0", "holds no fleet"),
        ("nowhere", None, "holds no fleet"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_a_sentence(trained, place, run, sentence):
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        sphere.load(trained / place, run)


def test_a_copy_without_checkpoints_and_a_wrong_observation_are_refused(trained, tmp_path):
    fleets.write(TINY, tmp_path / "fleet")
    with pytest.raises(FileNotFoundError, match="no usable checkpoint"):
        sphere.load(tmp_path / "fleet" / "rho0-seed0")
    with pytest.raises(ValueError, match=r"obs has shape \(4,\), wanted \(6,\)"):
        sphere.load(trained / "rho0-seed0").act(np.zeros(4))
