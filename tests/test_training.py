"""Training as a person meets it: it learns, it resumes exactly, and it ends in an orderly way when something breaks."""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import fleets
import jax
import kill
import numpy as np
import processes
import pytest
from fleets import TINY, changed
from processes import PATIENCE

from sphere.algos import fleet as rows
from sphere.algos.source import Outcomes
from sphere.envs.player import Player
from sphere.envs.pool import WorkerError
from sphere.envs.source import EnvironmentSource, places
from sphere.envs.turns import Turns
from sphere.storage import files, run_directory
from sphere.training.fleet import AHEAD, Fleet, _threads
from sphere.training.group import Group, Order, Report
from sphere.training.loop import Interrupted, NonFinite, train
from sphere.training.settings import Boundary, from_json


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The fleet trained from start to end without a stop."""
    directory = tmp_path_factory.mktemp("straight") / "fleet"
    train(TINY, directory, quiet=True)
    return directory


def assert_same(one, other):
    assert fleets.numbers(one) == fleets.numbers(other)
    arrays, others = fleets.final_arrays(one), fleets.final_arrays(other)
    assert arrays.keys() == others.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


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


def test_halves_that_overlap_equal_two_fleets(tmp_path):
    config = changed(TINY, rho=(0.05, 0.1))
    train(changed(config, overlap=True), tmp_path / "both", quiet=True)
    for rho in config.rho:
        train(changed(config, rho=(rho,), overlap=False), tmp_path / f"{rho}", quiet=True)
        both, alone = fleets.numbers(tmp_path / "both"), fleets.numbers(tmp_path / f"{rho}")
        assert len(alone) == 2 * len(TINY.seeds)
        assert {name: both[name] for name in alone} == alone


def test_groups_of_two_equal_fleets_of_two(tmp_path):
    """Where environments need not meet after every step there are more than two groups; the last has what is left."""
    config = changed(TINY, seeds=(0, 1, 2, 3, 4), rho=(0.1,), normalise_observations=False, overlap=True)
    train(config, tmp_path / "five", quiet=True)
    five = fleets.numbers(tmp_path / "five")
    for seeds in ((0, 1), (2, 3), (4,)):
        alone = tmp_path / f"{seeds}"
        train(changed(config, seeds=seeds, overlap=False), alone, quiet=True)
        numbers = fleets.numbers(alone)
        assert len(numbers) == 2 * len(seeds)
        assert {name: five[name] for name in numbers} == numbers


def test_how_a_fleet_is_divided(monkeypatch):
    """A thread's worth of runs each, on the cores of a machine."""
    monkeypatch.setattr("sphere.envs.source.cores", lambda: 16)

    def sizes(runs, sharing=1, **settings):
        source = changed(TINY.source, **{"workers": None, "overlap": True, **settings})
        found = source.divide(runs, sharing)
        assert sum(found) == runs
        return found, source.workers_of_a_group(len(found), sharing)

    apart = {"normalise_observations": False}
    assert sizes(1) == ([1], None)
    assert sizes(4) == ([2, 2], 8)  # TINY's environments meet after every step
    assert sizes(10) == ([5, 5], 8)
    assert sizes(2, **apart) == ([1, 1], 8)
    assert sizes(5, **apart) == ([2, 2, 1], 6)
    assert sizes(10, **apart) == ([2, 2, 2, 2, 2], 4)
    assert sizes(64, **apart)[1] == 1
    assert sizes(10, **apart, overlap=False) == ([10], None)
    assert sizes(10, **apart, workers=3) == ([2, 2, 2, 2, 2], 3)
    assert sizes(10, **apart, sharing=2) == ([2, 2, 2, 2, 2], 2)  # a worker for each run
    assert sizes(10, **apart, sharing=2, overlap=False) == ([10], 8)
    assert sizes(10, **apart, sharing=4, overlap=False) == ([10], 4)
    assert sizes(1, sharing=16) == ([1], 0)  # the learner itself
    assert sizes(10, sharing=4) == ([5, 5], 2)
    assert [places(workers) for workers in (None, 0, 1, 2, 4, 6, 8)] == [1, 1, 16, 8, 4, 3, 2]


