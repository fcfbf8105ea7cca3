"""Mistakes on the command line: each is answered with a sentence, before anything is written."""

import json
import subprocess
import sys

import pytest
from fleets import SMALL, SPEC, TINY

from sphere.cli.main import main
from sphere.envs.metaworld_origin import simulator
from sphere.training import loop
from sphere.training.settings import to_json


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("fleet.json", "[1]", "not the settings of a fleet"),
        ("fleet.json", "{}", "not the settings of a fleet"),
        ("fleet.json", '{"tasks": ["probe/reach-north"]}', "another version wrote it"),
        ("lock", "", "train into it again"),
        ("rho0-seed0/config.json", "{}", "see: sphere report"),
        ("config.json", "{}", "name the directory above it"),
    ],
)
def test_what_is_no_fleet_is_told_apart(tmp_path, capsys, file, text, sentence):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    for command in ("show", "resume"):
        assert main([command, str(tmp_path)]) == 1
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "did you mean train?"),
        (["train"], "add --preset NAME"),
        (["train", "--preset", "probe-clr"], "did you mean probe-crl?"),
        (["train", "--preset", "probe-crl", "--tasks", "reach-nort"], "did you mean probe/reach-north?"),
        (["train", "--preset", "probe-crl", "--tasks=reach-nort"], "did you mean probe/reach-north?"),
        (["train", "--preset", "probe-crl", "--seeds", "0", "0"], "is given twice"),
        (["train", "--preset", "probe-crl", "--seeds", str(2**32)], "below 2**32"),
        (["train", "--preset", "probe-crl", "--out", ""], "name one for the records"),
        (["verify", "metaworld", "--steps", "0"], "nothing would be compared"),
        (["resume", "nowhere"], "nowhere does not exist; name the directory"),
        (["report", "nowhere"], "nowhere does not exist; name a directory"),
        (["show", "."], ". holds no fleet"),
        (["verify", "update", "one.npz", "two.npz"], "usage: sphere verify update [FILE]"),
        (["verify", "update", "nowhere.npz"], "not a readable"),
        (["bench", "penlty"], "did you mean penalty?"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(words, sentence, capsys):
    """And with nothing before it."""
    assert main(words) == 1
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("sphere: ")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "words",
    [
        "update --fleets 0",
        "update --batch 0",
        "train --iterations 0",
        "methods --fleets 1 0",
        "pool --envs -1",
        "env --rounds 0",
    ],
)
def test_benchmarks_of_nothing_are_refused(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench", *words.split()])
    assert end.value.code == 2
    assert "want a whole number, at least 1" in capsys.readouterr().err


def test_impossible_settings_are_answered_too(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--preset", "probe-crl", "--ppo.batch-size", "100"])
    assert "64, 128, 256" in " ".join(capsys.readouterr().err.split())


def test_rho_that_is_no_tuple_of_numbers_is_refused():
    """In a process of its own: in this one types are checked before the settings are."""
    program = """
import dataclasses
from sphere.presets import preset
for rho in ("0.1", ("0.1",), 0.1, (None,)):
    try:
        dataclasses.replace(preset("probe-crl"), rho=rho)
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.count("wanted numbers in a tuple, as (0.0, 0.1)") == 4


def test_a_mistyped_option_is_answered_with_the_nearest_one(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--preset", "probe-crl", "--sedes", "0"])
    assert "--seeds" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named_without_a_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    simulator.cache_clear()  # a test before may have found it, and this one would train for ever
    words = ["train", "--preset", "metaworld-crl", "--workers", "0", "--out", str(tmp_path / "fleet")]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "pip install" in said
    assert "Traceback" not in said


def test_a_setting_of_another_kind_is_named(tmp_path, capsys):
    settings = to_json(TINY)
    settings["source"]["workers"] = "2"
    (tmp_path / "fleet.json").write_text(json.dumps({"format": 2, "spec": SPEC, "settings": settings}))
    assert main(["show", str(tmp_path)]) == 1
    assert "fleet.json cannot be read" in capsys.readouterr().err


def test_no_held_out_states_are_refused_before_training_for_them(monkeypatch, capsys):
    monkeypatch.setattr(loop, "train", lambda *_, **__: pytest.fail("it trains"))
    assert main(["heldout", "metaworld", "--states", "0"]) == 1
    assert "want at least 1" in capsys.readouterr().err


def test_an_error_while_training_is_no_interruption(monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(loop, "train", fail)
    assert main(["train", "--preset", "probe-crl", *SMALL]) == 1
    assert "out of memory" in capsys.readouterr().err


SETTINGS = (
    "--checkpoint-every=0 --evaluation.every=0 --evaluation.heldout=-1 --evaluation.episodes=0 --steps-per-task=0 "
    "--ppo.learning-rate=nan --ppo.learning-rate=-1 --ppo.gamma=1.5 --ppo.epochs=0 --rho=nan --seeds=-1 --workers=-1 "
    "--ppo.max-grad-norm=0 --ppo.max-grad-norm=-1 --ppo.max-grad-norm=nan --ppo.max-grad-norm=inf"
)


def refused(words):
    try:
        code = main(words)
    except SystemExit as end:  # by the parser
        code = end.code
    assert code not in (0, None)


@pytest.mark.parametrize("option", SETTINGS.split())
def test_numbers_that_mean_nothing_are_refused_before_anything_is_written(option, tmp_path, capsys):
    out = tmp_path / "fleet"
    refused(["train", "--preset", "probe-crl", *SMALL, option, "--out", str(out)])
    said = capsys.readouterr().err
    assert option.split("=")[0].split(".")[-1].strip("-").replace("-", "_") in said
    assert "Traceback" not in said
    assert not out.exists()


def test_runs_whose_names_would_be_the_same_are_refused(capsys):
    refused(["train", "--preset", "probe-crl", "--rho", "0.1", "0.1000000001"])
    assert "is given twice" in capsys.readouterr().err


def test_a_setting_that_a_suite_does_not_have_is_refused(capsys, tmp_path):
    words = ["train", "--preset", "probe-crl", *SMALL, "--horizon", "200", "--out", str(tmp_path / "fleet")]
    assert main(words) == 1
    assert "the suite 'probe' has no setting 'horizon'; it has none" in capsys.readouterr().err
