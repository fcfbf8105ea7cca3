"""Real simulators under the promise of exact resume: cut off in an episode, a fleet ends with the same numbers."""

from pathlib import Path

import kill
import pytest
from fleets import TINY, assert_same, changed

from sphere.envs import assets
from sphere.training.fleet import Fleet
from sphere.training.loop import train

pytestmark = pytest.mark.usefixtures("models_compiled_once")
ARCHIVE = Path(__file__).parents[2] / "shared" / "data" / "humanoid_bench_assets.tar.xz"
TASKS = {"metaworld": ("window-close", "push"), "humanoidbench": ("walk", "slide")}


@pytest.fixture(scope="module", params=TASKS)
def config(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "humanoidbench":
            patch.setenv("SPHERE_ASSETS", str(tmp_path_factory.mktemp("assets")))
            if not ARCHIVE.exists():
                pytest.skip(f"the models of HumanoidBench are not at {ARCHIVE}")
            assets.install("humanoidbench", ARCHIVE, say=lambda line: None)
        yield changed(
            TINY,
            tasks=tuple(f"{request.param}/{task}" for task in TASKS[request.param]),
            seeds=(0,),
            rho=(0.1,),
            steps_per_task=6 * 64,
            horizon=40,
            workers=0,
        )


@pytest.fixture(scope="module")
def straight(config, tmp_path_factory):
    """The fleet trained from start to end without a stop."""
    directory = tmp_path_factory.mktemp("straight") / "fleet"
    train(config, directory, quiet=True)
    return directory


def test_a_fleet_cut_off_in_an_episode_goes_on_to_the_same_numbers(config, straight, tmp_path):
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
    assert_same(straight, tmp_path / "cut")


def test_kill_nine_and_resume_equals_straight_through(config, straight, tmp_path):
    """Real processes with a worker each, killed while records are written."""
    config = changed(config, workers=1)
    kill.train_with_kills(config, tmp_path / "killed", tmp_path / "cache", kills=1, seed=9)
    assert_same(straight, tmp_path / "killed")
