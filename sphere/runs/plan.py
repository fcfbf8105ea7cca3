"""`sphere train --dry-run`: what would be trained, how much memory it takes and about how long."""

import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sphere import envs
from sphere.algos import ppo
from sphere.nets import parameter_count
from sphere.runs.choices import method_name
from sphere.runs.progress import clock
from sphere.runs.settings import FleetConfig, run_name


def _update_seconds(config: FleetConfig, obs: int, act: int) -> float:
    """Of one iteration's update: timed on a rollout of two minibatches, scaled up."""
    runs, samples = len(config.runs), config.iteration_steps
    few = ppo.PPOConfig(**{**vars(config.ppo), "num_envs": 1, "rollout_steps": 2 * config.ppo.batch_size, "epochs": 1})
    seeds = jnp.arange(runs, dtype=jnp.uint32)
    state = ppo.init_fleet(few, obs, act, seeds)
    shape = (runs, few.rollout_steps, 1)
    zeros, none = np.zeros(shape, np.float32), np.zeros(shape, bool)
    states = np.random.default_rng(0).normal(size=(*shape, obs)).astype(np.float32)
    rollout = ppo.Rollout(states, np.zeros((*shape, act), np.float32), zeros, zeros, states, none, none)
    hyper = ppo.Hyper(*(jnp.full(runs, value, jnp.float32) for value in (0.1, 3e-4, 1e-4)))
    times = []
    for i in range(3):
        start = time.perf_counter()
        state, _ = ppo.update_fleet(few, state, hyper, rollout, seeds, np.int32(i), np.float32(0))
        jax.block_until_ready(state)
        times.append(time.perf_counter() - start)
    return min(times[1:]) / 2 * config.ppo.epochs * samples / config.ppo.batch_size


def _step_seconds(config: FleetConfig, steps: int = 50) -> tuple[float, int, int]:
    """Of one simulator step of all environments, and the sizes of observation and action."""
    seeds = [seed for seed, _ in config.runs]
    pool = envs.make(config.tasks[0], config.ppo.num_envs, seeds, config.workers, **config.simulator.given())
    with pool:
        obs, act = pool.single_observation_space.shape[0], pool.single_action_space.shape[0]
        pool.reset()
        action = np.zeros((pool.num_envs, act), np.float32)
        start = time.perf_counter()
        for _ in range(steps):
            pool.step(action)
        return (time.perf_counter() - start) / steps, obs, act


def plan(config: FleetConfig, out: Path) -> str:
    step, obs, act = _step_seconds(config)
    state = eqx.filter_eval_shape(
        lambda seeds: ppo.init_fleet(config.ppo, obs, act, seeds), jnp.zeros(len(config.runs), jnp.uint32)
    )
    parameters = parameter_count(state.actor) + parameter_count(state.critic)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state))
    samples = len(config.runs) * config.iteration_steps
    rollout = samples * (2 * obs + act + 4)
    iterations = len(config.tasks) * config.iterations_per_task
    # acting: a round trip to the device per step, about 0.3 ms where nothing else is known
    seconds = iterations * (config.ppo.rollout_steps * (step + 3e-4) + _update_seconds(config, obs, act))
    steps = iterations * config.iteration_steps
    many = "run" if len(config.runs) == 1 else "runs as one fleet"
    lines = [
        f"{len(config.runs)} {many} on {jax.devices()[0].device_kind}, into {out}",
        f"  runs       {', '.join(run_name(*run) for run in config.runs)}",
        f"  method     {method_name(config)}",
        f"  tasks      {', '.join(config.tasks)} ({config.protocol})",
        f"  steps      {config.iterations_per_task * config.iteration_steps:,} per task and run "
        f"({config.iterations_per_task} iterations of {config.iteration_steps:,}), {steps * len(config.runs):,} in all",
        f"  networks   {parameters // len(config.runs):,} parameters per run (actor and critic)",
        f"  memory     about {4 * (3 * numbers + 2 * rollout) / 2**20:,.0f} MiB on the device "
        f"(states {4 * numbers / 2**20:,.0f}, one rollout {4 * rollout / 2**20:,.0f})",
        f"  time       about {clock(seconds)} without evaluation, by a short measurement just now "
        f"(simulator {1e3 * step:.2f} ms per step of all environments)",
    ]
    return "\n".join(lines)
