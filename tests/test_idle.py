"""Methods that did nothing say so, in training and in the report."""

import json

import numpy as np
import pytest
from fleets import TINY, changed
from made_runs import settings, write_run

from sphere.algos import rows
from sphere.cli.main import main
from sphere.methods import Sphere
from sphere.methods.cbp import CBP
from sphere.report.load import load
from sphere.training.loop import train

SHORT = changed(TINY, seeds=(0,), rho=(0.0,), steps_per_task=64, workers=0)


@pytest.mark.parametrize(("maturity", "idle"), [(10_000, True), (0, False)])
def test_a_training_shorter_than_cbps_maturity_says_so_and_so_does_its_report(maturity, idle, tmp_path, capsys):
    method = CBP(maturity=maturity, replacement_rate=0.5)
    config = changed(SHORT, learner=changed(SHORT.learner, methods=(method,)))
    train(config, tmp_path / "fleet")
    assert ("cbp has reset no unit" in capsys.readouterr().err) == idle
    assert any("cbp has reset no unit" in note for note in load([tmp_path]).notes) == idle


@pytest.mark.parametrize(("rho", "noted"), [(1e-30, True), (0.5, False)])
def test_a_training_says_which_of_its_runs_cannot_be_told_apart(rho, noted, tmp_path, capsys):
    """Of one seed: a penalty of that weight is lost in rounding."""
    method = Sphere(coefficient="fixed")
    learner = changed(SHORT.learner, methods=(method,))
    train(changed(SHORT, rho=(0.0, rho), seeds=(0, 1), learner=learner), tmp_path / "fleet")
    said = capsys.readouterr().err
    for seed in (0, 1):
        assert (f"rho{rho:g}-seed{seed} has the same numbers as rho0-seed{seed} at every evaluation" in said) == noted
    assert "seed1 has the same numbers as rho0-seed0" not in said


@pytest.mark.parametrize(("felt", "warned"), [(0.01, True), (0.1, False)])
def test_a_training_warns_once_of_a_penalty_that_is_not_felt(felt, warned, tmp_path, capsys, monkeypatch):
    """What an update says of it is put in its place: how short a penalty's gradient is depends on the network."""
    original = rows.update

    def update(*arguments):
        state, metrics = original(*arguments)
        return state, {**metrics, "felt": np.full_like(metrics["felt"], felt)}

    monkeypatch.setattr(rows, "update", update)
    learner = changed(SHORT.learner, methods=(Sphere(),))
    train(changed(SHORT, rho=(0.1,), learner=learner), tmp_path / "fleet")
    assert capsys.readouterr().err.count("rho 0.1 is felt as 0.01 only") == warned


def test_several_methods_that_cannot_be_told_apart_are_named_when_all_are_trained(tmp_path, capsys):
    words = "--seeds 0 --steps-per-task 64 --tasks reach-north --workers 0 --evaluation.episodes 2".split()
    words += "--ppo.num-envs 4 --ppo.rollout-steps 16 --ppo.batch-size 32 --ppo.epochs 1 --evaluation.heldout 8".split()
    words += "--ppo.actor.width 8 --ppo.actor.depth 1 --ppo.critic.width 8 --ppo.critic.depth 1".split()
    out = tmp_path / "both"
    assert main(["train", "--preset", "probe-crl", "--method", "none", "cbp", "--out", str(out), *words]) == 0
    said = capsys.readouterr().err
    assert "has the same numbers as" in said
    assert said.count("one of the two methods did nothing") == 1


def with_felt(path, felt):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if "train/loss" in line:
            line |= {"train/felt": felt, "train/coefficient": 3.0}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(("felt", "noted"), [(0.1, False), (0.001, True), (0.0, True)])
def test_a_penalty_that_was_not_felt_is_in_the_notes(felt, noted, tmp_path):
    with_felt(write_run(tmp_path / "run", settings(rho=0.1)), felt)
    assert any("was felt as" in note for note in load([tmp_path]).notes) == noted


def test_two_methods_with_the_same_numbers_are_in_the_notes(tmp_path):
    write_run(tmp_path / "a", settings(rho=0.0))
    write_run(tmp_path / "b", settings(rho=0.1))
    (note,) = load([tmp_path]).notes
    assert "did nothing" in note
    assert np.all([str(tmp_path / name) in note for name in "ab"])


def test_others_are_not(tmp_path):
    write_run(tmp_path / "a", settings(rho=0.0))
    write_run(tmp_path / "b", settings(rho=0.1), shift=1e-6)
    write_run(tmp_path / "c", settings(rho=0.1, seed=1))
    assert load([tmp_path]).notes == ()
