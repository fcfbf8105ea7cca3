"""Training as a person meets it: its records, what a task keeps of the one before, how it ends if something breaks."""

import json
import sys
import types

import jax
import numpy as np
import pytest
from fleets import TINY, assert_same, changed

from sphere.algos import rows
from sphere.envs.pool import WorkerError
from sphere.storage import run_directory
from sphere.training.fleet import Fleet
from sphere.training.group import Order
from sphere.training.loop import NonFinite, train
from sphere.training.settings import Boundary, from_json


def test_records_hold_what_was_promised(straight):
    for run in TINY.runs:
        path = straight / run.name
        events = run_directory.read_events(path)
        training = [event for event in events if "train/policy_loss" in event]
        assert [event["step"] for event in training] == [64 * i for i in range(1, 21)]
        assert [event["task_index"] for event in training] == [0] * 10 + [1] * 10
        evaluations = [event for event in events if "evaluation/success_once" in event]
        assert [event["step"] for event in evaluations] == [256, 512, 640, 896, 1152, 1280]
        for name in ("heldout/ntk_rank", "online/ntk_rank", "heldout/feature_rank", "online/saturation"):
            assert all(event[name] > 0 for event in evaluations)
        episodes = run_directory.read_episodes(path)
        kinds = [episode["kind"] for episode in episodes]
        assert kinds.count("evaluation") == 6 * 3
        assert kinds.count("final") == 2 * 3  # the whole list once more at the end of the sequence
        assert list(path.glob("events.out.tfevents*"))
        config = run_directory.read_config(path)
        assert from_json(config["settings"]) == changed(TINY, seeds=(run.seed,), rho=(run.numbers["rho"],))
        said = {name: config[name] for name in ("learner", "actor", "suite", "score", "task_steps", "seed", "varies")}
        assert said == {
            "learner": "ppo",
            "actor": "top-k",
            "suite": "probe",
            "score": "success_at_end",
            "task_steps": 640,
            "seed": run.seed,
            "varies": ["rho"],
        }
        named = {0.0: ("none", "Top-K MoE"), 0.1: ("sphere", "SPHERE")}
        assert (config["method"], config["label"]) == named[run.numbers["rho"]]
        assert config["numbers"]["rho"] == run.numbers["rho"]


def test_same_seed_twice_is_bit_equal(straight, tmp_path):
    train(TINY, tmp_path / "again", quiet=True)
    assert_same(straight, tmp_path / "again")


def test_a_run_does_not_depend_on_its_fleet(straight, tmp_path):
    alone = changed(TINY, seeds=(1,), rho=(0.1,), workers=0)
    train(alone, tmp_path / "alone", quiet=True)
    for one, other in zip(
        run_directory.read_events(straight / "rho0.1-seed1"),
        run_directory.read_events(tmp_path / "alone" / "rho0.1-seed1"),
        strict=True,
    ):
        for name, value in one.items():
            if name.startswith("train/"):  # float32 in another order of summation, through 20 updates
                np.testing.assert_allclose(other[name], value, rtol=5e-3, atol=5e-4, err_msg=f"{name} at {one['step']}")


def test_a_task_that_comes_twice_is_recorded_at_both_places(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=64, tasks=TINY.tasks[:1] * 2)
    train(config, tmp_path / "fleet", quiet=True)
    lines = run_directory.read_events(tmp_path / "fleet" / "rho0-seed0")
    for name in ("train/return", "evaluation/return"):
        assert [line["task_index"] for line in lines if name in line] == [0, 1]