@pytest.mark.parametrize(("backend", "threads"), [("cpu", 1), ("gpu", 5)])
def test_groups_take_turns_on_a_cpu(monkeypatch, backend, threads):
    """Five threads with diagnostics on two cores hung: each program held a thread of XLA's pool and waited for
    another."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    found = _threads(5)
    for thread in found:
        thread.shutdown(cancel_futures=True)
    assert len(found) == 5
    assert len(set(map(id, found))) == threads


class Slow:
    """A fleet of two groups with a thread each: the first does an iteration when it is told to, the second at once."""

    def __init__(self, directory, monkeypatch):
        self.fleet = Fleet(changed(TINY, overlap=True, workers=0), directory)
        self.fleet.threads = [ThreadPoolExecutor(1) for _ in self.fleet.groups]
        self.may, self.done = threading.Semaphore(0), ([], [])
        monkeypatch.setattr(Group, "advance", self.advance_group)

    def advance_group(self, group, order):
        number = self.fleet.groups.index(group)
        if number == 0:
            assert self.may.acquire(timeout=PATIENCE)
        self.done[number].append(order.iteration)
        metrics = {"iteration": np.full(len(group.seeds), order.iteration)}
        return Report(metrics, Outcomes(np.zeros(0), np.zeros(0), {}))

    def fast(self):
        """How many the second group has done when it has done all that it was given."""
        self.fleet.threads[1].submit(int).result(PATIENCE)
        return len(self.done[1])

    def ask(self, ahead):
        self.may.release()
        return self.fleet.advance(ahead)[1].metrics["iteration"].tolist()


def test_a_fast_group_does_not_wait_for_a_slow_one_but_within_limits(tmp_path, monkeypatch):
    slow = Slow(tmp_path, monkeypatch)
    try:
        left = AHEAD + 5
        for i in range(left):
            assert set(slow.ask(left - i - 1)) == {i}
            assert slow.fast() == min(i + 1 + AHEAD, left)
        assert not slow.fleet.queue
        assert slow.done == (list(range(left)), list(range(left)))
    finally:
        slow.fleet.close()


def test_to_stop_the_slow_catch_up_and_what_nobody_has_begun_is_left(tmp_path, monkeypatch):
    slow = Slow(tmp_path, monkeypatch)
    begun, go_on, whole = threading.Event(), threading.Event(), Slow.advance_group

    def until_the_fifth(self, group, order):
        if self.fleet.groups.index(group) == 1 and order.iteration == 4:
            begun.set()
            assert go_on.wait(PATIENCE)
        return whole(self, group, order)

    monkeypatch.setattr(Slow, "advance_group", until_the_fifth)
    monkeypatch.setattr(Group, "advance", slow.advance_group)
    try:
        assert set(slow.ask(ahead=20)) == {0}
        assert begun.wait(PATIENCE)
        assert set(slow.ask(ahead=0)) == {1}
        go_on.set()
        for i in (2, 3, 4):
            assert slow.fleet.queue
            assert set(slow.ask(ahead=0)) == {i}
        assert not slow.fleet.queue
        assert slow.done == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
        assert set(slow.ask(ahead=0)) == {5}  # and from there it could go on
        assert slow.fleet.total_iterations == 6
    finally:
        slow.fleet.close()


def test_groups_go_into_the_next_task_by_themselves(tmp_path, monkeypatch):
    """The first group ends its task only after the second has ended an iteration of the next one; numbers do not
    change."""
    config = changed(TINY, overlap=True, evaluation=changed(TINY.evaluation, retention=True))
    train(config, tmp_path / "turns", quiet=True)
    whole, one_at_a_time, crossed, groups = Group.advance, threading.Lock(), threading.Event(), []

    def advance(group, order):
        number = groups.index(group)
        if number == 0 and order.iteration == config.iterations_per_task - 1:
            assert crossed.wait(PATIENCE)
        with one_at_a_time:  # two programs at once can hang on a CPU
            done = whole(group, order)
        if number == 1 and order.task_index == 1:
            crossed.set()
        return done

    monkeypatch.setattr(Group, "advance", advance)
    monkeypatch.setattr("sphere.training.fleet._threads", lambda count: [ThreadPoolExecutor(1) for _ in range(count)])
    begin = Fleet.begin_task
    monkeypatch.setattr(Fleet, "begin_task", lambda fleet: (groups.extend(fleet.groups), begin(fleet)))
    train(config, tmp_path / "apart", quiet=True)
    assert crossed.is_set()
    assert_same(tmp_path / "turns", tmp_path / "apart")


def test_groups_collect_and_are_evaluated_in_their_turns(tmp_path, monkeypatch):
    config = changed(TINY, overlap=True, steps_per_task=128)
    inside, seen, taken, collect, run = set(), [], Turns.taken, EnvironmentSource.sample, Player.evaluate

    @contextlib.contextmanager
    def spied(turns, done):
        with taken(turns, done):
            inside.add(done)
            yield
            inside.clear()

    def asserted(name, function):
        def called(*arguments):
            seen.append((name, *inside))
            return function(*arguments)

        return called

    monkeypatch.setattr(Turns, "taken", spied)
    monkeypatch.setattr(EnvironmentSource, "sample", asserted("collect", collect))
    monkeypatch.setattr(Player, "evaluate", asserted("evaluate", run))
    train(config, tmp_path / "fleet", quiet=True)
    ends = [1, 3, 3, 3]  # each task at its end, and after the last one both once more
    assert sorted(seen) == sorted(2 * ([("collect", i) for i in range(4)] + [("evaluate", i) for i in ends]))


def test_a_task_that_comes_twice_is_recorded_at_both_places(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=64, tasks=TINY.tasks[:1] * 2)
    train(config, tmp_path / "fleet", quiet=True)
    lines = run_directory.read_events(tmp_path / "fleet" / "rho0-seed0")
    for name in ("train/return", "evaluation/return"):
        assert [line["task_index"] for line in lines if name in line] == [0, 1]


def test_overlap_goes_on_exactly_and_in_one_group_too(tmp_path):
    """A checkpoint does not know how its fleet was divided."""
    config = changed(TINY, overlap=True)
    train(config, tmp_path / "straight", quiet=True)
    fleets.write(config, tmp_path / "cut")
    fleets.cut_after(7, config, tmp_path / "cut")
    train(config, tmp_path / "cut", resume=True, quiet=True)
    assert_same(tmp_path / "straight", tmp_path / "cut")
    fleets.write(config, tmp_path / "other")
    fleets.cut_after(7, config, tmp_path / "other")
    train(changed(config, overlap=False), tmp_path / "other", resume=True, quiet=True)
    one, other = fleets.final_arrays(tmp_path / "straight"), fleets.final_arrays(tmp_path / "other")
    assert one.keys() == other.keys()
    for name in one:  # two groups of two runs and one of four round differently, no more
        np.testing.assert_allclose(other[name], one[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("kills", [3])
def test_kill_nine_and_resume_equals_straight_through(straight, tmp_path, kills):
    """Real processes, killed at random moments; `python scripts/kills.py 200` is the long form."""
    kill.train_with_kills(TINY, tmp_path / "killed", tmp_path / "cache", kills, seed=0)
    assert_same(straight, tmp_path / "killed")


def test_a_damaged_newest_checkpoint_falls_back_and_says_so(straight, tmp_path, capfd):
    fleets.write(TINY, tmp_path / "fleet")
    fleets.cut_after(7, TINY, tmp_path / "fleet")
    newest = max((tmp_path / "fleet").glob("checkpoint-*.npz"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(bytes(content))
    train(TINY, tmp_path / "fleet", resume=True)
    said = capfd.readouterr().err
    assert newest.name in said
    assert_same(straight, tmp_path / "fleet")


def test_two_processes_on_one_directory(tmp_path):
    fleets.write(TINY, tmp_path / "fleet")
    with files.lock_directory(tmp_path / "fleet"):
        other = fleets.resume(tmp_path / "fleet", tmp_path / "cache")
        said = processes.ended(other)
    assert other.returncode == 1
    assert "pid" in said
    assert "Traceback" not in said


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


def test_a_stop_asked_for_in_the_last_iteration_does_not_promise_more(tmp_path, monkeypatch):
    original = Fleet.advance

    def asked(self, ahead):
        if self.total_iterations == self.config.total_iterations - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, ahead)

    monkeypatch.setattr(Fleet, "advance", asked)
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=64)
    with pytest.raises(Interrupted, match="stopped after step 128; all is trained"):
        train(config, tmp_path / "fleet", quiet=True)


def test_asked_to_stop_it_saves_and_leaves_and_resume_goes_on(straight, tmp_path):
    """By Ctrl-C, and again by SIGTERM, a scheduler's way to ask."""
    fleets.write(TINY, tmp_path / "fleet")
    for asked, iterations in ((signal.SIGINT, 3), (signal.SIGTERM, 11)):
        hold = fleets.Hold(tmp_path / "hold", iterations)
        process = fleets.resume(tmp_path / "fleet", tmp_path / "cache", hold=hold)
        processes.until(lambda hold=hold: hold.reached(tmp_path / "fleet"), process)
        workers = processes.children(process.pid)
        assert workers
        for pid in [process.pid, *workers]:  # a terminal and a scheduler tell all processes
            os.kill(pid, asked)
        said = processes.ended(process)
        assert process.returncode == 130, said
        assert f"stopped after step {64 * (iterations + 1)}" in said
        assert "sphere resume" in said
        assert "Traceback" not in said
    environment = tmp_path / "fleet" / "rho0-seed0" / "environment.json"
    began = json.loads(environment.read_text()) | {"python": "2.7"}
    environment.write_text(json.dumps(began))
    second = fleets.resume(tmp_path / "fleet", tmp_path / "cache", "--workers", "2")  # a machine with other cores
    said = processes.ended(second)
    assert second.returncode == 0, said
    assert "not the same python as before" in said
    assert_same(straight, tmp_path / "fleet")
    noted = json.loads(environment.read_text())
    assert noted["python"] == "2.7"
    assert [list(change) for change in noted["resumed"].values()] == [["python"]]


