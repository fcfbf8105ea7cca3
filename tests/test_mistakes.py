"""What a user can do wrong is answered by a sentence with path and remedy; a stack trace comes by SPHERE_DEBUG
alone."""

import dataclasses
import errno
import os
import shutil
import subprocess
import sys

import fleets
import numpy as np
import processes
import pytest
from fleets import TINY, changed

from sphere.cli.main import in_a_sentence, main
from sphere.envs import heldout
from sphere.storage import checkpoint
from sphere.training import limits, loop, plan
from sphere.training.loop import train

ONE = changed(TINY, seeds=(0,), rho=(0.0,), steps_per_task=192, workers=0)
MANY_DIGITS = "9" * 400


@pytest.fixture
def nothing_is_opened(monkeypatch):
    def opened(*_):
        raise AssertionError("work began before the bounds were checked")

    monkeypatch.setattr(loop, "Fleet", opened)
    monkeypatch.setattr(plan, "Fleet", opened)


def said(capsys, words):
    """What a command that fails says on stderr: a sentence, or what the parser of the command line has to say."""
    try:
        code = main(words)
    except SystemExit as left:
        code = left.code
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert (code, text[:8]) == (1, "sphere: ") or (code == 2 and "error" in text.lower())
    return text


# Bounds before work

TOO_MUCH = [
    (["--ppo.num-envs", "1000000000"], "8,107 GiB"),  # 2 runs of 128e9 samples and 1e9 environments
    (["--ppo.actor.width", "1000000000"], "PiB"),
    (["--steps-per-task", "1000000000000"], "steps"),
    (["--steps-per-task", MANY_DIGITS], "steps"),
    (["--evaluation.heldout", "1000000000"], "held-out states"),
    (["--evaluation.episodes", "1000000000000"], "environments for evaluation"),
    (["--ppo.num-envs", MANY_DIGITS], "PiB"),
    (["--ppo.actor.experts", "100000000000"], "networks"),
]


@pytest.mark.parametrize(("words", "sentence"), TOO_MUCH)
@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_what_the_machine_cannot_hold_is_refused_with_a_number(
    words, sentence, dry, tmp_path, capsys, nothing_is_opened
):
    text = said(capsys, ["train", "--preset", "probe-crl", "--out", str(tmp_path / "a"), *words, *dry])
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


