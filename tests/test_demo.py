"""The demo keeps what is there, goes on with it, and shows the records' own numbers; several methods by one command."""

import hashlib
import io
import json
import sys
from pathlib import Path

import fleets
import numpy as np
import pytest

from sphere.algos.source import Outcomes
from sphere.cli import demo
from sphere.cli.main import main
from sphere.launch.jobs import FLEETS
from sphere.storage import checkpoint, files
from sphere.storage.fleet_directory import FleetDirectory
from sphere.training import loop, progress
from sphere.training.describe import method_names, run_records
from sphere.training.settings import to_json

PNG = b"\x89PNG"


class Trained:
    """In the place of training: notes what it is asked for and leaves what training leaves."""

    def __init__(self, stop_in: str | None = None):
        self.calls: list[tuple[Path, bool]] = []
        self.stop_in = stop_in

    def __call__(self, config, directory, *, resume=False, quiet=False):
        self.calls.append((directory, resume))
        directory.mkdir(parents=True, exist_ok=True)
        files.write_json(directory / "fleet.json", {"format": files.FORMAT, "spec": {}, "settings": to_json(config)})
        if self.stop_in == directory.name:
            self.stop_in = None
            raise loop.Interrupted("stopped after step 64; continue with: sphere resume it")
        write_evaluations(config, directory)
        checkpoint.save(directory, config.total_iterations, {}, {})


EPISODES = 10