def test_a_directory_with_a_fleet_is_refused_and_stays_as_it_is(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=64)
    train(config, tmp_path / "fleet", quiet=True)
    before = {path: path.read_bytes() for path in (tmp_path / "fleet").rglob("*") if path.is_file()}
    for other in ({"steps_per_task": 128}, {"seeds": (1,)}):
        with pytest.raises(FileExistsError, match="holds a fleet already"):
            train(changed(config, **other), tmp_path / "fleet", quiet=True)
    assert {path: path.read_bytes() for path in (tmp_path / "fleet").rglob("*") if path.is_file()} == before


def test_a_fleet_goes_on_with_the_settings_that_its_records_name(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=128)
    fleets.write(config, tmp_path / "fleet")
    fleets.cut_after(3, config, tmp_path / "fleet")
    other = changed(config, steps_per_task=256, learner=changed(config.learner, gamma=0.5))
    with pytest.raises(ValueError, match=r"config\.json has another steps_per_task, learner\.gamma than fleet"):
        train(other, tmp_path / "fleet", resume=True, quiet=True)
    train(changed(config, checkpoint_every=1, workers=1), tmp_path / "fleet", resume=True, quiet=True)


def test_a_damaged_checkpoint_is_out_of_the_way_once_the_fleet_goes_on(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, checkpoint_every=4)
    fleets.write(config, tmp_path / "fleet")
    fleets.cut_after(10, config, tmp_path / "fleet")
    four, eight = sorted((tmp_path / "fleet").glob("checkpoint-*.npz"))
    assert (four.stem[-1], eight.stem[-1]) == ("4", "8")
    eight.write_bytes(b"damaged")
    fleets.cut_after(2, config, tmp_path / "fleet")
    assert sorted((tmp_path / "fleet").glob("checkpoint-*.npz")) == [four]