@pytest.mark.parametrize("overlap", [False, True])
def test_nan_stops_the_fleet_and_names_run_step_and_checkpoint(tmp_path, monkeypatch, overlap):
    """Also where the next rollout has begun by then, in which the policy makes no sense any more."""
    config = changed(TINY, rho=(0.1,), checkpoint_every=4, overlap=overlap)
    update = rows.update

    def poisoned(learner, state, numbers, data, seeds, clock):
        if clock.iteration == 5 and 0 in np.asarray(seeds):
            data = data | {"log_prob": data["log_prob"].at[0].set(np.nan)}
        return update(learner, state, numbers, data, seeds, clock)

    monkeypatch.setattr(rows, "update", poisoned)
    with pytest.raises(NonFinite, match=r"in rho0\.1-seed0 at step 384 of probe/reach-north.*checkpoint-0*4\.npz"):
        train(config, tmp_path / "fleet", quiet=True)
    (last,) = (tmp_path / "fleet" / "rho0.1-seed0" / "metrics.jsonl").read_text().splitlines()[-1:]
    assert json.loads(last)["train/policy_loss"] == "nan"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_crashed_simulator_ends_the_run_with_its_traceback(tmp_path, overlap):
    config = changed(TINY, seeds=(0, 1), rho=(0.1,), overlap=overlap)
    original = Fleet.advance

    def break_pool(self, ahead):
        if self.total_iterations == 3:
            self.groups[0].source.pool._workers[0].process.kill()
        return original(self, ahead)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "advance", break_pool)
        with pytest.raises(WorkerError, match="worker"):
            train(config, tmp_path / "fleet", quiet=True)


def test_a_missing_gpu_kernel_is_explained(tmp_path, monkeypatch):
    def fail(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: cublasLtMatmul: the requested functionality is not supported")

    monkeypatch.setattr(rows, "update", fail)
    with pytest.raises(RuntimeError, match="no-deterministic"):
        train(changed(TINY, workers=0), tmp_path / "fleet", quiet=True)


def watched(state):
    return state.nets["actor"].log_std, state.moments["actor"].count


def test_task_boundaries_keep_what_they_say(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.1,), workers=0, steps_per_task=64)
    for protocol, boundary, kept in [
        ("crl", Boundary(), {"parameters": True, "moments": True, "statistics": True}),
        (
            "crl",
            Boundary(optimiser=False, statistics=False),
            {"parameters": True, "moments": False, "statistics": False},
        ),
        ("rl", Boundary(), {"parameters": False, "moments": False, "statistics": False}),
    ]:
        fleet = Fleet(changed(config, protocol=protocol, boundary=boundary), tmp_path)
        try:
            fleet.begin_task()
            fleet.groups[0].advance(Order(0, 0, 1.0))
            (group,) = fleet.groups
            before = [np.asarray(leaf) for leaf in watched(group.state)]
            count = group.source.statistics.count.copy()
            group.enter("probe/reach-east", fleet.config.kept)
            log_std, moments = watched(group.state)
            assert np.array_equal(log_std, before[0]) == kept["parameters"]
            assert np.array_equal(moments, before[1]) == kept["moments"]
            assert (group.source.statistics.count > count).all() == kept["statistics"]
            assert group.source.pool.task == "reach-east"
        finally:
            fleet.close()


def test_retention_matrix_if_asked(tmp_path):
    evaluation = changed(TINY.evaluation, retention=True, heldout=0)
    config = changed(TINY, seeds=(0,), rho=(0.0,), steps_per_task=64, evaluation=evaluation, workers=0)
    train(config, tmp_path / "fleet", quiet=True)
    episodes = run_directory.read_episodes(tmp_path / "fleet" / "rho0-seed0")
    seen = {(e["step"], e["task"]) for e in episodes if e["kind"] in ("retention", "final")}
    assert seen == {(step, task) for step in (64, 128) for task in config.tasks}


def test_wandb_gets_the_same_numbers_if_asked_for(tmp_path, monkeypatch):
    sent = {}

    class Run:
        def __init__(self, **settings):
            self.name = settings["name"]
            sent[self.name] = []

        def log(self, values):
            sent[self.name].append(values)

        def finish(self):
            sent[self.name].append("finished")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=Run))
    config = changed(TINY, seeds=(0,), rho=(0.0,), steps_per_task=64, wandb="project", workers=0)
    train(config, tmp_path / "fleet", quiet=True)
    events = run_directory.read_events(tmp_path / "fleet" / "rho0-seed0")
    *values, last = sent["fleet/rho0-seed0"]
    assert last == "finished"
    assert [value["step"] for value in values] == [event["step"] for event in events]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install .sphere-rl\[wandb\]"):
        train(config, tmp_path / "other", quiet=True)
    assert not (tmp_path / "other").exists()  # it can be started without


def test_one_program_for_all_tasks(tmp_path):
    rows._update_exactly.clear_cache()
    config = changed(TINY, seeds=(0,), rho=(0.0,), steps_per_task=128, workers=0)
    train(config, tmp_path / "fleet", quiet=True)
    assert rows._update_exactly._cache_size() == 1
