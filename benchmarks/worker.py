"""Where a simulator process spends its time: `python -m benchmarks.worker [--tasks push hammer] [--envs 4 8 16]`.

One process's share of MetaWorld acts by a policy of its own, as in training, here in this process: microseconds of
processor time (not of the clock: other work beside it costs only what it takes from the caches) per environment and
step, the best of several rollouts. *whole*: physics if every step began from scratch, instead of where the forward pass
before it has left everything.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks import kept
from benchmarks.timing import count
from sphere.envs.batch import Share
from sphere.envs.handles import ENVIRONMENT, anonymous_memory
from sphere.envs.metaworld import MetaWorld
from sphere.envs.policy import FleetPolicy, Spec
from sphere.envs.sizes import Sizes

EXPERTS, WIDTH, DEPTH = 10, 256, 3
OBS, ACT = 39, 4
PARTS = ("policy", "physics", "whole", "seen", "rest", "all")


def policy(envs: int, used: int) -> FleetPolicy:
    """Top-2 of ten random experts, of which the gate chooses among some."""
    rng = np.random.default_rng(0)
    inner = [OBS, *[WIDTH] * DEPTH]

    def layers(name: str, last: int, *axes: int) -> Iterator[tuple[str, np.ndarray]]:
        for i, (a, b) in enumerate(zip(inner, [*inner[1:], last], strict=True)):
            kernel = rng.standard_normal((1, *axes, a, b)) / np.sqrt(a)
            yield f"{name}/{i}/kernel", kernel.astype(np.float32)
            yield f"{name}/{i}/bias", np.zeros((1, *axes, b), np.float32)

    arrays = dict(layers("experts", ACT, EXPERTS)) | dict(layers("gate", EXPERTS))
    arrays[f"gate/{DEPTH}/bias"][:, used:] = -100
    arrays["temperature"] = np.ones(1, np.float32)
    return FleetPolicy(Spec("top-k", "relu", top_k=2), arrays, [(0, slice(0, envs))])


@contextmanager
def share(task: str, envs: int, steps: int, used: int) -> Iterator[Share]:
    """A worker's environments, about to follow their policy."""
    with anonymous_memory() as memory:
        row = Sizes((OBS,), "f4", np.zeros(ACT), np.zeros(ACT), 1).record
        os.ftruncate(memory.fileno(), envs * row.itemsize)
        mine = Share()
        suite: Any = MetaWorld
        mine.begin(suite, {}, np.array([[0, i] for i in range(envs)], np.uint64), task)
        mine.attach(os.dup(memory.fileno()), envs, slice(0, envs))
        mine.reset()
        mine.policy, mine.left = policy(envs, used), np.ones(envs, bool)
        mine.log = np.zeros((steps, envs), row)
        try:
            yield mine
        finally:
            mine.leave()


def timed(clock: dict[str, int], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        start = time.process_time_ns()
        result = function(*arguments)
        clock[name] += time.process_time_ns() - start
        return result

    return call


def parts(task: str, envs: int, steps: int, used: int) -> dict[str, float]:
    """Microseconds per environment and step, each part at its best. Rollouts with whole steps take turns with the
    others."""
    found: dict[str, list[float]] = {}
    with share(task, envs, steps, used) as mine:
        batch: Any = mine.batch
        clock = dict.fromkeys(("policy", "physics", "step"), 0)
        whole, simulate = False, batch._simulate

        def physics(action: np.ndarray) -> None:
            if whole:
                batch.forwarded = [False] * envs
            simulate(action)

        mine.policy = timed(clock, "policy", mine.policy)  # type: ignore[arg-type]
        batch._simulate, batch.step = timed(clock, "physics", physics), timed(clock, "step", batch.step)
        for i in range(8):
            whole = i % 2 == 1
            mine.log["action"] = 0.5 * np.random.default_rng(i // 2).standard_normal(mine.log["action"].shape)
            mine.time = 0
            clock.update(dict.fromkeys(clock, 0))
            start = time.process_time_ns()
            mine.rollout(steps, False)
            total = time.process_time_ns() - start
            spent = {"policy": clock["policy"], "physics": clock["physics"], "seen": clock["step"] - clock["physics"]}
            spent |= {"rest": total - clock["policy"] - clock["step"], "all": total}
            for name, value in ({"whole": clock["physics"]} if whole else spent).items():
                found.setdefault(name, []).append(value / (1e3 * steps * envs))
    return {name: min(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=MetaWorld.tasks, default=MetaWorld.tasks)
    parser.add_argument("--envs", type=count, nargs="+", default=[4, 8, 16], help="environments of the process")
    parser.add_argument("--steps", type=count, default=500, help="of a rollout; an episode has 500")
    parser.add_argument("--used", type=count, default=3, help="experts that the gate chooses among")
    kept.add_option(parser)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        # one BLAS thread, as workers have it: to be said before numpy is imported
        os.execve(sys.executable, sys.orig_argv, os.environ | ENVIRONMENT)
    print("microseconds of processor time per environment and step")
    table = kept.Table({"task": "", "envs": "d"} | dict.fromkeys(PARTS, ".1f"))
    for task in options.tasks:
        for envs in options.envs:
            one = parts(task, envs, options.steps, options.used)
            table.add(task, envs, *(one[name] for name in PARTS))
    kept.keep(table, options.keep, "CPU")


if __name__ == "__main__":
    main()