def test_who_only_looks_whether_all_is_done_is_not_noted_as_its_machine(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=64)
    train(config, tmp_path / "fleet", quiet=True)
    environment = tmp_path / "fleet" / "rho0-seed0" / "environment.json"
    elsewhere = json.loads(environment.read_text()) | {"device": {"kind": "another"}}
    environment.write_text(json.dumps(elsewhere))
    train(config, tmp_path / "fleet", resume=True, quiet=True)
    assert json.loads(environment.read_text()) == elsewhere


def test_closing_a_fleet_waits_for_what_is_running_and_begins_nothing(tmp_path, monkeypatch):
    slow = Slow(tmp_path, monkeypatch)
    running, begun, ended = threading.Barrier(3), [], []

    def until_the_rest_is_cancelled(group, order):
        begun.append(order.iteration)
        running.wait(PATIENCE)
        processes.until(lambda: all(future.cancelled() for future in waiting))
        ended.append(order.iteration)

    monkeypatch.setattr(Group, "advance", until_the_rest_is_cancelled)
    for _ in range(4):
        slow.fleet._begin_iteration()
    waiting = [future for _, futures in list(slow.fleet.queue)[1:] for future in futures]
    assert len(waiting) == 6
    running.wait(PATIENCE)
    slow.fleet.close()
    assert begun == ended == [0, 0]


def test_whoever_has_plans_for_sigterm_keeps_them(tmp_path, monkeypatch):
    """submitit answers it by itself, and hands the job back to the queue by another signal."""
    heard, original = [], Fleet.advance

    def interrupted(self, ahead):
        if self.total_iterations == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, ahead)

    monkeypatch.setattr(Fleet, "advance", interrupted)
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("theirs"))
    try:
        train(changed(TINY, seeds=(0,), rho=(0.0,), workers=0), tmp_path / "fleet", quiet=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["theirs"]


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


@pytest.mark.parametrize("made", [0, 1])
def test_a_fleet_killed_while_it_made_its_directories_can_be_resumed(straight, tmp_path, made):
    fleets.write(TINY, tmp_path / "fleet")
    for path in sorted((tmp_path / "fleet").glob("*/config.json"))[made:]:
        shutil.rmtree(path.parent)
    train(TINY, tmp_path / "fleet", resume=True, quiet=True)
    assert_same(straight, tmp_path / "fleet")


def test_one_program_for_all_tasks(tmp_path):
    rows._update_exactly.clear_cache()
    config = changed(TINY, seeds=(0,), rho=(0.0,), steps_per_task=128, workers=0)
    train(config, tmp_path / "fleet", quiet=True)
    assert rows._update_exactly._cache_size() == 1
