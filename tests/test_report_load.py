"""Run directories become labelled data; what is broken or foreign is named, and nothing ends in a stack trace."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest
from made_runs import TASKS, settings, write_comparison, write_run

from sphere.report.load import load
from sphere.report.select import final_scores, own_scores, segment_scores
from sphere.report.summary import comparisons
from sphere.training.settings import Boundary


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


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "Top-K MoE"),
        ({"rho": 0.1}, "SPHERE"),
        ({"rho": -0.001}, "Top-K MoE + negative SPHERE"),
        ({"ppo__actor": {"kind": "mlp"}}, "PPO"),
        ({"ppo__actor": {"kind": "mlp"}, "rho": 0.1}, "PPO + SPHERE"),
        ({"ppo__actor": {"kind": "mlp", "width": 834}, "ppo__critic": {"kind": "mlp", "width": 256}}, "PPO(10x)"),
        ({"ppo__actor": {"kind": "dense", "experts": 10}}, "Dense-MoE"),
        ({"ppo__actor": {"kind": "deepseek", "experts": 10}, "rho": 0.1}, "DS-MoE + SPHERE"),
        ({"ppo__actor__layer_norm": True}, "LN"),
        ({"ppo__actor__layer_norm": True, "rho": 0.1}, "SPHERE + LN"),
        ({"ppo__penalty": None, "rho": 0.0}, "Top-K MoE"),
        ({"ppo__mitigations": {"c_chain": {"weight": 1.0}, "cbp": None}}, "C-CHAIN"),
        ({"ppo__mitigations": {"layernorm": {}, "redo": {"tau": 0.1}}}, "LN + ReDo"),
        ({"ppo__mitigations": {"load_balance": {}}, "rho": 0.1}, "SPHERE + Load balancing"),
        ({"ppo__mitigations": {"parseval": {}}, "ppo__actor": {"kind": "mlp"}}, "PPO + PW"),
        ({"ppo__mitigations": {"novel": {}}}, "novel"),
    ],
)
def test_methods_have_the_papers_names(tmp_path, changes, label):
    (run,) = load([write_run(tmp_path / "x", settings(**changes))]).runs
    assert run.method == label


def test_suites_have_methods_of_their_own(tmp_path):
    """What differs between suites tells no methods apart: they are never compared."""
    for rho in (0.1, 0.01):
        write_run(tmp_path / f"a{rho}", settings(rho=rho))
    write_run(tmp_path / "b", settings(rho=0.1, tasks=["humanoidbench/stand"], ppo__num_envs=128))
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
    write_run(tmp_path / "d", settings(rho=0.001, ppo__actor__experts=16))
    assert {run.method for run in load([tmp_path]).runs} == {
        "SPHERE (experts 4, rho 0.1)",
        "SPHERE (experts 4, rho 0.001)",
        "SPHERE (experts 16, rho 0.001)",
        "Top-K MoE",
    }


def test_protocol_seed_and_workers_do_not_make_a_method(tmp_path):
    write_run(tmp_path / "a", settings(seed=0, workers=3))
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
    """Else RL would not stand beside CRL, nor the baseline beside SPHERE, as soon as a boundary is not the usual one."""
    for protocol in ("crl", "rl"):
        write_run(tmp_path / f"{protocol}-top-k", settings(protocol=protocol, boundary={"optimiser": False}))
        write_run(tmp_path / f"{protocol}-sphere", settings(protocol=protocol, boundary={"optimiser": False}, rho=0.1))
    assert sorted(run.method for run in load([tmp_path]).runs) == ["SPHERE", "SPHERE", "Top-K MoE", "Top-K MoE"]


def test_a_run_that_says_nothing_of_its_boundary_has_the_usual_one(tmp_path):
    write_run(tmp_path / "old", settings(seed=0))
    write_run(tmp_path / "new", settings(seed=1, boundary=dataclasses.asdict(Boundary())))
    write_run(tmp_path / "scratch", settings(seed=0, protocol="rl"))
    assert {run.method for run in load([tmp_path]).runs} == {"Top-K MoE"}


def test_a_number_written_with_or_without_its_point_is_one_setting(tmp_path):
    write_run(tmp_path / "a", settings(seed=0, rho=0, ppo__learning_rate=1))
    write_run(tmp_path / "b", settings(seed=1, rho=0.0, ppo__learning_rate=1.0))
    write_run(tmp_path / "c", settings(seed=0, rho=0.1, ppo__batch_size=2_000_000))
    write_run(tmp_path / "d", settings(seed=0, rho=0.1))
    assert [run.method for run in load([tmp_path]).runs] == [
        "SPHERE (batch_size 2000000)",
        "SPHERE (batch_size none)",
        "Top-K MoE",
        "Top-K MoE",
    ]


def test_runs_of_different_length_are_not_compared(tmp_path):
    write_run(tmp_path / "long", settings(seed=0))
    write_run(tmp_path / "short", settings(seed=0, steps_per_task=2000))
    loaded = load([tmp_path])
    assert [(run.method, run.name) for run in loaded.runs] == [("Top-K MoE", "long"), ("Top-K MoE", "short")]
    assert [one.steps_per_task for one in comparisons(loaded)] == [3000, 2000]


def test_a_setting_that_came_later_and_is_not_used_makes_no_new_method(tmp_path):
    write_run(tmp_path / "old", settings(seed=0))
    write_run(tmp_path / "new", settings(seed=1, ppo__mitigations={"redo": None, "cbp": None}))
    assert {run.method for run in load([tmp_path]).runs} == {"Top-K MoE"}


def test_a_caller_may_name_methods(tmp_path):
    write_run(tmp_path / "a", settings())
    (run,) = load([tmp_path], label=lambda config: f"E={config['ppo']['actor']['experts']}").runs
    assert run.method == "E=4"


def test_the_same_run_twice_counts_once(tmp_path):
    write_run(tmp_path / "a", settings())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = load([tmp_path])
    assert len(found.runs) == 1
    assert any("counted once" in note for note in found.notes)


# What can be wrong


def spoil_config(path):
    (path / "config.json").write_text("{ not json")


def foreign(path):
    (path / "config.json").write_text('{"model_type": "bert", "hidden_size": 768}')
    (path / "metrics.jsonl").unlink()


def list_config(path):
    (path / "config.json").write_text("[1, 2]")


def wrong_types(path):
    (path / "config.json").write_text(json.dumps(settings() | {"tasks": 5}))


def settings_in_a_word(path):
    (path / "config.json").write_text(json.dumps(settings() | {"boundary": "kept"}))


def no_metrics(path):
    (path / "metrics.jsonl").unlink()


def broken_line(path):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([lines[0], '{"step": evaluation/', *lines[1:]]) + "\n")


def wrong_episode(path):
    with (path / "episodes.jsonl").open("a") as file:
        file.write('{"step": 1}\n')


def foreign_task(path):
    text = (path / "episodes.jsonl").read_text()
    (path / "episodes.jsonl").write_text(text.replace("metaworld/hammer", "elsewhere/hammer"))


def words_for_numbers(path):
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text.replace('"heldout/ntk_rank": ', '"heldout/ntk_rank": "many", "x": '))


def binary(path):
    (path / "metrics.jsonl").write_bytes(b'"evaluation/ \xff\xfe\x00\n' * 10)


def directory_for_file(path):
    (path / "episodes.jsonl").unlink()
    (path / "episodes.jsonl").mkdir()


SPOILS = [spoil_config, foreign, list_config, wrong_types, no_metrics, broken_line, wrong_episode, foreign_task]
SPOILS += [settings_in_a_word, words_for_numbers, binary, directory_for_file]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_broken_directory_is_named_and_skipped(tmp_path, spoil):
    write_run(tmp_path / "good", settings(seed=1))
    spoil(write_run(tmp_path / "bad", settings(seed=0)))
    found = load([tmp_path])
    assert [run.seed for run in found.runs] == [1]
    (note,) = found.notes
    assert str(tmp_path / "bad") in note
    assert "skipped" in note


def test_half_a_last_line_is_left_out_and_said(tmp_path):
    path = write_run(tmp_path / "run", settings())
    for name in ("metrics.jsonl", "episodes.jsonl"):
        file = path / name
        file.write_bytes(file.read_bytes()[:-7])
    found = load([tmp_path])
    assert len(found.runs) == 1
    assert len(found.notes) == 2
    assert all("half a line" in note for note in found.notes)


def test_without_environment_it_still_counts(tmp_path):
    path = write_run(tmp_path / "run", settings())
    (path / "environment.json").unlink()
    found = load([tmp_path])
    assert found.runs[0].environment == {}
    assert "environment.json" in found.notes[0]


def test_nothing_to_load_is_an_error_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="no run"):
        load([tmp_path])
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="directory"):
        load([tmp_path / "file"])


def test_a_directory_without_runs_beside_one_with_runs_is_a_note(tmp_path):
    write_run(tmp_path / "a" / "run", settings())
    (tmp_path / "b").mkdir()
    found = load([tmp_path / "a", tmp_path / "b"])
    assert len(found.runs) == 1
    assert "no run" in found.notes[0]


# Scores from records


def test_scores_come_from_the_end_of_each_tasks_own_training(tmp_path):
    runs = load([write_comparison(tmp_path)]).runs
    mine = [run for run in runs if run.protocol == "crl" and run.method == "SPHERE"]
    own = own_scores(mine).scores
    assert own.runs == tuple(run.name for run in mine)
    assert own.tasks == TASKS
    np.testing.assert_allclose(own.table, 0.75)
    np.testing.assert_array_equal(own.episodes, 4)
    np.testing.assert_allclose(own_scores(mine, success="once").scores.table, 1.0)
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


def calls(function) -> int:
    """Python's and C functions that it calls: what it costs, on whatever machine."""
    found = 0

    def count(frame, event, argument):
        nonlocal found
        found += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def test_loading_costs_a_few_calls_a_line_however_many_runs_there_are(tmp_path):
    """Directories of the size of a MetaWorld run: 620 iterations, 100 evaluations of ten episodes, 100 final episodes."""
    first = write_run(tmp_path / "r0", settings())
    iteration = {"step": 1, "task": TASKS[0], "task_index": 0, "wall": 1.0} | {
        f"train/m{i}": 0.123456 for i in range(15)
    }
    with (first / "metrics.jsonl").open("a") as file:
        file.write((json.dumps(iteration) + "\n") * 600)
        event = next(line for line in (first / "metrics.jsonl").read_text().splitlines() if "heldout" in line)
        file.write((event + "\n") * 90)
    line = (first / "episodes.jsonl").read_text().splitlines()[0] + "\n"
    with (first / "episodes.jsonl").open("a") as file:
        file.write(line * 1000)
    lines = sum(len((first / name).read_text().splitlines()) for name in ("metrics.jsonl", "episodes.jsonl"))
    cost = {}
    for index in range(1, 40):
        path = tmp_path / f"r{index}"
        path.mkdir()
        for name in ("metrics.jsonl", "episodes.jsonl", "environment.json"):
            (path / name).hardlink_to(first / name)
        (path / "config.json").write_text(json.dumps(settings(seed=index)))
        if index in (9, 19, 39):
            assert len(load([tmp_path]).runs) == index + 1
            cost[index + 1] = calls(lambda: load([tmp_path]))
    assert cost[10] < 25 * 10 * lines  # five, when this was written
    assert cost[40] / 40 < 1.1 * cost[20] / 20 < 1.2 * cost[10] / 10


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
