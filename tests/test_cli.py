"""The command line as a newcomer types it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import processes
import pytest
from fleets import SMALL, TINY, Hold, changed
from made_runs import settings, write_run

import sphere.__main__ as entry
from sphere.cli import render
from sphere.cli.main import main, run
from sphere.cli.resume import show_text
from sphere.presets import PRESETS
from sphere.training import loop, plan
from sphere.training.settings import from_json, to_json


def test_train_show_eval_and_resume(tmp_path, capsys):
    out = str(tmp_path / "fleet")
    words = ["train", "--preset", "probe-crl", "--tasks", "reach-north", "reach-east", "--seeds", "0", "3"]
    assert main([*words, "--rho", "0", "1e-3", *SMALL, "--out", out]) == 0
    saved = from_json(json.loads((tmp_path / "fleet" / "fleet.json").read_text())["settings"])
    assert saved.tasks == ("probe/reach-north", "probe/reach-east")
    runs = [(run.seed, run.numbers["rho"]) for run in saved.runs]
    assert runs == [(0, 0.0), (3, 0.0), (0, 0.001), (3, 0.001)]
    assert saved.learner.actor.width == 8
    capsys.readouterr()
    assert main(["show", out]) == 0
    shown = capsys.readouterr().out
    assert f"{out}: 4 runs, crl, 2 tasks\n" in shown
    assert re.search(r"rho0.001-seed3 +256 +probe/reach-east", shown)
    assert main(["eval", out, "--episodes", "3", "--tasks", "reach-east"]) == 0
    assert "probe/reach-east" in capsys.readouterr().out
    before = (tmp_path / "fleet" / "rho0-seed0" / "metrics.jsonl").read_text()
    assert main(["resume", out]) == 0  # finished: nothing left to do, nothing lost
    said = capsys.readouterr().err
    assert "finished already" in said
    assert "done in" not in said
    assert (tmp_path / "fleet" / "rho0-seed0" / "metrics.jsonl").read_text() == before
    assert main([*words, *SMALL, "--out", out]) == 1
    assert f"sphere resume {out}" in capsys.readouterr().err


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "fleet"
    assert main(["train", "--preset", "probe-crl", *SMALL, "--out", str(out), "--dry-run"]) == 0
    said = capsys.readouterr().out
    for word in ("2 runs as one fleet", "rho0.1-seed0", "parameters per run", "KiB", "time"):
        assert word in said
    assert not out.exists()


def test_a_plan_adds_up_what_happens_in_turns_and_only_that(monkeypatch):
    config = changed(TINY, evaluation=changed(TINY.evaluation, episodes=6))
    evaluated = len(config.evaluations()) / config.iterations_per_task
    envs, steps = config.learner.rollout
    collect = 0.01 * (steps + evaluated * 50 * 6 / envs)

    def seconds(update):
        return plan.iteration_seconds(config, horizon=50, groups=3, collect=0.01 * steps, update=update)

    monkeypatch.setattr(plan.jax, "default_backend", lambda: "cpu")
    assert seconds(0.1) == pytest.approx(collect + 3 * 0.1)
    monkeypatch.setattr(plan.jax, "default_backend", lambda: "gpu")
    assert seconds(0.1) == pytest.approx(collect + 0.1)
    assert seconds(30.0) == pytest.approx(90.0)  # the groups wait for the one device


def test_help(capsys):
    assert main([]) == 0
    assert "resume" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    assert end.value.code == 0
    assert "trust interval" in capsys.readouterr().out  # the docstring under a field is its help


def test_settings_survive_json():
    several = changed(TINY, vary={"learning_rate": (1e-3, 1e-4), "temperature": (0.5,)}, plugins=())
    for config in (TINY, several, *PRESETS.values()):
        assert from_json(json.loads(json.dumps(to_json(config)))) == config
    with pytest.raises(ValueError, match="no setting rhoo"):
        from_json(to_json(TINY) | {"rhoo": 1})


@pytest.mark.parametrize("words", [["train", "--preset", "probe-crl", "--help"], ["--help"]])
def test_a_reader_that_has_seen_enough_is_no_error(words):
    command = [sys.executable, "-m", "sphere", *words]
    process = processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # as `| head` does, before anything is printed
    assert process.stderr.read() == ""
    assert process.wait(processes.PATIENCE) == 141


def test_python_m_sphere_is_the_same_program():
    assert entry.run is run


def test_ctrl_c_before_the_first_iteration_leaves_cleanly(tmp_path):
    """While threads compile: the interpreter must not end under them."""
    command = [sys.executable, "-m", "sphere", "train", "--preset", "probe-crl", "--out", str(tmp_path / "fleet")]
    command += ["--ppo.rollout-steps", "51200"]  # a first iteration without an end: hundreds of thousands of steps
    # without what earlier tests compiled: else threads may be past it before the signal comes
    hold = Hold(tmp_path / "hold", iterations=1)
    environment = os.environ | hold.environment | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = processes.start(command, stderr=subprocess.PIPE, env=environment)
    processes.until(lambda: hold.done(tmp_path / "fleet") == 0, process)  # it is in its first iteration
    process.send_signal(signal.SIGINT)
    # Two signals while the main thread is in XLA would count as one: the second comes when the first was understood.
    _, compiling, heard = (process.stderr.readline() for _ in range(3))  # the first says what the lines mean
    process.send_signal(signal.SIGINT)  # leaves at once
    said = process.stderr.read()
    process.wait()
    assert compiling.startswith("compiling"), compiling + heard + said
    assert heard.startswith("stopping:"), heard + said
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert re.search(rf"nothing was saved yet: .*sphere resume {tmp_path / 'fleet'}", said)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["train", "--preset", "probe-crl", *SMALL], "sphere resume"),
        (["heldout", "metaworld", "--work", "work"], "the same command"),
        (["experiment", "run", "metaworld-crl", "--out", "runs"], "repeat the command"),
    ],
)
def test_training_that_ctrl_c_ended_in_good_order_has_its_exit_code_too(words, advice, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise loop.Interrupted("stopped after step 64; continue with: sphere resume it")

    monkeypatch.setattr(loop, "train", stop)
    monkeypatch.chdir(tmp_path)
    assert main(words) == 130
    said = capsys.readouterr().err
    assert "stopped after step 64" in said
    assert advice in said


def test_any_number_of_a_run_can_vary_and_names_it(tmp_path, capsys):
    words = ["train", "--preset", "probe-crl", "--rho", "0.1", *SMALL, "--out", str(tmp_path / "fleet")]
    assert main([*words, "--vary", "learning-rate=1e-3,1e-4", "temperature=0.5", "--tasks", "reach-north"]) == 0
    found = {path.parent.name for path in (tmp_path / "fleet").glob("*/config.json")}
    assert found == {f"rho0.1-learning_rate{rate}-temperature0.5-seed0" for rate in ("0.001", "0.0001")}
    config = json.loads((tmp_path / "fleet" / min(found) / "config.json").read_text())
    assert config["varies"] == ["rho", "learning_rate", "temperature"]
    assert config["numbers"]["learning_rate"] == 1e-4
    events = (tmp_path / "fleet" / min(found) / "metrics.jsonl").read_text().splitlines()
    # half of the task is done after the first of two iterations: half way to the preset's final 3e-4
    assert json.loads(events[0])["train/learning_rate"] == pytest.approx(2e-4)
    with np.load(max((tmp_path / "fleet").glob("checkpoint-*.npz"))) as file:
        (temperature,) = [file[name] for name in file.files if "nets/actor" in name and "temperature" in name]
    np.testing.assert_array_equal(temperature, 0.5)
    capsys.readouterr()
    for wrong, sentence in (
        ("learning_rat=1", "did you mean learning_rate?"),
        ("learning_rate", "want NAME=VALUE,VALUE"),
    ):
        assert main([*words[:-1], str(tmp_path / "other"), "--vary", wrong]) == 1
        assert sentence in capsys.readouterr().err


def test_version_and_a_damaged_fleet(tmp_path, capsys):
    assert main(["--version"]) == 0
    assert re.match(r"sphere \d+\.\d+", capsys.readouterr().out)
    (tmp_path / "fleet.json").write_text("{")
    assert main(["show", str(tmp_path)]) == 1
    assert f"{tmp_path / 'fleet.json'} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "used"), [(None, "false"), ("true", "true")])
def test_a_gpus_memory_is_left_to_other_fleets_unless_somebody_says_otherwise(given, used, monkeypatch):
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.delenv(name)  # so that it is put back in the end
    if given:
        monkeypatch.setenv(name, given)
    main(["--version"])
    assert os.environ[name] == used


def test_one_run_is_not_one_runs(tmp_path, capsys):
    config = changed(TINY, seeds=(0,), rho=(0.0,), tasks=TINY.tasks[:1])
    assert show_text(config, tmp_path).startswith(f"{tmp_path}: 1 run, crl, 1 task\n")
    write_run(tmp_path / "runs" / "a", settings())
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "out"), "--no-figures"]) == 0
    assert capsys.readouterr().out.startswith("1 run: ")
    assert main(["export", str(tmp_path / "runs"), "-o", str(tmp_path / "copy")]) == 0
    assert capsys.readouterr().out.startswith("1 run: ")


def test_eval_of_an_rl_fleet_is_of_the_task_it_is_at(tmp_path, capsys):
    out = str(tmp_path / "fleet")
    words = ["train", "--preset", "probe-rl", "--tasks", "reach-north", "reach-east", "--rho", "0"]
    assert main([*words, *SMALL, "--out", out]) == 0
    capsys.readouterr()
    assert main(["eval", out, "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    assert "these are the policies of probe/reach-east" in said
    assert not re.search("^probe/reach-north", said, re.MULTILINE)
    assert main(["eval", out, "--tasks", "reach-nort"]) == 1
    assert "did you mean probe/reach-north?" in capsys.readouterr().err


def test_metaworld_trains_resumes_and_is_filmed(capsys, tmp_path):
    out, gif = str(tmp_path / "fleet"), tmp_path / "episode.gif"
    words = ["train", "--preset", "metaworld-crl", "--tasks", "window-close", "faucet-close", "--rho", "0.1"]
    short = ["--horizon", "12", "--one-hot", "True", "--normalise-observations"]
    assert main([*words, *SMALL, *short, "--out", out]) == 0
    assert main(["resume", out, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["render", out, "--out", str(tmp_path / "episode.txt")]) == 1
    assert "name a .gif or an .mp4" in capsys.readouterr().err
    assert main(["render", out, "--run", "rho0-seed0"]) == 1
    assert "did you mean rho0.1-seed0?" in capsys.readouterr().err
    if main(["render", out, "--task", "window-close", "--out", str(gif)]) == 1:
        error = capsys.readouterr().err
        assert "cannot be drawn off-screen here" in error
        pytest.skip(error)
    said = capsys.readouterr()
    assert "filming rho0.1-seed0 on metaworld/window-close, at most 12 steps" in said.err
    assert "rho0.1-seed0 on metaworld/window-close, 12 steps" in said.out
    assert gif.read_bytes()[:4] == b"GIF8"


@pytest.mark.parametrize("name", ["episode.gif", "episode.mp4"])
@pytest.mark.parametrize("kept", [b"the film before", None])
def test_a_film_that_cannot_be_finished_leaves_what_was_there(name, kept, tmp_path, monkeypatch):
    def cut_off(path, *_, **__):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    out = tmp_path / name
    if kept:
        out.write_bytes(kept)
    with monkeypatch.context() as patch:
        patch.setattr(imageio, "imwrite", cut_off)
        with pytest.raises(KeyboardInterrupt):
            render.write([np.zeros((4, 4, 3), np.uint8)], out)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == ({name: kept} if kept else {})
    render.write([np.full((4, 4, 3), 50 * i, np.uint8) for i in range(3)], tmp_path / "episode.gif")
    assert len(imageio.imread(tmp_path / "episode.gif")) == 3
    assert not list(tmp_path.glob("*partial*"))
