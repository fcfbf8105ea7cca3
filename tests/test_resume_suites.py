"""Real simulators under the promise of exact resume: cut off in an episode, a fleet ends with the same numbers."""

import dataclasses
from pathlib import Path

import fleets
import numpy as np
import pytest
from fleets import TINY

from sphere.envs import assets
from sphere.runs.fleet import Fleet
from sphere.runs.loop import train
from sphere.runs.settings import Simulator

ARCHIVE = Path(__file__).parents[2] / "shared" / "data" / "humanoid_bench_assets.tar.xz"
TASKS = {"metaworld": ("window-close", "push"), "humanoidbench": ("walk", "slide")}


@pytest.mark.parametrize("suite", TASKS)
def test_a_fleet_cut_off_in_an_episode_goes_on_to_the_same_numbers(suite, tmp_path, monkeypatch):
    if suite == "humanoidbench":
        monkeypatch.setenv("SPHERE_ASSETS", str(tmp_path / "assets"))
        if not ARCHIVE.exists():
            pytest.skip(f"the models of HumanoidBench are not at {ARCHIVE}")
        assets.install("humanoidbench", ARCHIVE, say=lambda line: None)
    config = dataclasses.replace(
        TINY,
        tasks=tuple(f"{suite}/{task}" for task in TASKS[suite]),
        seeds=(0,),
        steps_per_task=6 * 64,
        simulator=Simulator(horizon=40),
        workers=0,
    )
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
    assert fleets.numbers(tmp_path / "straight") == fleets.numbers(tmp_path / "cut")
    arrays, others = (fleets.final_arrays(tmp_path / name) for name in ("straight", "cut"))
    assert arrays.keys() == others.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)
