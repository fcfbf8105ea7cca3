"""`sphere train --dry-run`: what would be trained, how much memory it takes and about how long."""

import dataclasses
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sphere.algos import ppo
from sphere.choices import method_name
from sphere.nets import parameter_count
from sphere.training.fleet import Fleet
from sphere.training.group import Group
from sphere.training.progress import clock, plural
from sphere.training.settings import FleetConfig, run_name

STEPS, MINIBATCHES = 128, 8
"""Of a measurement: enough for the clock, few enough to wait for."""


def _collect(group: Group, iteration: int) -> None:
    group.collector.collect(group.actor, STEPS, iteration)


def _collect_seconds(fleet: Fleet) -> float:
    """Of one step of all environments, in all groups at once, their workers acting as in training."""
    fleet.begin_task()
    times = []
    for i in range(3):  # the first compiles
        start = time.perf_counter()
        fleet.each(_collect, i)
        times.append(time.perf_counter() - start)
    return min(times[1:]) / STEPS


def _update_seconds(fleet: Fleet) -> float:
    """Of one iteration's update of the largest group: timed on a few minibatches, scaled up."""
    group, config = fleet.groups[0], fleet.config.ppo
    few = dataclasses.replace(fleet.program, num_envs=1, rollout_steps=MINIBATCHES * config.batch_size, epochs=1)
    shape = (len(group.seeds), few.rollout_steps, 1)
    zeros, none = np.zeros(shape, np.float32), np.zeros(shape, bool)
    states = np.random.default_rng(0).normal(size=(*shape, group.obs_size)).astype(np.float32)
    rollout = ppo.Rollout(states, np.zeros((*shape, group.act_size), np.float32), zeros, zeros, states, none, none)
    state, times = jax.tree.map(jnp.copy, group.state), []
    for i in range(3):
        start = time.perf_counter()
        state, _ = ppo.update_fleet(few, state, group.hyper, rollout, group.seeds, np.int32(i), np.float32(0))
        jax.block_until_ready(state)
        times.append(time.perf_counter() - start)
    return min(times[1:]) * config.epochs * fleet.config.iteration_steps / few.rollout_steps


def iteration_seconds(config: FleetConfig, horizon: int, groups: int, step: float, update: float) -> float:
    """Collecting, learning, and what evaluation takes of simulated steps, on average."""
    episodes = config.evaluation.episodes * len(config.evaluations()) / config.iterations_per_task
    collect = step * (config.ppo.rollout_steps + horizon * episodes / config.ppo.num_envs)
    if jax.default_backend() == "cpu":  # nothing happens beside anything else
        return collect + groups * update
    return max(collect + update, groups * update)  # some groups learn while others collect; the device is one


def plan(config: FleetConfig, out: Path) -> str:
    fleet = Fleet(config, out)
    try:
        step, update = _collect_seconds(fleet), _update_seconds(fleet)
        iteration = iteration_seconds(config, fleet.groups[0].pool.horizon, len(fleet.groups), step, update)
        state, obs, act = fleet.state, fleet.groups[0].obs_size, fleet.groups[0].act_size
    finally:
        fleet.close()
    parameters = parameter_count(state.actor) + parameter_count(state.critic)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state))
    samples = len(config.runs) * config.iteration_steps
    rollout = samples * (2 * obs + act + 4)
    iterations = len(config.tasks) * config.iterations_per_task
    steps = iterations * config.iteration_steps
    many = "run" if len(config.runs) == 1 else "runs as one fleet"
    lines = [
        f"{len(config.runs)} {many} on {jax.devices()[0].device_kind}, into {out}",
        f"  runs       {', '.join(run_name(*run) for run in config.runs)}",
        f"  method     {method_name(config)}",
        f"  tasks      {', '.join(config.tasks)} ({config.protocol})",
        f"  steps      {config.iterations_per_task * config.iteration_steps:,} per task and run "
        f"({plural(config.iterations_per_task, 'iteration')} of {config.iteration_steps:,}), "
        f"{steps * len(config.runs):,} in all",
        f"  networks   {parameters // len(config.runs):,} parameters per run (actor and critic)",
        f"  memory     about {4 * (3 * numbers + 2 * rollout) / 2**20:,.0f} MiB on the device "
        f"(states {4 * numbers / 2**20:,.0f}, one rollout {4 * rollout / 2**20:,.0f})",
        f"  time       about {clock(iterations * iteration)}, evaluation included, at {samples / iteration:,.0f} steps/s: "
        "by a short measurement just now, with fresh networks on the first task",
    ]
    return "\n".join(lines)
