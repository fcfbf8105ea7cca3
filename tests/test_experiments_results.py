"""Results of experiments from records that are made up, for every one of them."""

import dataclasses
import importlib
import json

import pytest
from fleets import SPEC
from made_runs import write_run

from sphere.experiments import find, gather, registry
from sphere.experiments.arms import Arm
from sphere.experiments.beside_paper import last_value, value_at
from sphere.experiments.configs import same_run, singles
from sphere.experiments.experiment import Experiment, Found
from sphere.experiments.gather import schedule_of, wanted
from sphere.experiments.results_pages import code_of
from sphere.report import paper
from sphere.report.comparison_tables import paper_cell
from sphere.report.tables import MeanStd
from sphere.training.describe import run_records
from sphere.training.settings import FleetConfig, to_json

NAMES = list(registry())
NETWORKS = ("feature-rank", "gate-expert", "kfac", "kronecker", "tsne")
"""These look at checkpoints, not only at records."""
STREAMS = ("cifar100-mlp", "cifar100-vit", "newsgroups")
"""Labelled tasks: an outcome is a test set, and comes at the end of a task only."""


def made_scale(config: FleetConfig, scale: str, seeds: tuple[int, ...]) -> FleetConfig:
    """Three iterations of 1,000 steps in each of two tasks: what `made_runs` writes."""
    learner, source = config.learner, config.source
    if source.kind == "stream":
        learner = dataclasses.replace(learner, examples=1000, batch_size=100)
        source = dataclasses.replace(source, per_class=1000 // source.classes)
    elif source.kind == "offline":
        learner = dataclasses.replace(learner, rollout_steps=1000)
    else:
        learner = dataclasses.replace(learner, num_envs=10, rollout_steps=100, batch_size=100)
    short = dataclasses.replace(config.evaluation, episodes=4)
    return dataclasses.replace(
        config,
        tasks=config.tasks[:2],
        steps_per_task=3000,
        seeds=seeds,
        learner=learner,
        source=source,
        evaluation=short,
    )


@pytest.fixture
def made(tmp_path, monkeypatch):
    """An experiment by name, with all its runs made up."""
    monkeypatch.setattr(gather, "at_scale", made_scale)

    def make(name: str, seeds=(0, 1), arms: int | None = None, stop_at: int | None = None) -> Found:
        """`arms`: only so many of them; `stop_at`: runs that are not finished."""
        experiment = find(name)
        schedule = schedule_of(experiment, "paper", seeds, tmp_path / name)
        places = schedule.runs
        for job in schedule.jobs:
            job.directory.mkdir(parents=True, exist_ok=True)
            fleet = {"format": 2, "spec": SPEC, "settings": to_json(job.config)}
            (job.directory / "fleet.json").write_text(json.dumps(fleet))
        for one in wanted(experiment, "paper", seeds)[:arms]:
            for single in singles(one.config).values():
                (record,) = run_records(single, SPEC)
                whole = json.loads(json.dumps(record.config))
                few = json.loads(json.dumps(record.config))
                actor = few["settings"]["learner"]["actor"]
                actor["experts"] = min(actor["experts"], 16)
                path = write_run(places[same_run(single)], few, stop_at=stop_at)
                (path / "config.json").write_text(json.dumps(whole))
        return gather.gather(experiment, "paper", seeds, tmp_path / name)

    return make


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NETWORKS])
def test_results_follow_from_records(name, made):
    """Success at the end of every task is 3/4 in all made-up runs: every average must say so."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    found = made(name)
    assert not [note for note in found.loaded.notes if "skipped" in note]
    results = find(name).results(found)
    assert results.tables
    assert all(figure is not None for figure in results.figures.values())
    for table in results.tables:
        assert table.rows
        assert table.text()
        columns = [i for i, column in enumerate(table.columns) if column in ("success", "mean")]
        for row in table.rows:
            for i in columns:
                assert isinstance(row[i], MeanStd)
                assert row[i].mean == pytest.approx(0.75), (name, row)
    pyplot.close("all")


def test_results_of_runs_in_their_first_task(made):
    """One arm of each experiment, in its first task: what is missing is a dash, not an error."""
    importlib.import_module("matplotlib").use("agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    for name in NAMES:
        if name not in NETWORKS:
            found = made(name, (0,), arms=1, stop_at=1000)
            for table in find(name).results(found).tables:
                assert table.text()
            pyplot.close("all")


def test_tables_of_rows_and_columns_have_those_of_the_paper(made):
    """Else a number of the paper would be missing beside ours."""
    for name in ("activation", "dense-backbones", "expert-count", "layernorm", "structures"):
        (table,) = find(name).results(made(name)).tables
        theirs = paper.TABLES[find(name).source]
        rows = [row[0] for row in table.rows]
        columns = [column for column in table.columns if column and not column.startswith("paper")]
        assert rows == [row for row in theirs if row in rows], name
        assert rows == list(theirs) or name == "layernorm"  # the other rows are of other learners
        assert all(columns == list(theirs[row]) for row in rows), name


def test_the_papers_numbers_stand_beside_ours(made):
    (table, *_) = find("activation").results(made("activation")).tables
    assert table.columns == ("", "Top-K MoE", "paper, Top-K MoE", "SPHERE", "paper, SPHERE")
    assert table.rows[1] == [
        "Tanh",
        MeanStd(0.75, 0.0),
        MeanStd(0.36, 0.10),
        MeanStd(0.75, 0.0),
        MeanStd(0.58, 0.17),
    ]
    (table, *_) = find("retention").results(made("retention")).tables
    # the final policy: 3/4 on the last of two tasks, 1/4 on the first
    assert table.rows[1] == ["SPHERE", MeanStd(0.5, 0.0), MeanStd(0.25, 0.05)]
    (table, *_) = find("ten-seeds").results(made("ten-seeds")).tables
    assert table.rows[0][0] == "HumanoidBench CRL, Top-K MoE"
    assert table.rows[0][3:5] == [MeanStd(0.75), MeanStd(0.36)]


@pytest.mark.parametrize("name", STREAMS)
def test_accuracies_of_a_stream_by_both_kinds_of_argmax(name, made):
    """Made-up accuracy is 3/4 by the score's own argmax; over all classes less is right than within the task."""
    (table,) = find(name).results(made(name, (0,))).tables
    assert [row[0] for row in table.rows] == find(name).labels
    within, of_all = (0.75, 0.375) if name == "newsgroups" else (0.875, 0.75)
    for row in table.rows:
        ours = dict(zip(table.columns, row, strict=True))
        assert [ours[column].mean for column in ("within the task", "of all classes")] == [within, of_all]
        score = "within the task" if name == "newsgroups" else "of all classes"
        theirs = paper.TABLES[find(name).source].get(row[0])
        assert ours[f"paper, {score}"] == (paper_cell(theirs["success"]) if theirs else None)
        assert "paper, feature norm" not in ours  # which the paper does not have
        assert ours["feature norm"].mean == 2.0
        assert 8 <= ours["r_e(K)"].mean < 9  # 10 - steps / 3,000 and a part of 1


