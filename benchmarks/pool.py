"""What worker processes cost beside the simulation: `python -m benchmarks.pool`.

Steps of environments that do nothing, for several numbers of workers, in microseconds per step of all of them: the cost
of waking, waiting and copying, which real environments pay on top of their simulation.
"""

import argparse
import os
import time

import numpy as np

from benchmarks.timing import count
from sphere import envs


def microseconds(num_envs: int, workers: int, steps: int) -> float:
    with envs.make("probe/time-limit", num_envs=num_envs, seed=0, workers=workers) as pool:
        pool.reset()
        action = np.zeros(pool.action_space.shape or (), np.float32)
        times = []
        for _ in range(4):  # the first warms up
            start = time.perf_counter()
            for _ in range(steps):
                pool.step(action)
            times.append((time.perf_counter() - start) / steps)
    return 1e6 * min(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--envs", type=count, default=80)
    parser.add_argument(
        "--workers", type=int, nargs="+", default=sorted({0, 1, 2, cores // 2, cores - 1, cores} - {-1})
    )
    parser.add_argument("--steps", type=count, default=1000)
    options = parser.parse_args()
    print(f"{options.envs} environments that do nothing, {cores} cores; microseconds per step of all")
    print(f"{'workers':>8} {'step':>9}")
    for workers in options.workers:
        print(f"{workers:>8} {microseconds(options.envs, workers, options.steps):>9.1f}", flush=True)


if __name__ == "__main__":
    main()
