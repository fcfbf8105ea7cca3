"""Worker processes of a pool: how many, how light, and no step lost at any pace."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from processes import children
from walk import Spy, Walk

from sphere import envs
from sphere.envs import handles
from sphere.envs import pool as pool_module
from sphere.envs.pool import Pool

pytestmark = pytest.mark.usefixtures("no_orphans")


def test_workers_are_light_and_leave_nothing_in_shm():
    with Pool(Spy, "walk", 2, workers=2) as pool:
        np.testing.assert_array_equal(pool.reset()[0], [[0, 0, 1]] * 2)  # no jax, no equinox, one thread
        for worker in pool._workers:
            maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
            assert "/memfd:sphere" in maps
            assert "/dev/shm" not in maps
            descriptors = [os.readlink(link) for link in Path(f"/proc/{worker.process.pid}/fd").iterdir()]
            assert sum(name.startswith("pipe:") for name in descriptors) <= 2 + 2  # its own, and pytest's stdout


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("in_order", [True, False])
def test_no_step_is_lost_or_doubled_at_any_pace(workers, in_order, monkeypatch):
    """Pauses around the time after which a worker goes to sleep, with doorbells and without, the learner awake or
    asleep."""
    monkeypatch.setattr(handles, "IN_ORDER", in_order)
    monkeypatch.setattr(handles, "AWAKE", 2e-4)  # shorter than some steps, so that the learner sleeps too
    rng = np.random.default_rng(0)
    with envs.make("probe/termination", num_envs=4, seed=0, workers=workers) as pool:
        pool.reset()
        for step in range(1, 600):
            time.sleep(rng.choice([0, 0, 2e-4, 9e-4, 1e-3, 1.1e-3, 3e-3]))
            obs, *_, infos = pool.step(np.zeros((4, 1)))
            np.testing.assert_array_equal(infos["final_obs"], np.full((4, 1), (step - 1) % 5 + 1))
            np.testing.assert_array_equal(obs, np.full((4, 1), step % 5))
            if step % 100 == 0:  # a command in between, by the pipe
                assert (pool.get_state()["elapsed"] == step % 5).all()


@pytest.mark.parametrize(("cores", "processes", "here"), [(1, 0, 1), (3, 2, 1), (5, 4, 1), (8, 6, 0)])
def test_by_default_the_learner_steps_a_share_where_cores_are_few(cores, processes, here, monkeypatch):
    monkeypatch.setattr(pool_module, "cores", lambda: cores)
    actions = np.random.default_rng(0).uniform(-1, 1, (40, 6, 1)).astype(np.float32)
    with Pool(Walk, "walk", 3, seeds=(5, 6)) as pool, Pool(Walk, "walk", 3, seeds=(5, 6), workers=0) as alone:
        assert len(children(os.getpid())) >= processes
        kinds = [type(worker).__name__ for worker in pool._workers]
        assert kinds == ["Local"] * here + ["Process"] * processes
        np.testing.assert_array_equal(pool.reset()[0], alone.reset()[0])
        for action in actions:
            for mine, theirs in zip(pool.step(action)[:4], alone.step(action)[:4], strict=True):
                np.testing.assert_array_equal(mine, theirs)
        state = pool.get_state()
        np.testing.assert_array_equal(alone.set_state(state), state["obs"])
