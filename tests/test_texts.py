"""What commands say: no lists of hundreds of tasks, only columns that exist, and refusals before any work begins."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from fleets import SPEC, TINY, changed, write
from made_runs import write_run

from sphere import envs
from sphere.algos.classifier import Classifier
from sphere.cli import resume as commands
from sphere.cli.main import main
from sphere.cli.resume import show_text
from sphere.data.streams import Stream
from sphere.errors import UserError
from sphere.nets import NetConfig
from sphere.presets import preset
from sphere.training import plan
from sphere.training.describe import run_records
from sphere.training.loop import train
from sphere.training.settings import Evaluation, FleetConfig, listed

ROOT = Path(__file__).parents[1]
DIFFERENT = ("probe/reach-north", "probe/best-action")
STREAM = FleetConfig(
    tasks=tuple(f"squares/{i}" for i in range(12)),
    steps_per_task=3000,
    rho=(0.0, 0.1),
    learner=Classifier(examples=1000, batch_size=100, actor=NetConfig(width=8, depth=1, experts=3)),
    source=Stream(classes=2, per_class=500, drawn=True),
    evaluation=Evaluation(heldout=8),
)


def test_many_tasks_are_named_by_the_first_and_the_last():
    assert listed(preset("newsgroups").tasks) == "newsgroups/0 ... newsgroups/399"
    assert listed(("a/x", "a/y")) == "a/x, a/y"
    assert len(listed(preset("metaworld-crl").tasks).split(", ")) == 10


def test_a_plan_names_some_tasks_and_their_number(tmp_path, monkeypatch):
    for measured in ("_collect_seconds", "_update_seconds"):
        monkeypatch.setattr(plan, measured, lambda fleet: 1.0)  # nothing of them is looked at, and they compile
    text = plan.plan(changed(TINY, tasks=6 * TINY.tasks, seeds=(0,), rho=(0.0,)), tmp_path)
    assert "  tasks      probe/reach-north ... probe/reach-east (12 tasks, crl)\n" in text


def test_help_names_some_tasks(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--preset", "newsgroups", "--help"])
    said = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "(default: newsgroups/0 ... newsgroups/399)" in said
    assert "newsgroups/7" not in said


def test_tasks_of_several_suites_are_refused_in_a_line():
    with pytest.raises(ValueError, match=r"several suites .*: probe/a ... metaworld/hammer$"):
        changed(TINY, tasks=(*["probe/a"] * 300, "metaworld/hammer"))


def shown(config, tmp_path):
    """`sphere show` of a fleet whose runs are made up: the table's head, and a line of numbers by run."""
    write(config, tmp_path / "fleet")
    for record in run_records(config, SPEC):
        path = tmp_path / "fleet" / record.name
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
        write_run(path, json.loads(json.dumps(record.config)))
    text = show_text(config, tmp_path / "fleet")
    head, *rows = text[text.index("\nrun ") :].strip().splitlines()
    return text, head.split(), [row.split() for row in rows]


def test_show_has_the_columns_of_a_stream(tmp_path):
    text, head, rows = shown(STREAM, tmp_path)
    assert head == ["run", "step", "task", "accuracy", "r_e(K)"]
    assert [row[:4] for row in rows[:2]] == [[run.name, "36,000", "squares/11", "0.75"] for run in STREAM.runs]
    assert all(len(row) == 5 for row in rows[:2])
    assert "nan" not in text
    assert re.search(r"^  tasks +squares/0 ... squares/11$", text, re.MULTILINE)


def test_show_has_return_where_there_is_one(tmp_path):
    config = changed(TINY, steps_per_task=3000, seeds=(0,), rho=(0.1,), evaluation=Evaluation(episodes=4, heldout=0))
    _, head, rows = shown(config, tmp_path)
    assert head == ["run", "step", "task", "success", "return"]
    assert rows[0] == ["rho0.1-seed0", "6,000", "probe/reach-east", "0.75", "3.00"]


def test_show_has_the_latest_diagnosis_there_is():
    assert commands._latest(np.array([3.0, 4.5, np.nan])) == "4.50"
    assert commands._latest(np.array([np.nan])) == commands._latest(None) == "-"


@pytest.mark.parametrize("begin", [train, plan.plan], ids=["train", "dry run"])
@pytest.mark.parametrize("protocol", ["crl", "rl"])
def test_tasks_of_different_sizes_are_refused_at_the_start(begin, protocol, tmp_path):
    message = "probe/reach-north has 6 numbers in an observation and 2 in an action, probe/best-action has 1 and 1"
    with pytest.raises(UserError, match=message):
        begin(changed(TINY, tasks=DIFFERENT, protocol=protocol), tmp_path / "fleet")
    assert not (tmp_path / "fleet" / "fleet.json").exists()


def test_one_task_and_suites_of_one_size_start_nothing(monkeypatch):
    monkeypatch.setattr(envs, "make", None)
    envs.check_sizes(("probe/reach-north", "probe/reach-north"), {})
    envs.check_sizes(preset("metaworld-crl").tasks, {})
    envs.check_sizes(preset("humanoidbench-crl").tasks, {})
    with pytest.raises(TypeError):
        envs.check_sizes(DIFFERENT, {})


def test_texts_say_continue():
    for path in sorted(ROOT.glob("sphere/**/*.py")):
        assert "go on with" not in path.read_text(), path
