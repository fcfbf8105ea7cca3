"""Methods that did nothing say so, in training and in the report."""

import json

import numpy as np
import pytest
from fleets import TINY, changed
from made_runs import settings, write_run

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
