"""Training from end to end: `python -m benchmarks.train --preset metaworld-crl --seeds 0 1 2 3 4 --rho 0 0.1`.

Environment steps per second of a whole fleet over collecting, updating and evaluating in the proportion of real training, and
where the time goes. Compiling is not counted: every part runs once before the clock starts.
"""

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.timing import device
from sphere.runs.fleet import Fleet
from sphere.runs.presets import PRESETS, preset
from sphere.runs.rollout import Collector
from sphere.runs.settings import FleetConfig


def timed(seconds: dict[str, float], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its time added up under a name."""

    def measured(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = jax.block_until_ready(function(*arguments, **options))
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
        return result

    return measured


def measure(config: FleetConfig, iterations: int) -> dict[str, float]:
    """Seconds per iteration by part."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(config, Path(folder))
        try:
            fleet.begin_task()
            fleet.advance()
            fleet.evaluate(fleet.task)
            fleet.diagnostics()
            collector: Collector = fleet.collector
            collector.collect = timed(seconds, "collect", collector.collect)  # type: ignore[method-assign]
            step = collector.pool.step = timed(seconds, "simulate", collector.pool.step)  # type: ignore[method-assign]
            advance = timed(seconds, "iteration", fleet.advance)
            for _ in range(iterations):
                advance()
            collector.pool.step = step  # type: ignore[method-assign]
            part = {name: value / iterations for name, value in seconds.items()}
            start = time.perf_counter()
            fleet.evaluate(fleet.task)
            fleet.diagnostics()
            # as often as training evaluates
            share = len(config.evaluations()) / config.iterations_per_task
            evaluate = share * (time.perf_counter() - start)
        finally:
            fleet.close()
    return {
        "simulators": part["simulate"],
        "acting and copying": part["collect"] - part["simulate"],
        "update": part["iteration"] - part["collect"],
        "evaluation": evaluate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="metaworld-crl", choices=PRESETS)
    parser.add_argument("--task", default="", help="default: the preset's first")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rho", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--fast", action="store_true", help="GPU kernels chosen by timing (deterministic=False)")
    options = parser.parse_args()
    config = dataclasses.replace(preset(options.preset), seeds=tuple(options.seeds), rho=tuple(options.rho))
    config = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, deterministic=not options.fast))
    if options.task:
        config = dataclasses.replace(config, tasks=(options.task,))
    parts = measure(config, options.iterations)
    steps, total = len(config.runs) * config.iteration_steps, float(np.sum(list(parts.values())))
    print(f"{options.preset}, {config.tasks[0]}, {len(config.runs)} runs on {device()}, {os.cpu_count()} cores")
    for name, value in parts.items():
        print(f"  {name:<20} {value:>8.3f} s per iteration {value / total:>6.0%}")
    print(f"  {steps:,} steps per iteration: {steps / total:,.0f} steps/s end to end")


if __name__ == "__main__":
    main()
