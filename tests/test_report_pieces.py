"""Tasks that were trained from scratch in several pieces count as one run; nothing else is put together."""

import json

import numpy as np
import pytest
from made_runs import TASKS, settings, write_run

from sphere.report.comparison import comparisons
from sphere.report.load import load
from sphere.report.scores import own_scores, segment_scores
from sphere.report.summary import averages
from sphere.storage.provenance import devices


def write_pieces(root, parts, seeds=(0, 1), **changes):
    for number, tasks in enumerate(parts):
        for seed in seeds:
            config = settings(seed, protocol="rl", tasks=list(tasks), **changes)
            write_run(root / f"part{number}" / f"rho0-seed{seed}", config)
    return root


def test_pieces_are_what_the_whole_run_is(tmp_path):
    pieces = load([write_pieces(tmp_path / "pieces", [TASKS[:1], TASKS[1:]])]).runs
    for seed in (0, 1):
        write_run(tmp_path / "whole" / f"seed{seed}", settings(seed, protocol="rl"))
    whole = load([tmp_path / "whole"]).runs
    assert [run.seed for run in pieces] == [0, 1]
    for ours, theirs in zip(pieces, whole, strict=True):
        assert ours.tasks == theirs.tasks == TASKS
        assert ours.finished
        assert (ours.steps, ours.method, ours.config) == (theirs.steps, theirs.method, theirs.config)
        for name in ("step", "task"):
            np.testing.assert_array_equal(getattr(ours.curve, name), getattr(theirs.curve, name))
            np.testing.assert_array_equal(getattr(ours.episodes, name), getattr(theirs.episodes, name))
        assert ours.curve.values.keys() == theirs.curve.values.keys()
        for name in ("evaluation/success_at_end", "evaluation/return", "standardised/ntk_rank"):
            np.testing.assert_array_equal(ours.curve.values[name], theirs.curve.values[name])
        np.testing.assert_array_equal(ours.episodes.columns["success_once"], theirs.episodes.columns["success_once"])
    for scores in (own_scores, segment_scores):
        np.testing.assert_array_equal(scores(pieces).scores.table, scores(whole).scores.table)


def test_they_are_named_by_the_first_and_how_many(tmp_path):
    runs = load([write_pieces(tmp_path, [[task] for task in TASKS])]).runs
    assert [run.name for run in runs] == ["part0/rho0-seed0 and 2 more", "part0/rho0-seed1 and 2 more"]


def test_they_take_the_order_of_a_run_on_the_same_tasks(tmp_path):
    write_pieces(tmp_path / "rl", [TASKS[2:], TASKS[:2]])
    for seed in (0, 1):
        write_run(tmp_path / "crl" / f"rho0-seed{seed}", settings(seed))
    (comparison,) = comparisons(load([tmp_path]))
    assert comparison.tasks == TASKS
    assert [(one.protocol, one.runs) for one in averages(comparison)] == [("rl", 2), ("crl", 2)]


def test_all_have_one_order_whatever_their_directories_are_called(tmp_path):
    for seed, names in ((0, ("a", "b", "c")), (1, ("c", "a", "b"))):
        for task, name in zip(TASKS, names, strict=True):
            write_run(tmp_path / f"{name}-seed{seed}", settings(seed, protocol="rl", tasks=[task]))
    write_run(tmp_path / "z1", settings(0, 0.1, protocol="rl", tasks=[TASKS[2]]))
    write_run(tmp_path / "z2", settings(0, 0.1, protocol="rl", tasks=list(TASKS[:2])))
    (comparison,) = comparisons(load([tmp_path]))
    assert len(comparison.runs) == 3
    assert set(comparison.tasks) == set(TASKS)


def test_runs_that_can_be_compared_stay_so_while_others_have_more(tmp_path):
    """Seed 0 is ahead of the others: what all have is what they are compared on."""
    write_pieces(tmp_path, [TASKS[:1]], seeds=(0, 1, 2))
    write_run(tmp_path / "ahead", settings(0, protocol="rl", tasks=[TASKS[1]]))
    found = {one.tasks: len(one.runs) for one in comparisons(load([tmp_path]))}
    assert found == {TASKS[:1]: 3, TASKS[1:2]: 1}


def test_tasks_that_all_have_are_joined_while_some_have_more(tmp_path):
    """A study under way: what is finished everywhere is compared as a whole."""
    write_pieces(tmp_path, [[task] for task in TASKS[:2]], seeds=(0, 1, 2))
    write_run(tmp_path / "ahead", settings(0, protocol="rl", tasks=[TASKS[2]]))
    found = {one.tasks: len(one.runs) for one in comparisons(load([tmp_path]))}
    assert found == {TASKS[:2]: 3, TASKS[2:]: 1}


def test_a_piece_is_joined_as_a_whole_or_not_at_all(tmp_path):
    write_pieces(tmp_path, [TASKS[:1], TASKS[1:2]], seeds=[1])
    write_pieces(tmp_path / "other", [TASKS[:1], TASKS[1:]], seeds=[0])
    found = {one.tasks: sorted(run.seed for run in one.runs) for one in comparisons(load([tmp_path]))}
    assert found == {TASKS[:1]: [0, 1], TASKS[1:2]: [1], TASKS[1:]: [0]}


def test_who_has_all_tasks_of_a_whole_run_is_joined_before_others_are_there(tmp_path):
    write_pieces(tmp_path, [TASKS[:1]], seeds=(0, 1))
    write_run(tmp_path / "ahead", settings(0, protocol="rl", tasks=list(TASKS[1:])))
    write_run(tmp_path / "whole", settings(5, protocol="rl"))
    found = {one.tasks: sorted(run.seed for run in one.runs) for one in comparisons(load([tmp_path]))}
    assert found == {TASKS: [0, 5], TASKS[:1]: [1]}


