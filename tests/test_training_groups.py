"""A fleet in groups that overlap: how it is divided, whose turn it is, and that no number depends on it."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import fleets
import jax
import numpy as np
import processes
import pytest
from fleets import TINY, assert_same, changed
from processes import PATIENCE

from sphere.algos.source import Outcomes
from sphere.envs.collector import Collector
from sphere.envs.environments import EnvironmentSource, places
from sphere.envs.turns import Turns
from sphere.training.fleet import AHEAD, Fleet, _threads
from sphere.training.group import Group, IterationResult
from sphere.training.loop import train


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
    monkeypatch.setattr("sphere.envs.environments.cores", lambda: 16)

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
        return IterationResult(metrics, Outcomes(np.zeros(0), np.zeros(0), {}))

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
    inside, seen, taken, collect, run = set(), [], Turns.taken, EnvironmentSource.sample, Collector.evaluate

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
    monkeypatch.setattr(Collector, "evaluate", asserted("evaluate", run))
    train(config, tmp_path / "fleet", quiet=True)
    ends = [1, 3, 3, 3]  # each task at its end, and after the last one both once more
    assert sorted(seen) == sorted(2 * ([("collect", i) for i in range(4)] + [("evaluate", i) for i in ends]))


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
