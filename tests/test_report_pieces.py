"""Tasks that were trained from scratch in several pieces count as one run; nothing else is put together."""

import json

import numpy as np
import pytest
from made_runs import TASKS, settings, write_run

from sphere.report.load import load
from sphere.report.select import own_scores, segment_scores
from sphere.report.summary import averages, comparisons
from sphere.runs.provenance import devices


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
        np.testing.assert_array_equal(ours.episodes.success_once, theirs.episodes.success_once)
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


def test_alone_they_keep_the_order_of_their_names(tmp_path):
    (run, _) = load([write_pieces(tmp_path, [TASKS[2:], TASKS[:2]])]).runs
    assert run.tasks == (TASKS[2], TASKS[0], TASKS[1])


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