def test_a_task_that_two_pieces_have_is_taken_from_the_first_and_that_is_told(tmp_path):
    write_pieces(tmp_path, [TASKS[:1], TASKS[1:]], seeds=(0, 1))
    write_run(tmp_path / "x", settings(0, protocol="rl", tasks=[TASKS[0], "metaworld/push"]))
    loaded = load([tmp_path])
    assert sorted((run.seed, run.tasks) for run in loaded.runs if set(run.tasks) == set(TASKS)) == [
        (0, TASKS),
        (1, TASKS),
    ]
    assert len(loaded.runs) == 3
    (note,) = loaded.notes
    assert "x has metaworld/hammer" in note


def test_a_piece_whose_last_evaluation_is_not_written_yet_stays_apart(tmp_path):
    write_pieces(tmp_path, [TASKS[:1], TASKS[1:]], seeds=[0])
    for name in ("metrics.jsonl", "episodes.jsonl"):
        path = tmp_path / "part0" / "rho0-seed0" / name
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [line for line in lines if line["step"] < 3000 or "train/loss" in line]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert len(load([tmp_path]).runs) == 2


def test_suites_are_never_one_run(tmp_path):
    write_run(tmp_path / "a", settings(protocol="rl", tasks=["metaworld/hammer"]))
    write_run(tmp_path / "b", settings(protocol="rl", tasks=["humanoidbench/stand"]))
    assert len(load([tmp_path]).runs) == 2


def test_alone_they_take_the_order_of_the_paper(tmp_path):
    (run, _) = load([write_pieces(tmp_path, [TASKS[2:], TASKS[:2]])]).runs
    assert run.tasks == TASKS


def test_tasks_that_the_paper_does_not_have_keep_the_order_of_their_names(tmp_path):
    tasks = ("metaworld/push", "metaworld/basketball", "metaworld/hammer")
    (run, _) = load([write_pieces(tmp_path, [[task] for task in tasks])]).runs
    assert run.tasks == tasks


def test_a_metric_that_only_one_piece_has_is_nan_in_the_others(tmp_path):
    write_pieces(tmp_path, [TASKS[:1], TASKS[1:]], seeds=[0])
    path = tmp_path / "part1" / "rho0-seed0" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line | {"online/new": 3.0} if "evaluation/return" in line else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run,) = load([tmp_path]).runs
    np.testing.assert_array_equal(run.curve.values["online/new"], [np.nan] * 3 + [3.0] * 6)


def test_every_environment_is_told(tmp_path):
    write_pieces(tmp_path, [TASKS[:1], TASKS[1:2], TASKS[2:]], seeds=[0])
    place = tmp_path / "part1" / "rho0-seed0" / "environment.json"
    environment = json.loads(place.read_text())
    elsewhere = {"kind": "NVIDIA H200", "platform": "gpu", "count": 1}
    place.write_text(json.dumps(environment | {"resumed": {"1000": {"device": elsewhere}}}))
    (run,) = load([tmp_path]).runs
    assert devices(run.environment) == ["cpu", "NVIDIA H200"]
    assert run.environment["resumed"] == {
        "4000": {"device": elsewhere},
        "6000": {"device": environment["device"]},
    }


@pytest.mark.parametrize("lost", ["", "{}", "[]"])
def test_an_environment_that_is_lost_is_not_that_of_another_piece(tmp_path, lost):
    write_pieces(tmp_path, [TASKS[:1], TASKS[1:]], seeds=[0])
    place = tmp_path / "part1" / "rho0-seed0" / "environment.json"
    place.write_text(lost) if lost else place.unlink()
    (run,) = load([tmp_path]).runs
    assert run.environment["device"]["kind"] == "cpu"
    assert run.environment["resumed"]["3000"]["device"] is None
    assert devices(run.environment) == ["cpu"]


@pytest.mark.parametrize(
    "strange", [{"0": {"resumed": "x"}}, {"9" * 5000: {"python": "4"}}, ["x"], {"1.5": {}}, {"1": 2}], ids=str
)
def test_strange_notes_of_resuming_are_passed_over(tmp_path, strange):
    write_pieces(tmp_path, [TASKS[:1], TASKS[1:]], seeds=[0])
    place = tmp_path / "part0" / "rho0-seed0" / "environment.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"resumed": strange}))
    (run,) = load([tmp_path]).runs
    assert devices(run.environment) == ["cpu"]


@pytest.mark.parametrize(
    "change",
    [{"protocol": "crl"}, {"seed": 3}, {"rho": 0.1}, {"steps_per_task": 2000}, {"tasks": list(TASKS[:2])}],
    ids=str,
)
def test_others_stay_apart(tmp_path, change):
    """Agents of a sequence, other seeds, methods and lengths, and tasks that both have."""
    write_run(tmp_path / "a", settings(seed=0, protocol="rl", tasks=list(TASKS[:1])))
    write_run(tmp_path / "b", settings(**({"seed": 0, "protocol": "rl", "tasks": list(TASKS[1:])} | change)))
    assert len(load([tmp_path]).runs) == 2


def test_a_piece_that_is_not_finished_stays_apart(tmp_path):
    write_run(tmp_path / "a", settings(protocol="rl", tasks=list(TASKS[:1])))
    write_run(tmp_path / "b", settings(protocol="rl", tasks=list(TASKS[1:2])))
    write_run(tmp_path / "c", settings(protocol="rl", tasks=list(TASKS[2:])), stop_at=2000)
    runs = load([tmp_path]).runs
    assert sorted(run.tasks for run in runs) == sorted([TASKS[:2], TASKS[2:]])
