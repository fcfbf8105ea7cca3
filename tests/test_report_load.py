"""Run directories become labelled data; what is broken or foreign is named, and nothing ends in a stack trace."""

import json
import shutil

import numpy as np
import pytest
from made_runs import TASKS, agree, old_settings, settings, write_comparison, write_run

from sphere.report.comparison import comparisons, retention
from sphere.report.load import load
from sphere.report.scores import final_scores, own_scores, segment_scores


def test_runs_are_found_below_any_of_their_parents(tmp_path):
    write_comparison(tmp_path / "all")
    assert len(load([tmp_path]).runs) == 12
    assert len(load([tmp_path / "all" / "crl"]).runs) == 6
    assert len(load([tmp_path / "all" / "crl" / "rho0-seed0"]).runs) == 1
    several = load([tmp_path / "all" / "crl", tmp_path / "all" / "rl" / "rho0-seed1"])
    assert len(several.runs) == 7
    assert len(load([tmp_path, tmp_path / "all"]).runs) == 12  # named twice, there once
    assert not several.notes


def test_a_run_knows_what_it_is(tmp_path):
    (run,) = load([write_run(tmp_path / "x", settings(seed=7, rho=0.1))]).runs
    assert (run.seed, run.method, run.protocol, run.suite) == (7, "SPHERE", "crl", "metaworld")
    assert run.tasks == TASKS
    assert run.finished
    assert run.steps == 9000
    assert run.environment["python"] == "3.11.7"
    assert run.curve.step.tolist() == [1000 * k for k in range(1, 10)]
    assert run.curve.task.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert np.isnan(run.curve.values["heldout/silhouette"]).all()
    assert run.curve.values["evaluation/success_at_end"].tolist() == [0.25, 0.5, 0.75] * 3


def test_suites_have_methods_of_their_own(tmp_path):
    """What differs between suites tells no methods apart: they are never compared."""
    for rho in (0.1, 0.01):
        write_run(tmp_path / f"a{rho}", settings(rho=rho))
    write_run(tmp_path / "b", settings(rho=0.1, tasks=["humanoidbench/stand"], learner__num_envs=128))
    assert {(run.suite, run.method) for run in load([tmp_path]).runs} == {
        ("metaworld", "SPHERE (rho 0.1)"),
        ("metaworld", "SPHERE (rho 0.01)"),
        ("humanoidbench", "SPHERE"),
    }


def test_of_two_runs_with_one_seed_the_longer_counts(tmp_path):
    write_run(tmp_path / "a", settings(), stop_at=2000)
    write_run(tmp_path / "b", settings())
    write_run(tmp_path / "c", settings(), stop_at=5000)
    loaded = load([tmp_path])
    (run,) = loaded.runs
    assert run.name == "b"
    assert [str(tmp_path / "b") in note for note in loaded.notes] == [True, True]


def test_methods_of_one_name_are_told_apart_by_what_differs(tmp_path):
    write_run(tmp_path / "a", settings(rho=0.1))
    write_run(tmp_path / "b", settings(rho=0.001))
    write_run(tmp_path / "c", settings(rho=0.0))
    write_run(tmp_path / "d", settings(rho=0.001, learner__actor__experts=16))
    assert {run.method for run in load([tmp_path]).runs} == {
        "SPHERE (experts 4, rho 0.1)",
        "SPHERE (experts 4, rho 0.001)",
        "SPHERE (experts 16, rho 0.001)",
        "Top-K MoE",
    }


def test_protocol_seed_and_workers_do_not_make_a_method(tmp_path):
    write_run(tmp_path / "a", settings(seed=0, source__workers=3))
    write_run(tmp_path / "b", settings(seed=1, protocol="rl"))
    assert {run.method for run in load([tmp_path]).runs} == {"Top-K MoE"}


def test_what_a_task_switch_keeps_makes_a_method_under_crl_alone(tmp_path):
    """With the same seed, too: neither run may pass for a copy of the other."""
    write_run(tmp_path / "kept", settings(boundary={"optimiser": True}))
    write_run(tmp_path / "anew", settings(boundary={"optimiser": False}))
    write_run(tmp_path / "scratch", settings(boundary={"optimiser": False}, protocol="rl"))
    loaded = load([tmp_path])
    assert {run.name: run.method for run in loaded.runs} == {
        "kept": "Top-K MoE (boundary.optimiser yes)",
        "anew": "Top-K MoE (boundary.optimiser no)",
        "scratch": "Top-K MoE (boundary.optimiser yes)",
    }
    assert not any("counted once" in note for note in loaded.notes)


