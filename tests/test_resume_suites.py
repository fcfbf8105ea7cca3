"""Real simulators under the promise of exact resume: cut off in an episode, a fleet ends with the same numbers."""

import dataclasses
from pathlib import Path

import fleets
import kill
import numpy as np
import pytest
from fleets import TINY

from sphere.envs import assets
from sphere.training.fleet import Fleet
from sphere.training.loop import train
from sphere.training.settings import Simulator

ARCHIVE = Path(__file__).parents[2] / "shared" / "data" / "humanoid_bench_assets.tar.xz"
TASKS = {"metaworld": ("window-close", "push"), "humanoidbench": ("walk", "slide")}


@pytest.fixture(params=TASKS)
def config(request, tmp_path, monkeypatch):
    if request.param == "humanoidbench":
        monkeypatch.setenv("SPHERE_ASSETS", str(tmp_path / "assets"))
        if not ARCHIVE.exists():
            pytest.skip(f"the models of HumanoidBench are not at {ARCHIVE}")
        assets.install("humanoidbench", ARCHIVE, say=lambda line: None)
    return dataclasses.replace(
        TINY,
        tasks=tuple(f"{request.param}/{task}" for task in TASKS[request.param]),
        seeds=(0,),
        steps_per_task=6 * 64,
        simulator=Simulator(horizon=40),
        workers=0,
    )


def assert_same(directory: Path, other: Path) -> None:
    assert fleets.numbers(directory) == fleets.numbers(other)
    arrays, others = fleets.final_arrays(directory), fleets.final_arrays(other)
    assert arrays.keys() == others.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


def test_a_fleet_cut_off_in_an_episode_goes_on_to_the_same_numbers(config, tmp_path):
    train(config, tmp_path / "straight", quiet=True)
    whole = Fleet.advance

    def cut_off(self, ahead):
        if self.total_iterations == 9:  # one after the last checkpoint, in the second task
            raise MemoryError("the machine is gone")
        return whole(self, ahead)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "advance", cut_off)
        with pytest.raises(MemoryError):
            train(config, tmp_path / "cut", quiet=True)
    train(config, tmp_path / "cut", resume=True, quiet=True)
    assert_same(tmp_path / "straight", tmp_path / "cut")


def test_kill_nine_and_resume_equals_straight_through(config, tmp_path):
    """Real processes with a worker each, killed while records are written."""
    config = dataclasses.replace(config, workers=1)
    train(config, tmp_path / "straight", quiet=True)
    kill.train_with_kills(config, tmp_path / "killed", tmp_path / "cache", kills=2, seed=1)
    assert_same(tmp_path / "straight", tmp_path / "killed")
