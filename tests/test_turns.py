"""Groups that share the cores: how many at once, and who goes first."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import PATIENCE, until

from sphere.envs.turns import Turns


def waiting(turns, count):
    until(lambda: len(turns._waiting) >= count)
    assert len(turns._waiting) == count


@pytest.mark.parametrize("places", [1, 3, 20])
def test_no_more_than_there_are_places_and_as_many_as_there_are(places):
    turns, inside, most, lock = Turns(places), 0, 0, threading.Lock()
    full = threading.Barrier(min(places, 12))  # passes only if so many are in at once

    def work(number):
        nonlocal inside, most
        with turns.taken(number % 4):
            with lock:
                inside += 1
                most = max(most, inside)
            full.wait(PATIENCE)
            with lock:
                inside -= 1

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    assert most == min(places, 12)
    assert inside == 0


def test_who_has_done_least_goes_first_and_of_equals_who_came_first():
    turns, order = Turns(1), []

    def work(done, name):
        with turns.taken(done):
            order.append(name)

    with ThreadPoolExecutor(5) as pool, turns.taken(0):
        for place, (done, name) in enumerate([(5, "five"), (2, "two"), (9, "nine"), (2, "two again"), (0, "none")]):
            pool.submit(work, done, name)
            waiting(turns, place + 1)
        assert order == []
    assert order == ["none", "two", "two again", "five", "nine"]


def test_one_that_fails_leaves_its_place():
    turns = Turns(1)
    with pytest.raises(KeyError), turns.taken(0):
        raise KeyError
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: turns.taken(3).__enter__() is None).result(timeout=PATIENCE)