def write_evaluations(config, directory: Path) -> None:
    """Two on each task. Seed 0 has success 0.2, 0.4 on the first task, seed 1 twice that; more with the penalty."""
    records = FleetDirectory(directory, run_records(config, fleets.SPEC), None, resume=False)
    records.begin(None, None)
    for place in range(4):
        share = np.array([(0.2 + 0.2 * (place % 2)) * (1 + run.seed) + run.numbers["rho"] for run in config.runs])
        number = np.tile(np.arange(EPISODES), len(config.runs))
        reached = number < np.repeat(np.round(share * EPISODES), EPISODES)
        columns = {"return": 0.0 * number, "length": number, "success_once": reached, "success_at_end": reached}
        found = Outcomes(np.repeat(np.arange(len(config.runs)), EPISODES), number, columns)
        step, index = 640 * (place // 2) + 64 * (place % 2 + 1), place // 2
        records.episodes(step, config.tasks[index], index, "evaluation", found)
        means = found.means(len(config.runs))
        values = [
            {f"evaluation/{name}": mean for name, mean in one.items()} | {"heldout/ntk_rank": 10.0 + place + run.seed}
            for one, run in zip(means, config.runs, strict=True)
        ]
        records.event(step, values, config.tasks[index], index)
    records.close()


@pytest.fixture
def trained(monkeypatch, tmp_path):
    fake = Trained()
    monkeypatch.setattr(loop, "train", fake)
    monkeypatch.setattr(demo, "DEMO", fleets.TINY)
    monkeypatch.chdir(tmp_path)
    return fake


TABLE = """\
                    reach-north          reach-east     r_e(K), first -> last
Top-K              0.30 -> 0.60        0.30 -> 0.60            10.50 -> 13.50
SPHERE             0.40 -> 0.70        0.40 -> 0.70            10.50 -> 13.50
"""


def test_a_second_demo_shows_the_first_and_trains_nothing(trained, capsys):
    assert main(["demo"]) == 0
    first = capsys.readouterr().out
    assert TABLE in first
    (Path("runs/demo") / "demo.png").unlink()
    assert main(["demo"]) == 0
    second = capsys.readouterr().out
    assert TABLE in second
    assert "already finished, in runs/demo" in second
    assert (Path("runs/demo") / "demo.png").read_bytes().startswith(PNG)
    assert trained.calls == [(Path("runs/demo"), False)]
    assert not Path("runs/demo-2").exists()


@pytest.mark.parametrize(
    ("before", "now", "code", "sentence"),
    [
        ('"heldout/ntk_rank": 10.0', '"heldout/ntk_rank": 99.0', 0, "metrics.jsonl was changed"),
        (
            '"evaluation/success_at_end": 0.2',
            '"evaluation/success_at_end": 0.9',
            1,
            "cannot be read: metrics.jsonl says",
        ),
        ('"heldout/ntk_rank"', '"heldout/rank"', 1, "lacks evaluations of a finished demo"),
    ],
)
def test_a_demo_whose_records_were_changed_says_so(before, now, code, sentence, trained, capsys):
    """Its table goes through the reader of all records."""
    assert main(["demo"]) == 0
    runs = Path("runs/demo")
    sums = {
        path.name: {
            name: {"bytes": None, "sha256": hashlib.sha256((path / name).read_bytes()).hexdigest()}
            for name in ("config.json", "metrics.jsonl", "episodes.jsonl")
        }
        for path in runs.glob("rho*")
    }
    checkpoint.save(runs, fleets.TINY.total_iterations, {}, {"checksums": sums})
    assert main(["demo"]) == 0
    capsys.readouterr()
    record = runs / "rho0-seed0" / "metrics.jsonl"
    assert before in record.read_text()
    record.write_text(record.read_text().replace(before, now))
    assert main(["demo"]) == code
    assert sentence in capsys.readouterr().err


def test_a_demo_that_was_stopped_goes_on_and_draws_its_figure(trained, capsys):
    trained.stop_in = "demo"
    assert main(["demo"]) == 130
    said = capsys.readouterr().err
    assert "stopped after step 64; continue with: " in said
    assert said.rstrip().endswith("sphere demo")
    assert main(["demo"]) == 0
    assert "Continuing runs/demo" in capsys.readouterr().out
    assert trained.calls == [(Path("runs/demo"), False), (Path("runs/demo"), True)]
    assert Path("runs/demo/demo.png").exists()


def test_resume_of_a_demo_ends_with_table_and_figure_too(trained, capsys):
    trained.stop_in = "demo"
    main(["demo"])
    assert main(["resume", "runs/demo"]) == 0
    assert TABLE in capsys.readouterr().out
    assert Path("runs/demo/demo.png").exists()


def test_a_demo_goes_beside_what_is_something_else(trained, capsys):
    other = Path("runs/demo")
    fleets.write(fleets.changed(fleets.TINY, seeds=(5,)), other)
    before = sorted(path.name for path in other.iterdir())
    Path("runs/demo-2").mkdir()
    (Path("runs/demo-2") / "lock").touch()  # left by one that was ended as it began
    assert main(["demo"]) == 0
    assert trained.calls == [(Path("runs/demo-2"), False)]
    assert sorted(path.name for path in other.iterdir()) == before
    assert main(["demo", "--out", str(other)]) == 1
    assert "runs/demo is not a demo" in capsys.readouterr().err


def test_printed_commands_can_be_pasted(tmp_path, monkeypatch):
    place = tmp_path / "some where" / "bin"
    place.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert progress.command("show", Path("runs/a b")) == "'some where/bin/python' -m sphere show 'runs/a b'"
    script = place / "sphere"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert progress.command("demo") == "'some where/bin/sphere' demo"
    monkeypatch.setenv("PATH", str(place))
    assert progress.command("demo") == "sphere demo"
    other = tmp_path / "other"  # a sphere of another environment is not this one
    other.mkdir()
    (other / "sphere").write_text("")
    (other / "sphere").chmod(0o755)
    monkeypatch.setenv("PATH", str(other))
    assert progress.command("demo") == "'some where/bin/sphere' demo"


# What is said while it trains


class Terminal(io.StringIO):
    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def isatty(self):
        return True

    def write(self, text):
        self.lines.append(text)
        return len(text)


def test_compiling_is_said_and_not_in_the_time_left_and_no_task_has_the_score_of_another(monkeypatch):
    now, screen = [0.0], Terminal()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", screen)
    shown = progress.Progress(1000)
    shown.start()
    assert "compiling" in screen.lines[-1]

    def advance(seconds, task, done):
        now[0] += seconds
        shown.advance(task, done)
        return screen.lines[-1]

    assert "left" not in advance(60, "one", 100)  # it has compiled for a minute
    assert "10 steps/s  1m20s left" in advance(10, "one", 200)
    now[0] += 90  # the first evaluation compiles too
    shown.evaluation({"Top-K MoE": 0.25, "SPHERE": 0.5})
    assert "left" not in screen.lines[-1]
    line = advance(5, "one", 300)
    assert "Top-K MoE 0.25  SPHERE 0.50" in line
    assert "20 steps/s  0m35s left" in line
    assert "0.25" not in advance(5, "two", 400)


def test_methods_of_a_fleet_have_names():
    runs = fleets.TINY.runs
    assert method_names(fleets.TINY, [runs[0], runs[2]]) == ["Top-K MoE", "SPHERE"]
    more = fleets.changed(fleets.TINY, rho=(0.1, 0.2))
    assert method_names(more, [more.runs[0], more.runs[2]]) == ["SPHERE (rho 0.1)", "SPHERE (rho 0.2)"]


# Several methods


METHODS = ["train", "--preset", "probe-crl", "--method", "none", "sphere", "cbp", "--out", "three"]


def test_several_methods_are_a_fleet_each_and_one_resume_goes_on_with_all(trained, capsys):
    trained.stop_in = "sphere"
    words = [*METHODS, "--rho", "0.1", "0.2", "--cbp.maturity", "7", "--seeds", "3"]
    assert main(words) == 130
    assert capsys.readouterr().err.rstrip().endswith("sphere resume three")
    assert list(json.loads(Path("three", FLEETS).read_text())["fleets"]) == ["none", "sphere", "cbp"]
    assert main(words) == 1
    assert "three holds a fleet already" in capsys.readouterr().err
    assert main(["show", "three"]) == 1
    assert "name one of three/none, three/sphere, three/cbp" in capsys.readouterr().err
    assert main(["resume", "three"]) == 0
    assert "sphere report three -o three-report" in capsys.readouterr().err
    assert trained.calls == [
        (Path("three/none"), False),
        (Path("three/sphere"), False),
        (Path("three/sphere"), True),
        (Path("three/cbp"), False),
    ]
    runs = {
        place.parent.name: {one.name for one in place.parent.glob("*seed*")}
        for place in Path("three").glob("*/fleet.json")
    }
    assert runs == {"none": {"rho0-seed3"}, "sphere": {"rho0.1-seed3", "rho0.2-seed3"}, "cbp": {"rho0-seed3"}}
    assert (
        json.loads(Path("three/cbp/fleet.json").read_text())["settings"]["learner"]["methods"]["cbp"]["maturity"] == 7
    )


def test_a_method_is_named_once(trained, capsys):
    assert main([*METHODS, "--method", "cbp"]) == 1
    assert "names cbp twice" in capsys.readouterr().err
    assert not trained.calls
