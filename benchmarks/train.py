"""Training from end to end: `python -m benchmarks.train --preset metaworld-crl --seeds 0 1 2 3 4 --rho 0 0.1`.

`--simulator gpu cpu` measures both, one after the other, where a suite has simulators on a GPU.

Environment steps per second of a whole fleet over collecting, updating and evaluating as in training, from one
evaluation to the next, and what some parts take alone. Compiling is not counted: every part runs once before the clock
starts.
"""

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

from benchmarks import kept
from benchmarks.timing import count, device
from sphere.errors import UserError
from sphere.presets import PRESETS, preset
from sphere.training.fleet import Fleet
from sphere.training.group import Group
from sphere.training.progress import plural
from sphere.training.settings import FleetConfig

COLUMNS = {"simulators": "", "runs": "d", "steps, iteration": ",d", "collecting alone, s": ".3f"}
COLUMNS |= {"evaluation, s": ".3f", "all together, s": ".3f", "steps/s": ",.0f", "before, s": ".0f"}
"""Seconds per iteration. Collecting: group by group. Evaluation: with diagnostics, as often as training has it. Before
the clock: compiling, Warp's kernels too, and two iterations."""


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def opened(config: FleetConfig, folder: str) -> Fleet:
    """At the start of its first task; what it remembers goes into directories of its runs."""
    for run in config.runs:
        (Path(folder) / run.name).mkdir()
    fleet = Fleet(config, Path(folder))
    try:
        fleet.begin_task()
    except BaseException:
        fleet.close()
        raise
    return fleet


def iterations(fleet: Fleet, count: int) -> None:
    """As training does them between two checkpoints."""
    for i in range(count):
        fleet.advance(ahead=count - i - 1)
    jax.block_until_ready([group.state for group in fleet.groups])


def measure(config: FleetConfig, count: int, evaluated: bool = True) -> tuple[float, float | None, float, float]:
    """Seconds: of an iteration's collecting, of its share of evaluation, of all that training does; and until then."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        fleet = opened(config, folder)
        try:
            iterations(fleet, 2)
            if evaluated:
                fleet.each(Group.evaluate, fleet.task)
            before = time.perf_counter() - begun
            collect = sum(seconds(partial(_collect, group, fleet)) for group in fleet.groups)
            evaluate = seconds(lambda: fleet.each(Group.evaluate, fleet.task)) if evaluated else None
            together = seconds(lambda: iterations(fleet, count)) / count
        finally:
            fleet.close()
    share = len(config.evaluations()) / config.iterations_per_task  # as often as training evaluates
    return collect, None if evaluate is None else share * evaluate, together, before


def _collect(group: Group, fleet: Fleet) -> Any:
    return group.source.collect(group.policy, fleet.total_iterations)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="metaworld-crl", choices=PRESETS)
    parser.add_argument("--task", default="", help="default: the preset's first")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rho", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument("--iterations", type=count, help="default: from one evaluation to the next")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--simulator", nargs="+", choices=("cpu", "gpu"), default=["cpu"], help="default: cpu")
    parser.add_argument("--no-overlap", action="store_true", help="collect and learn in turns")
    parser.add_argument("--no-evaluation", action="store_true", help="do not time it: on a GPU most of the wait")
    parser.add_argument("--fast", action="store_true", help="GPU kernels chosen by timing (deterministic=False)")
    kept.add_option(parser)
    options = parser.parse_args()
    config = dataclasses.replace(
        preset(options.preset),
        seeds=tuple(options.seeds),
        rho=tuple(options.rho),
    )
    source = dataclasses.replace(config.source, workers=options.workers, overlap=False if options.no_overlap else None)
    learner = dataclasses.replace(config.learner, deterministic=not options.fast)
    config = dataclasses.replace(config, source=source, learner=learner)
    if options.task:
        config = dataclasses.replace(config, tasks=(options.task,))
    print(
        f"{options.preset}, {config.tasks[0]}, {plural(len(config.runs), 'run')} on {device()}, {os.cpu_count()} cores"
    )
    arms = [dataclasses.replace(config, source=dataclasses.replace(source, simulator=one)) for one in options.simulator]
    try:
        for arm in arms:
            arm.source.check_machine(arm.suite)  # before minutes of the first are spent
    except UserError as error:
        parser.error(str(error))
    table = kept.Table(COLUMNS)
    for arm in arms:
        iterations_wanted = options.iterations or round(arm.iterations_per_task / len(arm.evaluations()))
        collect, evaluate, together, before = measure(arm, iterations_wanted, not options.no_evaluation)
        steps = len(arm.runs) * arm.iteration_steps
        parts = (collect, evaluate, together, steps / together, before)
        table.add(arm.source.simulator, len(arm.runs), steps, *parts)
        kept.keep(table, options.keep, device())


if __name__ == "__main__":
    main()