def test_runs_from_scratch_belong_to_the_only_sequences_of_their_settings(tmp_path):
    """Else RL would not stand beside CRL, nor the baseline beside SPHERE, as soon as a boundary is not the usual
    one."""
    for protocol in ("crl", "rl"):
        write_run(tmp_path / f"{protocol}-top-k", settings(protocol=protocol, boundary={"optimiser": False}))
        write_run(tmp_path / f"{protocol}-sphere", settings(protocol=protocol, boundary={"optimiser": False}, rho=0.1))
    assert sorted(run.method for run in load([tmp_path]).runs) == ["SPHERE", "SPHERE", "Top-K MoE", "Top-K MoE"]


def test_a_number_written_with_or_without_its_point_is_one_setting(tmp_path):
    write_run(tmp_path / "a", settings(seed=0, rho=0, learner__learning_rate=1))
    write_run(tmp_path / "b", settings(seed=1, rho=0.0, learner__learning_rate=1.0))
    write_run(tmp_path / "c", settings(seed=0, rho=0.1, learner__batch_size=2_000_000))
    write_run(tmp_path / "d", settings(seed=0, rho=0.1))
    assert [run.method for run in load([tmp_path]).runs] == [
        "SPHERE (batch size 2000000)",
        "SPHERE (batch size none)",
        "Top-K MoE",
        "Top-K MoE",
    ]


def test_the_record_is_believed(tmp_path):
    """Nothing is worked out from the settings of a run that says what it is."""
    said = {"label": "Ours", "suite": "text", "task_steps": 3500, "learner": "classifier"}
    (run,) = load([write_run(tmp_path / "a", settings(seed=5, says=said))]).runs
    assert (run.method, run.suite, run.task_steps, run.seed) == ("Ours", "text", 3500, 5)


def test_what_varies_in_a_fleet_is_in_the_label(tmp_path):
    """The settings are the same in all runs of a fleet: the numbers of a run tell them apart."""
    for rate in (1e-3, 3e-4):
        said = {"numbers": {"rho": 0.1, "learning_rate": rate}, "varies": ["learning_rate", "rho"]}
        write_run(tmp_path / f"{rate}", settings(rho=0.1, says=said))
    # another fleet, which has that rate as its setting and varies rho alone
    alone = settings(seed=1, rho=0.1, learner__learning_rate=1e-3)
    write_run(tmp_path / "alone", alone | {"numbers": {"rho": 0.1}})
    assert sorted(run.method for run in load([tmp_path]).runs) == [
        "SPHERE (learning rate 0.0003)",
        "SPHERE (learning rate 0.001)",
        "SPHERE (learning rate 0.001)",
    ]


def test_settings_of_a_method_that_does_not_act_make_no_difference(tmp_path):
    write_run(tmp_path / "a", settings(seed=0))
    write_run(tmp_path / "b", settings(seed=1, learner__methods={"sphere": {"variant": "scale-free"}}))
    write_run(tmp_path / "c", settings(seed=2, learner__methods={}))
    assert {run.method for run in load([tmp_path]).runs} == {"Top-K MoE"}


def test_runs_of_different_length_are_not_compared(tmp_path):
    write_run(tmp_path / "long", settings(seed=0))
    write_run(tmp_path / "short", settings(seed=0, steps_per_task=2000))
    loaded = load([tmp_path])
    assert [(run.method, run.name) for run in loaded.runs] == [("Top-K MoE", "long"), ("Top-K MoE", "short")]
    assert [one.steps_per_task for one in comparisons(loaded)] == [3000, 2000]


def test_the_same_run_twice_counts_once(tmp_path):
    write_run(tmp_path / "a", settings())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = load([tmp_path])
    assert len(found.runs) == 1
    assert any("counted once" in note for note in found.notes)


# Scores from records
def test_a_score_can_be_chosen_among_the_columns(tmp_path):
    write_run(tmp_path / "a", settings())
    write_run(tmp_path / "b", settings(tasks=["text/one"], says={"columns": ["accuracy"], "score": "accuracy"}))
    assert {run.name: run.score for run in load([tmp_path]).runs} == {"a": "success_at_end", "b": "accuracy"}
    chosen = load([tmp_path], "return")
    assert [(run.name, run.score) for run in chosen.runs] == [("a", "return")]
    assert own_scores(chosen.runs).scores.table.tolist() == [[3.0, 3.0, 3.0]]
    assert "b was skipped: it has no return, only accuracy" in chosen.notes[0]
    with pytest.raises(
        ValueError, match="no run has a score 'succes'; there are return, length, success_once, success_at_end"
    ):
        load([tmp_path / "a"], "succes")


