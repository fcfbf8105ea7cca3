"""What a machine cannot hold, or what would never end, is refused with a number before any work begins."""

import dataclasses
from types import SimpleNamespace

import fleets
import numpy as np
import pytest
from fleets import TINY, changed
from test_mistakes import MANY_DIGITS, ONE, said

import sphere
from sphere.cli import heldout as heldout_command
from sphere.training import limits, loop, plan


@pytest.fixture
def nothing_is_opened(monkeypatch):
    def opened(*_):
        raise AssertionError("work began before the bounds were checked")

    monkeypatch.setattr(loop, "Fleet", opened)
    monkeypatch.setattr(plan, "Fleet", opened)


TOO_MUCH = [
    (["--ppo.num-envs", "1000000000"], "8,107 GiB"),  # 2 runs of 128e9 samples and 1e9 environments
    (["--ppo.actor.width", "1000000000"], "PiB"),
    (["--steps-per-task", "1000000000000"], "steps"),
    (["--steps-per-task", MANY_DIGITS], "steps"),
    (["--evaluation.heldout", "1000000000"], "held-out states"),
    (["--evaluation.episodes", "1000000000000"], "environments for evaluation"),
    (["--ppo.num-envs", MANY_DIGITS], "PiB"),
    (["--ppo.actor.experts", "100000000000"], "networks"),
    (["--ppo.epochs", "1000000000000"], "samples to learn from"),
    (["--learner", "td3", "--td3.update-ratio", "1e15"], "samples to learn from"),
    (["--learner", "td3", "--td3.buffer-size", "1000000000000"], "memory of 1,000,000,000,000 transitions"),
    (["--preset", "metaworld-crl", "--horizon", "1000000000000"], "steps of evaluation"),
    (["--preset", "newsgroups", "--classifier.actor.transformer.width", "1000000000"], "networks"),
    (["--method", "none", "cbp", "--ppo.num-envs", "1000000000"], "of memory"),
]


@pytest.mark.parametrize(("words", "sentence"), TOO_MUCH)
@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_what_the_machine_cannot_hold_is_refused_with_a_number(
    words, sentence, dry, tmp_path, capsys, nothing_is_opened
):
    words = [*([] if "--preset" in words else ["--preset", "probe-crl"]), *words]
    text = said(capsys, ["train", "--out", str(tmp_path / "a"), *words, *dry])
    assert sentence in text
    assert any(character.isdigit() for character in text)
    assert not (tmp_path / "a").exists()


def test_the_bounds_are_below_what_a_fleet_takes():
    """Of one that is known: its networks and its data as they are made."""
    fleet = loop.Fleet(ONE, fleets.ROOT)
    try:
        fleet.begin_task()
        held = sum(leaf.nbytes for leaf in __import__("jax").tree.leaves(fleet.state))
        data = fleet.learner.trial(fleet.groups[0].source.spec, 1)[1]
    finally:
        fleet.close()
    # parameters and Adam's moments are three quarters of what is counted: gradients are not in the state
    assert sum(map(limits.network_bytes, ONE.learner.nets.values())) * 3 / 4 <= held
    samples = int(np.prod(np.asarray(data["reward"]).shape))
    assert samples * limits.SAMPLE <= sum(np.asarray(leaf).nbytes for leaf in data.values())


def test_records_that_are_there_already_do_not_count_once_more(tmp_path, monkeypatch):
    """A fleet that has written nearly all of its records is resumed on a nearly full disk."""
    lines = ONE.total_iterations * limits.LINE
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda _: SimpleNamespace(free=lines // 4))
    with pytest.raises(ValueError, match="KiB free"):
        limits.check(ONE, tmp_path)
    (tmp_path / "rho0-seed0").mkdir()
    (tmp_path / "rho0-seed0" / "metrics.jsonl").write_bytes(b"x" * (lines - 10))
    limits.check(ONE, tmp_path)


def test_episodes_to_evaluate_are_counted_too(tmp_path, capsys):
    trained = tmp_path / "fleet"
    loop.train(changed(ONE, steps_per_task=64), trained, quiet=True)
    text = said(capsys, ["eval", str(trained), "--episodes", "100000000000"])
    assert "episodes at a time need" in text
    with pytest.raises(ValueError, match="episodes at a time need"):
        sphere.load(trained / "rho0-seed0").evaluate(episodes=10**11)


@pytest.mark.parametrize("states", ["0", "1000000000000"])
def test_held_out_states_that_cannot_be_had_are_refused_before_training(states, monkeypatch, capsys):
    monkeypatch.setattr(loop, "train", lambda *_, **__: pytest.fail("it trains"))
    monkeypatch.setitem(heldout_command.RECIPES, "probe", ONE)
    assert "; want at" in said(capsys, ["heldout", "probe", "--states", states])


@pytest.mark.parametrize(("every", "steps"), [(256, 640), (64, 640), (10, 640), (100, 640), (1000, 640), (63, 64)])
def test_evaluations_are_counted_by_arithmetic(every, steps):
    config = changed(TINY, steps_per_task=steps, evaluation=dataclasses.replace(TINY.evaluation, every=every))
    length = config.iteration_steps
    due = {-(-step // length) for step in range(every, config.task_steps, every)} | {config.iterations_per_task}
    assert config.evaluations() == due
    assert config.evaluation_count == len(due)
