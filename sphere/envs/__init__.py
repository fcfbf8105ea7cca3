"""Environments by name: `make("suite/task", ...)` gives a `sphere.envs.pool.Pool`, `tasks(suite)` a list.

Importing this package imports no simulator, not even gymnasium; a suite is imported when it is asked for. Where
gymnasium is imported already, its `make_vec("sphere/metaworld-hammer", num_envs=8)` knows the tasks from here on.

A suite writes one class (`batch.py`). What is done around it for all suites alike:

- **Workers are fresh interpreters** (`worker.py`), not forks. Neither jax nor the learner's `__main__` is imported in
  them, and they have one BLAS thread each. By default all cores have one; below eight cores the learner is one of them.
- **One file in memory** holds a row per environment: action in; observation, reward, flags out. It has no name, so no
  crash can leave it behind. All but steps is pickled behind a byte through a pipe.
- **A step needs no system call** while both sides are awake (`worker.py`). Where one core may see another's stores out
  of order (not x86) a step is one byte each way.
- **Workers act by themselves** where they can (`rollout_driver.py`): parameters lie in shared memory, the worker has
  the network in numpy (`policy.py`), noise is drawn by the learner for a whole rollout. Asking a GPU for every action
  cost 0.9 ms, twice what the physics of five environments takes. Only expert choice, where an action depends on the
  other states of the batch, still asks the learner.
- **Seeds are by counter**: all that an environment draws comes from `default_rng([run seed, crc32(task), index in the
  run, episode])`. Trajectories depend neither on the number of workers nor on which runs share a pool, and no two
  tasks, and no two visits to a task, draw the same numbers.
- **Resets are in the same step**: where an episode ends, `obs` is the first observation of the next one and
  `infos["final_obs"]` the true successor.
- **State is captured by environment**, not by worker: it can be restored under another number of workers, and the rows
  of one run in a pool with other runs.
- **Simulators on a GPU** are another way (`worlds.py`): no processes, one compiled program. Evaluation stays here.
- **Any exception in an exchange closes the pool**, Ctrl-C too: an answer that nobody took would pass for that to a
  later question. Workers leave when the pipe closes or the learner is gone.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from sphere import registry
from sphere.envs.batch import Batch, Suite
from sphere.errors import UserError

if TYPE_CHECKING:
    from sphere.envs.gym_names import NextStep
    from sphere.envs.pool import Pool
    from sphere.envs.vec_env import PoolVecEnv
    from sphere.envs.worlds_env import Functions, WorldsEnv

__all__ = ["Batch", "Suite", "check_sizes", "functions", "make", "next_step", "sb3", "suite", "tasks"]


@overload
def make(
    name: str,
    num_envs: int = 1,
    seed: int | Sequence[int] = 0,
    workers: int | None = None,
    timeout: float = 120.0,
    simulator: Literal["cpu"] = "cpu",
    **settings: Any,
) -> "Pool": ...
@overload
def make(
    name: str,
    num_envs: int = 1,
    seed: int | Sequence[int] = 0,
    workers: int | None = None,
    timeout: float = 120.0,
    *,
    simulator: Literal["gpu"],
    **settings: Any,
) -> "WorldsEnv": ...
def make(
    name: str,
    num_envs: int = 1,
    seed: int | Sequence[int] = 0,
    workers: int | None = None,
    timeout: float = 120.0,
    simulator: Literal["cpu", "gpu"] = "cpu",
    **settings: Any,
) -> "Pool | WorldsEnv":
    """`num_envs` environments of "suite/task" for every run seed, as one `gymnasium.vector.VectorEnv`.

    Several seeds make a fleet: environments are in run-major order, and each run's trajectories are those it would have
    alone. `settings` go to the suite: goals ("random" or "frozen"), horizon and one_hot to metaworld, horizon to
    humanoidbench. `simulator="gpu"`: simulated on the GPU, by other physics than the benchmark's own (humanoidbench,
    with sphere-rl[warp]); `workers` and `timeout` then mean nothing.
    """
    from sphere.envs import assets, worker_path
    from sphere.envs.pool import Pool

    suite_name, slash, task = name.partition("/")
    if not slash:
        raise ValueError(f"environment {name!r} has no suite; write 'suite/task', for example {_example()!r}")
    seeds = [seed] if isinstance(seed, int | np.integer) else seed
    if simulator == "gpu":
        from sphere.envs.worlds_env import WorldsEnv

        return WorldsEnv(name, num_envs, seeds, settings)
    taken = list(inspect.signature(suite(suite_name)).parameters)[2:]
    for setting in settings:
        if setting not in taken:
            has = f"it has {', '.join(taken)}" if taken else "it has none"
            raise ValueError(f"the suite {suite_name!r} has no setting {setting!r}; {has}")
    worker_path.check_suite(suite(suite_name))
    if suite_name in assets.COLLECTIONS:
        assets.find(suite_name)  # said here in one sentence, not at the end of a worker's traceback
    check = getattr(suite(suite_name), "check", None)
    if check is not None:
        check(**settings)
    own_pool = getattr(suite(suite_name), "pool", None)
    pool = Pool if own_pool is None else own_pool(**settings)
    return pool(suite(suite_name), task, num_envs, seeds, workers, timeout, settings)


def functions(name: str, num_envs: int = 1, **settings: Any) -> "Functions":
    """Worlds of "suite/task" on the GPU as a pair of pure functions for JAX.

    `reset(seed)` gives (worlds, obs) and `step(worlds, action)` gives (worlds, moved). `moved` has obs, final_obs (the
    true successor), reward, terminated, truncated and success, a row for each of `num_envs` worlds, and `ended`, the
    numbers of the episodes that the step has ended. Where one ends, the next has begun: `obs` is its first observation.
    """
    from sphere.envs.worlds_env import functions as made

    return made(name, num_envs, settings)


def check_sizes(names: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Refuse tasks whose observations or actions have different sizes: one network cannot go through them.

    An environment of each task is made to see. A suite whose tasks are all alike says so (`same_sizes`), and none is.
    """
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1 or getattr(suite(distinct[0].split("/")[0]), "same_sizes", False):
        return
    sizes = {}
    for name in distinct:
        with make(name, workers=0, **settings) as pool:
            sizes[name] = pool.single_observation_space.shape[0], pool.single_action_space.shape[0]
    first, one = next(iter(sizes.items()))
    for name, other in sizes.items():
        if other != one:
            raise UserError(
                f"{first} has {one[0]} numbers in an observation and {one[1]} in an action, {name} has {other[0]} and "
                f"{other[1]}; one network cannot learn both, so train them as fleets of their own"
            )


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