def test_comparisons_never_mix_scores_or_suites(tmp_path):
    write_run(tmp_path / "a", settings())
    write_run(tmp_path / "b", settings(seed=1, says={"score": "return"}))
    write_run(tmp_path / "c", settings(seed=2, says={"suite": "other"}))
    found = comparisons(load([tmp_path]))
    assert sorted((one.suite, one.score, len(one.runs)) for one in found) == [
        ("metaworld", "return", 1),
        ("metaworld", "success_at_end", 1),
        ("other", "success_at_end", 1),
    ]


def test_visits_of_one_task_are_told_apart(tmp_path):
    """Hammer comes first and last; at the end success is 1/4 on the first visit and 3/4 on the second."""
    path = write_run(tmp_path / "a", settings(tasks=["metaworld/hammer", "metaworld/push", "metaworld/hammer"]))
    lines = [json.loads(line) for line in (path / "episodes.jsonl").read_text().splitlines()]
    for line in lines:  # one of four at the end of the first visit, where the second has three
        if (line["kind"], line["step"]) == ("evaluation", 3000):
            line["success_at_end"] = line["episode"] < 1
    (path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    agree(path)
    runs = load([tmp_path]).runs
    own, final = own_scores(runs).scores, final_scores(runs).scores
    assert own.tasks == ("metaworld/hammer", "metaworld/push", "metaworld/hammer (2)")
    assert own.table.tolist() == [[0.25, 0.75, 0.75]]
    assert final.table.tolist() == [[0.25, 0.25, 0.75]]
    matrix = retention(comparisons(load([tmp_path]))[0], runs)
    assert matrix.tolist() == [[0.75, 0.0, 0.0], [0.25, 0.75, 0.0], [0.25, 0.25, 0.75]]


def test_visits_in_a_record_that_does_not_number_them_are_refused(tmp_path):
    write_run(tmp_path / "good", old_settings())
    write_run(tmp_path / "bad", old_settings(tasks=["metaworld/hammer", "metaworld/push", "metaworld/hammer"]))
    loaded = load([tmp_path])
    assert [run.name for run in loaded.runs] == ["good"]
    assert "does not say which visit of metaworld/hammer" in loaded.notes[0]


def test_a_score_that_is_not_finite_leaves_its_run_out_of_averages(tmp_path):
    path = write_run(tmp_path / "a", settings())
    text = (path / "episodes.jsonl").read_text()
    (path / "episodes.jsonl").write_text(text.replace('"return": 3.0', '"return": "nan"', 1))
    agree(path)
    assert own_scores(load([tmp_path], "return").runs).left_out == ("a",)
    assert own_scores(load([tmp_path]).runs).left_out == ()


def test_scores_come_from_the_end_of_each_tasks_own_training(tmp_path):
    runs = load([write_comparison(tmp_path)]).runs
    mine = [run for run in runs if run.protocol == "crl" and run.method == "SPHERE"]
    own = own_scores(mine).scores
    assert own.runs == tuple(run.name for run in mine)
    assert own.tasks == TASKS
    np.testing.assert_allclose(own.table, 0.75)
    np.testing.assert_array_equal(own.episodes, 4)
    once = [run for run in load([tmp_path], "success_once").runs if run.protocol == "crl" and run.method == "SPHERE"]
    np.testing.assert_allclose(own_scores(once).scores.table, 1.0)
    final = final_scores(mine).scores
    np.testing.assert_allclose(final.table, [[0.25, 0.25, 0.75]] * 3)
    np.testing.assert_allclose(segment_scores(mine).scores.table, 0.5)


def test_a_run_that_is_still_going_is_left_out_of_averages_by_name(tmp_path):
    write_run(tmp_path / "done", settings(seed=0))
    write_run(tmp_path / "going", settings(seed=1), stop_at=5000)
    runs = load([tmp_path]).runs
    assert [run.finished for run in runs] == [True, False]
    found = own_scores(runs)
    assert found.scores.runs == ("done",)
    assert found.left_out == ("going",)
    first = own_scores(runs, tasks=TASKS[:1])
    assert first.scores.runs == ("done", "going")
    assert own_scores(runs[1:]).scores is None


def test_speed_is_by_the_clock_without_pauses(tmp_path):
    """Evaluations every 1,000 steps after 2 s, but for a night in between; a run with one evaluation has no speed."""
    path = write_run(tmp_path / "a", settings())
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["wall"] = 1e9 + line["step"] / 500 + (30_000 if line["step"] > 4000 else 0)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_run(tmp_path / "b", settings(seed=1), stop_at=1000)
    first, second = load([tmp_path]).runs
    # nine evaluations, eight gaps; the pause counts as three gaps of the usual length
    assert first.speed == pytest.approx(8000 / (7 * 2 + 3 * 2))
    assert second.speed is None
