"""TD3 from end to end beside SBX's: `pip install sbx-rl`, then `python -m benchmarks.sbx`.

The same dense networks (two layers of 256, twin critics), minibatches of 256, eight environments of one MetaWorld task
and the same updates per step, past the warm-up. Here a fleet as `sphere train` drives it, its transitions written to
disk; there one seed, whose speed is that of seeds one after the other, with the package's own environments in
`SubprocVecEnv`. Neither side evaluates. Both take turns; the best of several rounds counts, compiling excluded. Beside
the clock stands the time of all processors, which others on the machine change less.
"""

import argparse
import dataclasses
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import kept
from benchmarks.timing import count, device
from benchmarks.train import iterations, opened
from sphere.algos.td3 import TD3
from sphere.nets import NetConfig
from sphere.presets import preset
from sphere.training.settings import FleetConfig

ENVS, BATCH, WARM_UP, REMEMBERED = 8, 256, 400, 100_000
COLUMNS = {"updates per step": "g", "runs": "d"} | dict.fromkeys(("here, steps/s", "SBX, steps/s"), ",.0f")
COLUMNS |= {"times": ".1f"} | dict.fromkeys(("here, CPU ms", "SBX, CPU ms"), ".2f") | {"CPU times": ".1f"}
"""Steps per second of all runs; processor time for a step."""


class Cost(NamedTuple):
    """Of one environment step."""

    wall: float
    processor: float


def processor_seconds() -> float:
    """Of this process and the processes that it has started, which live on."""
    own, found = os.getpid(), time.process_time()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[1]) == own:
            found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def cost(once: Callable[[], int]) -> Cost:
    wall, processor = time.perf_counter(), processor_seconds()
    steps = once()
    return Cost((time.perf_counter() - wall) / steps, (processor_seconds() - processor) / steps)


def settings(task: str, runs: int, ratio: float) -> FleetConfig:
    dense = NetConfig(kind="mlp", width=256, depth=2)
    sizes: dict[str, Any] = {"num_envs": ENVS, "batch_size": BATCH, "buffer_size": REMEMBERED}
    learner = TD3(actor=dense, critic=dense, methods=(), update_ratio=ratio, learning_starts=WARM_UP, **sizes)
    tasks, seeds = (f"metaworld/{task}",), tuple(range(runs))
    return dataclasses.replace(preset("metaworld-crl-td3"), tasks=tasks, seeds=seeds, rho=(0.0,), learner=learner)


class Ours:
    def __init__(self, config: FleetConfig, folder: str):
        self.fleet = opened(config, folder)
        self.steps(2 * WARM_UP)

    def steps(self, wanted: int) -> int:
        """So many steps of every run, in whole iterations; those of all runs."""
        config = self.fleet.config
        done = -(-wanted // config.iteration_steps)
        iterations(self.fleet, done)
        return done * config.iteration_steps * len(config.runs)


class Theirs:
    def __init__(self, task: str, ratio: float):
        import metaworld  # noqa: F401 - registers its environments
        import sbx
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.noise import NormalActionNoise
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self.env = make_vec_env(
            made, ENVS, seed=0, env_kwargs={"task": task}, vec_env_cls=SubprocVecEnv, vec_env_kwargs=START
        )
        self.model = sbx.TD3(
            "MlpPolicy",
            self.env,
            buffer_size=REMEMBERED,
            learning_starts=WARM_UP,
            batch_size=BATCH,
            gradient_steps=max(1, round(ratio * ENVS)),
            action_noise=NormalActionNoise(np.zeros(4), np.full(4, 0.1)),
            policy_kwargs={"net_arch": [256, 256]},
            seed=0,
        )
        self.steps(2 * WARM_UP)

    def steps(self, wanted: int) -> int:
        before = self.model.num_timesteps
        self.model.learn(wanted, reset_num_timesteps=False)
        return self.model.num_timesteps - before


START = {"start_method": "spawn"}


def made(task: str) -> Any:
    """The package's environment, in a process of its own."""
    import gymnasium
    import metaworld  # noqa: F401

    return gymnasium.make("Meta-World/MT1", env_name=f"{task}-v3", disable_env_checker=True)


def compare(task: str, runs: int, ratio: float, steps: int, rounds: int) -> tuple[Cost, Cost]:
    """The least that a step costs here and there."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Ours(settings(task, runs, ratio), folder), Theirs(task, ratio)
        try:
            pairs = [(cost(lambda: ours.steps(steps)), cost(lambda: theirs.steps(steps))) for _ in range(rounds)]
        finally:
            ours.fleet.close()
            theirs.env.close()
    here, there = (Cost(*(min(column) for column in zip(*side, strict=True))) for side in zip(*pairs, strict=True))
    return here, there


def row(ratio: float, runs: int, here: Cost, there: Cost) -> list[Any]:
    speeds = 1 / here.wall, 1 / there.wall, there.wall / here.wall
    return [ratio, runs, *speeds, 1e3 * here.processor, 1e3 * there.processor, there.processor / here.processor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="hammer")
    parser.add_argument("--runs", type=count, nargs="+", default=[10])
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.125, 1.0], help="updates for each step")
    parser.add_argument("--steps", type=count, default=2000, help="of a run in a round")
    parser.add_argument("--rounds", type=count, default=3)
    kept.add_option(parser)
    options = parser.parse_args()
    if bad := [ratio for ratio in options.ratios if round(ratio * ENVS) != ratio * ENVS or ratio <= 0]:
        parser.error(
            f"{bad[0]:g} updates per step: SBX has whole updates for {ENVS} steps; use multiples of {1 / ENVS}"
        )
    warnings.filterwarnings("ignore", module="gymnasium|stable_baselines3")
    import sbx

    machine = f"{device()}; sbx {sbx.__version__}"
    print(f"{options.task}, {os.cpu_count()} cores, {machine}", flush=True)
    table = kept.Table(COLUMNS)
    for ratio in options.ratios:
        for runs in options.runs:
            table.add(*row(ratio, runs, *compare(options.task, runs, ratio, options.steps, options.rounds)))
    kept.keep(table, options.keep, machine)


if __name__ == "__main__":
    main()