def test_recorded_data_are_judged_by_the_final_policy(made):
    """3/4 on the last of two tasks, 1/4 on the first."""
    (table,) = find("td3-bc").results(made("td3-bc", (0,))).tables
    ours = dict(zip(table.columns, table.rows[0], strict=True))
    assert [ours[column].mean for column in ("Baseline", "SPHERE")] == [0.5, 0.5]


def test_the_end_of_training_is_that_of_finished_runs(made):
    """A run that has just started says nothing about the end; one run has no deviation."""
    runs = made("load-balance", (0,), stop_at=3000).runs("Top-K MoE")
    assert value_at(runs, "heldout/ntk_rank", 0) is not None
    assert last_value(runs, "heldout/ntk_rank") is None
    runs = made("placement", (0,)).runs("Actor only")
    assert "±" not in last_value(runs, "heldout/ntk_rank").text()


def test_runs_of_a_version_with_fewer_settings_are_found(made, tmp_path):
    made("sign-flip", (0,))
    for path in (tmp_path / "sign-flip").rglob("*.json"):
        config = json.loads(path.read_text())
        if "boundary" in config:
            del config["boundary"]["mitigation"], config["ppo"]["deterministic"]
            path.write_text(json.dumps(config))
    found = gather.gather(find("sign-flip"), "paper", (0,), tmp_path / "sign-flip")
    assert {run.method for run in found.loaded.runs} == set(find("sign-flip").labels)


def test_hours_are_read_from_the_clock_of_the_records(made):
    """A made-up run writes a line every 1,000 steps, with as many seconds: one task of 3,000 steps takes 3,000 s."""
    (table,) = find("runtime").results(made("runtime", (0,))).tables
    assert table.columns[1:3] == ("E=10", "paper, E=10")
    assert table.rows[0][1].mean == pytest.approx(3000 / 3600)


def test_a_page_says_the_code_of_runs_with_and_without_a_checkout():
    versions = {"sphere-rl": "0.2.0"}
    assert code_of({"versions": versions, "git": {"commit": "ca9a3aa1234"}}) == "commit ca9a3aa"
    for none in ({"versions": versions, "git": None}, {"versions": versions}):
        assert code_of(none) == "version 0.2.0, in a copy without git"


def test_runs_that_are_missing_are_named(made, tmp_path):
    found = made("sign-flip", (0,))
    missing = gather.gather(find("sign-flip"), "paper", (0, 1), tmp_path / "sign-flip")
    assert "not started yet: Top-K MoE, rho=0, seed 1; SPHERE, rho=1e-3, seed 1" in missing.loaded.notes[0]
    assert len(missing.loaded.runs) == len(found.loaded.runs) == 3
    made("metaworld-rl", (0,), arms=3)
    (note, *_) = gather.gather(find("metaworld-rl"), "paper", (0,), tmp_path / "metaworld-rl").loaded.notes
    assert note.startswith("not started yet: PPO(10x), push-wall, seed 0; Top-K MoE, hammer, seed 0")
    with pytest.raises(ValueError, match="none of the 2 runs has started"):
        gather.gather(find("expert-choice"), "paper", (0,), tmp_path)


def test_two_names_for_the_same_runs_are_refused():
    twice = Experiment("", "", (Arm("one"), Arm("two")), lambda found: None)
    with pytest.raises(ValueError, match="one and two are the same runs"):
        wanted(twice, "smoke")
