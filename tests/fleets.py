"""A fleet small enough to be trained, killed and resumed in seconds, in this process or another."""

import dataclasses
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

from sphere.algos.ppo import PPO
from sphere.algos.td3 import TD3
from sphere.envs.environments import Environments
from sphere.nets import NetConfig
from sphere.storage import files
from sphere.storage.fleet_directory import FleetDirectory
from sphere.training import loop
from sphere.training.describe import run_records
from sphere.training.settings import Evaluation, FleetConfig, to_json

ROOT = Path(__file__).parents[1]


def changed(settings: Any, **changes: Any) -> Any:
    """`dataclasses.replace`; of a fleet, settings of its source (workers, horizon, ...) too, by their own names."""
    source = getattr(settings, "source", None)
    own = {name: changes.pop(name) for name in list(changes) if source is not None and hasattr(source, name)}
    if own:
        changes["source"] = dataclasses.replace(changes.get("source", source), **own)
    return dataclasses.replace(settings, **changes)


TINY = FleetConfig(
    tasks=("probe/reach-north", "probe/reach-east"),
    steps_per_task=640,
    seeds=(0, 1),
    rho=(0.0, 0.1),
    learner=PPO(
        num_envs=4,
        rollout_steps=16,
        batch_size=32,
        epochs=2,
        actor=NetConfig(kind="top-k", width=8, depth=1, experts=3, top_k=2),
        critic=NetConfig(kind="mlp", width=8, depth=1),
    ),
    source=Environments(normalise_observations=True, workers=1),
    evaluation=Evaluation(every=256, episodes=3, heldout=16),
    checkpoint_every=2,
)
OFF_POLICY = changed(
    TINY,
    rho=(0.1,),
    normalise_observations=False,
    learner=TD3(
        num_envs=4,
        rollout_steps=16,
        update_ratio=0.125,
        batch_size=16,
        buffer_size=400,
        learning_starts=128,
        actor=NetConfig(kind="mlp", width=8, depth=1),
        critic=TINY.learner.actor,
    ),
)
"""With a memory that is full before a task ends, and is forgotten between tasks."""
SMALL = (
    "--steps-per-task 128 --ppo.num-envs 4 --ppo.rollout-steps 16 --ppo.batch-size 32 --ppo.epochs 2 "
    "--ppo.actor.width 8 --ppo.actor.depth 1 --ppo.critic.width 8 --ppo.critic.depth 1 "
    "--evaluation.episodes 2 --evaluation.heldout 16 --workers 0 --quiet"
).split()
"""The same size, in words after `sphere train`."""
SPEC = {"observation": (6,), "action": 2, "low": (-1.0, -1.0), "high": (1.0, 1.0)}
"""Of the probe tasks above."""


def python_path(*first: Path) -> str:
    """For another process, in another directory perhaps: `first`, then what this one was given."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join([*map(str, first), *map(os.path.abspath, given)])


class Hold:
    """Trainings in other processes do not go beyond so many iterations while `file` exists, unless they are asked to
    stop. So whatever a test does to them comes before their end, however fast they are."""

    def __init__(self, file: Path, iterations: int):
        self.file, self.iterations = file, iterations
        file.touch()
        self.environment = {
            "SPHERE_TEST_HOLD": str(file),
            "SPHERE_TEST_ITERATIONS": str(iterations),
            "PYTHONPATH": python_path(ROOT / "tests" / "holding", ROOT),
        }

    def done(self, directory: Path) -> int:
        """Iterations of the fleet that is trained there; -1 before it has begun the first."""
        path = directory.with_name(f"{directory.name}.done")
        text = path.read_text() if path.exists() else ""
        return int(text) if text.endswith("\n") else -1

    def reached(self, *directories: Path) -> bool:
        return min(map(self.done, directories)) >= self.iterations

    def release(self) -> None:
        self.file.unlink()


def trained(config: FleetConfig, directory: Path) -> Path:
    """The fleet, trained without a stop by the first of several processes that asks; it is only read after that."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (directory / "done").exists():
            shutil.rmtree(directory / "fleet", ignore_errors=True)  # of one that failed
            loop.train(config, directory / "fleet", quiet=True)
            (directory / "done").touch()
    return directory / "fleet"


def write(config: FleetConfig, directory: Path, spec: dict[str, Any] | None = None) -> None:
    """The fleet's settings as `sphere train` leaves them at its start, so that `sphere resume` can do the rest."""
    directory.mkdir(parents=True)
    spec = spec or SPEC
    files.write_json(directory / "fleet.json", {"format": files.FORMAT, "spec": spec, "settings": to_json(config)})
    FleetDirectory(directory, run_records(config, spec), None, resume=False).close()


def resume(directory: Path, cache: Path, *words: str, hold: Hold | None = None) -> subprocess.Popen:
    """`sphere resume` in a process of its own; compiled programs are shared through `cache` to save time."""
    directory.with_name(f"{directory.name}.done").unlink(missing_ok=True)
    settings = {
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",  # as in the tests' own process
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return processes.start(
        [sys.executable, "-m", "sphere", "resume", str(directory), *words],
        env={**os.environ, **settings, **(hold.environment if hold else {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
    )


def numbers(directory: Path) -> dict[str, list]:
    """All records of a fleet without wall-clock times."""
    found = {}
    for path in sorted(directory.glob("*/*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[str(path.relative_to(directory))] = without_wall(lines)
    return found


def without_wall(lines: list[dict]) -> list[dict]:
    return [{name: value for name, value in line.items() if name != "wall"} for line in lines]


def final_arrays(directory: Path) -> dict[str, np.ndarray]:
    """What the newest checkpoint holds, bit for bit; its note of file lengths aside (wall-clock digits vary)."""
    newest = max(directory.glob("checkpoint-*.npz"))
    with np.load(newest, allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name.startswith("tree/")}


def assert_same(one: Path, other: Path) -> None:
    """Two fleets with the same records and, at their end, the same networks, moments and environments, bit for bit."""
    assert numbers(one) == numbers(other)
    arrays, others = final_arrays(one), final_arrays(other)
    assert arrays.keys() == others.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


def cut_after(iterations: int, config: FleetConfig, directory: Path) -> None:
    """Train in this process, and leave by an exception before that many iterations are done."""
    calls = []
    original = loop.Training.iterate

    def iterate(training: loop.Training) -> dict[str, Any] | None:
        calls.append(1)
        if len(calls) == iterations:
            raise KeyboardInterrupt
        return original(training)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Training, "iterate", iterate)
        with pytest.raises(KeyboardInterrupt):
            loop.train(config, directory, resume=True, quiet=True)