@pytest.mark.parametrize(("every", "steps"), [(256, 640), (64, 640), (10, 640), (100, 640), (1000, 640), (63, 64)])
def test_evaluations_are_counted_by_arithmetic(every, steps):
    config = changed(TINY, steps_per_task=steps, evaluation=dataclasses.replace(TINY.evaluation, every=every))
    length = config.iteration_steps
    due = {-(-step // length) for step in range(every, config.task_steps, every)} | {config.iterations_per_task}
    assert config.evaluations() == due
    assert config.evaluation_count == len(due)


# Settings


@pytest.mark.parametrize(
    "words",
    [
        ["--actor", "ds-moe", "--ppo.actor.split", "0"],
        ["--actor", "softmoe", "--ppo.actor.token-size", "0"],
        ["--ppo.actor.tokens", "0"],
        ["--seeds", MANY_DIGITS],
        ["--ppo.batch-size", MANY_DIGITS],
        ["--rho", "1e999"],
        ["--tasks", "probe/$HOME"],
        ["--tasks", "$(true)", "a b\n"],
        ["--tasks", "metaworld/$x"],
        ["--vary", f"learning_rate={MANY_DIGITS}"],
        ["--out", "/dev/null/x"],
        ["--out", "/dev/null"],
        ["--plugin", "$x"],
    ],
)
def test_a_setting_that_cannot_be_is_answered_by_a_sentence(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said(capsys, ["train", "--preset", "probe-crl", *words])
    assert list(tmp_path.iterdir()) == []


WRONG_TYPES = """
from sphere.algos.ppo import PPO
from sphere.nets import NetConfig
from sphere.training.settings import FleetConfig
from sphere.envs.source import Environments

def fleet(**changes):
    return FleetConfig(tasks=("probe/reach-north",), learner=PPO(), source=Environments(), **changes)

for name, make in [
    ("num_envs", lambda: PPO(num_envs=2.5)),
    ("num_envs", lambda: PPO(num_envs="8")),
    ("split", lambda: NetConfig(split=0)),
    ("token_size", lambda: NetConfig(token_size=0)),
    ("width", lambda: NetConfig(width=2.5)),
    ("seeds", lambda: fleet(seeds=("a",))),
    ("seeds", lambda: fleet(seeds=(1.5,))),
    ("seeds", lambda: fleet(seeds=3)),
    ("steps_per_task", lambda: fleet(steps_per_task=1.5)),
]:
    try:
        make()
    except ValueError as error:
        assert name in str(error), error
    else:
        raise AssertionError(f"{name} was taken")
"""


def test_settings_of_another_type_are_named():
    """In a process without the checker of types that tests have."""
    process = processes.start([sys.executable, "-c", WRONG_TYPES], stderr=subprocess.PIPE, cwd=fleets.ROOT)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


# Files


def test_a_file_where_records_should_go_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        assert str(tmp_path / "file") in said(capsys, ["train", "--preset", "probe-crl", "--out", str(place)])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_where_a_checkpoint_should_be_is_passed_over(tmp_path):
    train(ONE, tmp_path / "straight", quiet=True)
    fleets.write(ONE, tmp_path / "fleet")
    fleets.cut_after(4, ONE, tmp_path / "fleet")
    (tmp_path / "fleet" / "checkpoint-000000000009.npz").mkdir()
    (tmp_path / "fleet" / "checkpoint-000000000009.npz" / "note").write_text("mine")
    train(ONE, tmp_path / "fleet", resume=True, quiet=True)
    assert fleets.numbers(tmp_path / "fleet") == fleets.numbers(tmp_path / "straight")
    (kept,) = (tmp_path / "fleet").glob("checkpoint-000000000009*/note")
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00garbage", b"text"])
def test_a_damaged_heldout_file_is_named(data, tmp_path):
    (tmp_path / "probe.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"probe\.npz is damaged"):
        heldout.load(tmp_path / "probe.npz")


def test_a_full_disk_says_what_is_saved_and_what_to_do(tmp_path, capsys, monkeypatch):
    """The second checkpoint finds no room: what was saved is whole, and after that it goes on to the same end."""
    train(ONE, tmp_path / "straight", quiet=True)
    original, calls = checkpoint.write_arrays, []

    def full(path, members):
        calls.append(1)
        if len(calls) == 2:
            path.with_name(f"{path.name}.partial").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "fleet"))
        original(path, members)

    fleets.write(ONE, tmp_path / "fleet")
    monkeypatch.setattr(checkpoint, "write_arrays", full)
    text = said(capsys, ["resume", str(tmp_path / "fleet"), "--quiet"])
    assert str(tmp_path / "fleet") in text
    assert "make room on the disk" in text
    monkeypatch.undo()
    assert main(["resume", str(tmp_path / "fleet"), "--quiet"]) == 0
    assert fleets.numbers(tmp_path / "fleet") == fleets.numbers(tmp_path / "straight")


def test_a_stack_trace_comes_only_when_it_is_asked_for(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sphere.cli.fleet.settings_of", lambda _: {}["nothing"])
    assert "SPHERE_DEBUG=1" in said(capsys, ["show", str(tmp_path)])
    monkeypatch.setenv("SPHERE_DEBUG", "1")
    assert main(["show", str(tmp_path)]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_every_error_of_the_system_has_a_path_and_a_remedy():
    for number in errno.errorcode:
        text = in_a_sentence(OSError(number, os.strerror(number), "/a/path"))
        assert text.startswith("/a/path: ")
        assert ";" in text


# Standard output

CLOSED = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'sphere', *sys.argv[1:]])"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["experiment", "list"]])
def test_a_closed_or_full_output_is_no_stack_trace(words):
    process = processes.start([sys.executable, "-c", CLOSED, *words], stderr=subprocess.PIPE, cwd=fleets.ROOT)
    text = process.communicate()[1]
    assert "Traceback" not in text
    assert "Exception ignored" not in text
    with open("/dev/full", "w") as full:
        process = processes.start(
            [sys.executable, "-m", "sphere", *words], stdout=full, stderr=subprocess.PIPE, cwd=fleets.ROOT
        )
        text = process.communicate()[1]
    assert process.returncode == 1
    assert text.startswith("sphere: ")
    assert "No space left on device" in text
    assert "Traceback" not in text
    assert "Exception ignored" not in text


def test_a_copy_of_a_fleet_without_its_files_is_told_from_a_fleet(tmp_path, capsys):
    fleets.write(ONE, tmp_path / "fleet")
    shutil.rmtree(tmp_path / "fleet" / "rho0-seed0")
    (tmp_path / "fleet" / "fleet.json").write_bytes(b"\xff\xfe{")
    assert "fleet.json" in said(capsys, ["resume", str(tmp_path / "fleet")])
