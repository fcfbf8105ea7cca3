"""Environments by name: `make("suite/task", ...)` gives a `sphere.envs.pool.Pool`, `tasks(suite)` a list.

Importing this package imports no simulator, not even gymnasium; a suite is imported when it is asked for. Where
gymnasium is imported already, its `make_vec("sphere/metaworld-hammer", num_envs=8)` knows the tasks from here on.
"""

import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sphere import registry
from sphere.envs.batch import Batch, Suite

if TYPE_CHECKING:
    from sphere.envs.gym_names import NextStep
    from sphere.envs.pool import Pool
    from sphere.envs.vec_env import PoolVecEnv

__all__ = ["Batch", "Suite", "make", "next_step", "sb3", "suite", "tasks"]


def make(
    name: str,
    num_envs: int = 1,
    seed: int | Sequence[int] = 0,
    workers: int | None = None,
    timeout: float = 120.0,
    **settings: Any,
) -> "Pool":
    """`num_envs` environments of "suite/task" for every run seed, as one `gymnasium.vector.VectorEnv`.

    Several seeds make a fleet: environments are in run-major order, and each run's trajectories are those it would have
    alone. `settings` go to the suite: goals ("random" or "frozen"), horizon and one_hot to metaworld, horizon to
    humanoidbench.
    """
    from sphere.envs import assets
    from sphere.envs.pool import Pool

    suite_name, slash, task = name.partition("/")
    if not slash:
        raise ValueError(f"environment {name!r} has no suite; write 'suite/task', for example {_example()!r}")
    seeds = [seed] if isinstance(seed, int | np.integer) else seed
    taken = list(inspect.signature(suite(suite_name)).parameters)[2:]
    for setting in settings:
        if setting not in taken:
            has = f"it has {', '.join(taken)}" if taken else "it has none"
            raise ValueError(f"the suite {suite_name!r} has no setting {setting!r}; {has}")
    if suite_name in assets.COLLECTIONS:
        assets.find(suite_name)  # said here in one sentence, not at the end of a worker's traceback
    return Pool(suite(suite_name), task, num_envs, seeds, workers, timeout, settings)


def next_step(pool: "Pool") -> "NextStep":
    """A pool as gymnasium's NormalizeObservation, RecordEpisodeStatistics and its other vector wrappers want it."""
    from sphere.envs.gym_names import NextStep

    return NextStep(pool)


def sb3(pool: "Pool") -> "PoolVecEnv":
    """The environments of a pool as a Stable-Baselines3 `VecEnv`, for its PPO, SAC, TD3 and the rest."""
    try:
        from sphere.envs.vec_env import PoolVecEnv
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"sphere.envs.sb3 needs {error.name}: pip install stable-baselines3") from error
    return PoolVecEnv(pool)


def tasks(suite_name: str) -> tuple[str, ...]:
    """The names of all tasks of a suite."""
    return tuple(suite(suite_name).tasks)


def suite(name: str) -> Suite:
    """What makes batches of a suite's tasks."""
    return registry.suite(name)


def _example() -> str:
    first = next(iter(registry.SUITES))
    return f"{first}/{tasks(first)[0]}"


if "gymnasium" in sys.modules:
    from sphere.envs import gym_names

    gym_names.register()
