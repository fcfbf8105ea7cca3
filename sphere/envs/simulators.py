"""Where a suite's simulators live: in worker processes (`cpu`) or on the GPU that learns (`gpu`).

A suite has a form for a GPU if it is in `registry.WORLDS`. Such a class makes `sphere.envs.worlds.Worlds` of a task and
a number of worlds; what it needs of the machine is said by its `check`, in a sentence.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Literal

import jax

from sphere import registry
from sphere.envs.worlds import Worlds
from sphere.errors import UserError, unknown

Simulator = Literal["cpu", "gpu"]


def check(suite: str) -> None:
    """Refuse a GPU simulator for a suite without one, or on a machine that lacks what it needs."""
    if suite not in registry.WORLDS:
        known = ", ".join(registry.WORLDS)
        raise UserError(f"{suite} has no simulator on a GPU, only {known} has; use --simulator cpu")
    needs = getattr(registry.worlds(suite), "check", None)
    if needs is not None:
        needs()


def best(suite: str) -> Simulator:
    """The GPU where there is one with all that the suite's simulator needs."""
    if suite not in registry.WORLDS:
        return "cpu"
    try:
        check(suite)
    except UserError:
        return "cpu"
    return "gpu"


def make(name: str, count: int, settings: Mapping[str, Any]) -> Worlds:
    """`count` worlds of "suite/task"."""
    suite, _, task = name.partition("/")
    check(suite)
    kind = registry.worlds(suite)
    if task not in kind.tasks:
        raise unknown("task with a simulator on a GPU", task, kind.tasks)
    taken = list(inspect.signature(kind).parameters)[2:]
    for setting in settings:
        if setting not in taken:
            raise UserError(f"worlds of {suite!r} on a GPU have no setting {setting!r}; use --simulator cpu")
    made = kind(task, count, **settings)
    check_room(getattr(made, "bytes_per_world", 0), count)
    return made


def check_room(each: int, count: int) -> None:
    """Refuse more worlds than the device has memory for."""
    stats = jax.local_devices()[0].memory_stats() or {}
    free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
    if "bytes_limit" in stats and each * count > free:
        raise UserError(
            f"{count:,} worlds take {each * count / 2**30:,.1f} GiB on the device, and {free / 2**30:,.1f} GiB are "
            f"free; use {free // each:,} at most (runs times num_envs), or --simulator cpu"
        )
