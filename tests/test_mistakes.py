"""What a user can do wrong is answered by a sentence with path and remedy; a stack trace comes by SPHERE_DEBUG
alone."""

import errno
import json
import os
import shutil
import subprocess
import sys

import fleets
import processes
import pytest
from fleets import TINY, changed
from made_runs import settings, write_run

import sphere
from sphere.cli.main import main
from sphere.envs import heldout
from sphere.report.page import write_report
from sphere.storage import checkpoint, files
from sphere.storage.run_directory import RunDirectory
from sphere.training.loop import train
from sphere.training.sentences import in_a_sentence
from sphere.training.settings import to_json

ONE = changed(TINY, seeds=(0,), rho=(0.0,), steps_per_task=192, workers=0)
MANY_DIGITS = "9" * 400


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained") / "fleet"
    train(changed(ONE, steps_per_task=64), directory, quiet=True)
    return directory


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
        ["--sphere.floor", "5"],
        ["--ppo.actor.depth", "1000000", "--ppo.actor.width", "1"],
        ["--preset", "newsgroups", "--length", "1000000000"],
        ["--preset", "newsgroups", "--vocabulary", "1000000000000"],
        ["--preset", "newsgroups", "--classifier.actor.transformer.layers", "1000000000"],
        ["--preset", "newsgroups", "--classifier.actor.transformer.heads", "0"],
        ["--preset", "cifar100-mlp", "--classifier.examples", "1000000000001"],
        ["--preset", "cifar100-mlp", "--classifier.examples", MANY_DIGITS],
    ],
)
def test_a_setting_that_cannot_be_is_answered_by_a_sentence(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said(capsys, ["train", *([] if "--preset" in words else ["--preset", "probe-crl"]), *words])
    assert list(tmp_path.iterdir()) == []


WRONG_TYPES = """
from sphere.algos.ppo import PPO
from sphere.algos.td3 import TD3
from sphere.methods import CBP, Parseval, ReDo, Sphere
from sphere.nets import NetConfig
from sphere.nets.transformer import TransformerConfig
from sphere.training.settings import FleetConfig
from sphere.envs.environments import Environments

def fleet(**changes):
    return FleetConfig(tasks=("probe/reach-north",), learner=PPO(), source=Environments(), **changes)

for name, make in [
    ("num_envs", lambda: PPO(num_envs=2.5)),
    ("num_envs", lambda: PPO(num_envs="8")),
    ("split", lambda: NetConfig(split=0)),
    ("token_size", lambda: NetConfig(token_size=0)),
    ("width", lambda: NetConfig(width=2.5)),
    ("width", lambda: NetConfig(width=None)),
    ("temperature", lambda: NetConfig(temperature=float("nan"))),
    ("gamma", lambda: PPO(gamma=None)),
    ("entropy_coefficient", lambda: PPO(entropy_coefficient="a")),
    ("weight", lambda: PPO(methods=(Parseval(weight=float("nan")),))),
    ("period", lambda: ReDo(period="a")),
    ("maturity", lambda: CBP(maturity=2.5)),
    ("target_scale", lambda: TD3(methods=(Sphere(placement="critic", target_scale=None),))),
    ("layers", lambda: TransformerConfig(layers=2.5)),
    ("patch", lambda: TransformerConfig(patch="4")),
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


@pytest.mark.parametrize("check", ["update", "humanoidbench"])
def test_a_file_without_an_end_is_not_read(check, capsys):
    assert "/dev/zero is not a regular file" in said(capsys, ["verify", check, "/dev/zero"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda written: written.pop("spec"), "fleet.json cannot be read: it has no 'spec'"),
        (lambda written: written["spec"].update(strange=1), "fleet.json cannot be read"),
        (lambda written: written["settings"]["source"].update(normalise_observations=False), "config.json has another"),
    ],
)
def test_a_fleet_that_was_changed_is_not_evaluated(change, sentence, trained, tmp_path, capsys):
    fleet = shutil.copytree(trained, tmp_path / "fleet")
    written = json.loads((fleet / "fleet.json").read_text())
    change(written)
    (fleet / "fleet.json").write_text(json.dumps(written))
    assert sentence in said(capsys, ["eval", str(fleet), "--episodes", "1"])
    with pytest.raises(ValueError, match=sentence):
        sphere.load(fleet / "rho0-seed0")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 2, "fleets": 3}', '{"format": 1}'])
def test_a_damaged_list_of_fleets_is_named(text, tmp_path, capsys):
    (tmp_path / "fleets.json").write_text(text)
    assert "fleets.json cannot be read" in said(capsys, ["resume", str(tmp_path)])


def test_a_list_of_fleets_leads_to_no_other_place(tmp_path, capsys):
    fleets_of = {"../elsewhere": to_json(ONE)}
    (tmp_path / "fleets.json").write_text(json.dumps({"format": 2, "fleets": fleets_of}))
    assert "'../elsewhere' is not the name of a directory" in said(capsys, ["resume", str(tmp_path)])


def test_a_full_disk_is_named_where_the_system_does_not(tmp_path, capsys, monkeypatch):
    """As it is when a line is written: the error itself has no path."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    fleets.write(ONE, tmp_path / "fleet")
    monkeypatch.setattr(RunDirectory, "event", full)
    assert f"{tmp_path / 'fleet'}: No space" in said(capsys, ["resume", str(tmp_path / "fleet"), "--quiet"])
    monkeypatch.undo()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space") as caught, files.atomic_write(tmp_path / "one") as file:
        file.write(b"half")
    assert caught.value.filename == str(tmp_path / "one")
    assert not list(tmp_path.glob("one*"))


def test_half_a_page_is_not_left_to_be_taken_for_somebody_elses(tmp_path, monkeypatch):
    write_run(tmp_path / "run", settings())

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_report([tmp_path / "run"], tmp_path / "page", figures=False)
    monkeypatch.undo()
    assert list((tmp_path / "page").iterdir()) == []
    write_report([tmp_path / "run"], tmp_path / "page", figures=False)


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
    monkeypatch.setattr("sphere.cli.resume.settings_of", lambda _: {}["nothing"])
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
    assert text.startswith("sphere: standard output: ")
    assert "No space left on device" in text
    assert "Traceback" not in text
    assert "Exception ignored" not in text


def test_a_copy_of_a_fleet_without_its_files_is_told_from_a_fleet(tmp_path, capsys):
    fleets.write(ONE, tmp_path / "fleet")
    shutil.rmtree(tmp_path / "fleet" / "rho0-seed0")
    (tmp_path / "fleet" / "fleet.json").write_bytes(b"\xff\xfe{")
    assert "fleet.json" in said(capsys, ["resume", str(tmp_path / "fleet")])
