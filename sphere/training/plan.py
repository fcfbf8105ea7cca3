"""`sphere train --dry-run`: what would be trained, how much memory it takes and about how long."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sphere.algos import replay, rows
from sphere.algos.learner import Clock
from sphere.nets import parameter_count
from sphere.training import limits, memory
from sphere.training.fleet import Fleet
from sphere.training.group import Group
from sphere.training.progress import clock, plural
from sphere.training.settings import FleetConfig, listed


def best_seconds(once: Callable[[int], Any]) -> float:
    """Of the second and third call; the first compiles."""
    times = []
    for i in range(3):
        start = time.perf_counter()
        once(i)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _collect(group: Group, steps: int, iteration: int) -> None:
    group.source.sample(group.policy, steps, iteration)


def _collect_seconds(fleet: Fleet) -> float:
    """Of one iteration's data, in all groups at once: by a part of it."""
    steps = min(128, fleet.learner.rollout[1])
    return best_seconds(lambda i: fleet.each(_collect, steps, i)) / steps * fleet.learner.rollout[1]


def _update_seconds(fleet: Fleet) -> float:
    """Of one iteration's update of the largest group: by a few minibatches of made-up data."""
    group = fleet.groups[0]
    few, data, factor = fleet.learner.trial(group.source.spec, len(group.seeds))
    state = jax.tree.map(jnp.copy, group.state)

    def once(i: int) -> None:
        nonlocal state
        moment = Clock(np.int32(i), np.float32(0))
        state, _ = rows.update(few, state, group.numbers, data, group.seeds, moment)
        jax.block_until_ready(state)

    return best_seconds(once) * factor


def iteration_seconds(config: FleetConfig, horizon: int, groups: int, collect: float, update: float) -> float:
    """Collecting, learning, and what evaluation takes of simulated steps, on average."""
    envs, steps = config.learner.rollout
    episodes = config.evaluation.episodes * config.evaluation_count / config.iterations_per_task
    collect = collect * (1 + horizon * episodes / (envs * steps))
    if jax.default_backend() == "cpu":  # nothing happens beside anything else
        return collect + groups * update
    return max(collect + update, groups * update)  # some groups learn while others collect; the device is one


def plan(config: FleetConfig, out: Path) -> str:
    limits.check(config, out)
    fleet = Fleet(config, out)
    try:
        fleet.begin_task()
        source, state = fleet.groups[0].source, fleet.state
        collect, update = _collect_seconds(fleet), _update_seconds(fleet)
        iteration = iteration_seconds(config, source.horizon, len(fleet.groups), collect, update)
        data = fleet.learner.trial(source.spec, 1)[1]
    finally:
        fleet.close()
    runs = len(config.runs)
    nets = fleet.learner.networks(state)
    parameters = sum(parameter_count(net) for net in nets.values()) // runs
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    remembered = runs * memory.size(fleet.learner, source.spec)
    width = replay.width(source.spec)
    made_up = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(data)) // _samples(data)
    one = runs * config.iteration_steps * (4 * width if remembered else made_up)
    held_data = getattr(source, "held", 0)  # optional: bytes of a data set that lies on the device once for all runs
    many = "run" if runs == 1 else "runs as one fleet"
    lines = [
        f"{runs} {many} on {jax.devices()[0].device_kind}, into {out}",
        f"  runs       {', '.join(run.name for run in config.runs)}",
        f"  method     {'+'.join(method.name for method in fleet.learner.methods) or 'none'}",
        f"  tasks      {listed(config.tasks)} ({plural(len(config.tasks), 'task')}, {config.protocol})",
        f"  steps      {config.task_steps:,} per task and run "
        f"({plural(config.iterations_per_task, 'iteration')} of {config.iteration_steps:,}), "
        f"{config.total_iterations * config.iteration_steps * runs:,} in all",
        f"  networks   {parameters:,} parameters per run ({' and '.join(nets)})",
        f"  memory     about {limits.in_units(3 * held + (held_data or 2 * one) + remembered)} on the device "
        f"(states {limits.in_units(held)}, "
        + (f"data set {limits.in_units(held_data)}" if held_data else f"one iteration's data {limits.in_units(one)}")
        + (f", replay {limits.in_units(remembered)}, on disk as much)" if remembered else ")"),
        f"  time       about {clock(config.total_iterations * iteration)}, evaluation included, at "
        f"{runs * config.iteration_steps / iteration:,.0f} steps/s: by a short measurement just now, with fresh "
        "networks on the first task",
    ]
    return "\n".join(lines)


def _samples(data: dict[str, Any]) -> int:
    """Of made-up data of one run."""
    reward = next(iter(data.values()))
    return int(np.prod(np.shape(reward)[1:3]))
