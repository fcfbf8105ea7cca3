"""How fast environments step, and what they weigh: `python -m benchmarks.env [--suite metaworld|humanoidbench]
[--memory]`.

Per task in one run, on the same cores: our pool with random actions; for MetaWorld, `gymnasium.vector.AsyncVectorEnv`
over the package's own environments, a process each; and physics alone, bare `mj_step` with random controls
(HumanoidBench's robot is put back on its feet as often as a random policy falls). Whole episodes, resets included, best
of several interleaved rounds. Workers and physics have a core each to themselves: where something else is running, the
scheduler tends to wake two workers on one core, one after the other. On a machine that is busy otherwise, `--core-time`
counts the time that our processes have run instead of the clock's.
"""

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import kept

# This file is imported by every process that it starts: sphere, and jax with it, only where they are used.

EPISODE, FRAME_SKIP = 500, 5
ACTIONS = 1000
"""Random actions are drawn in advance and used in turn."""


def steps_per_second(
    step: Callable[[int], Any], envs: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Of `envs` environments together, over whole episodes that take `seconds` or more."""
    count, begun, start = 0, time.perf_counter(), clock()
    while time.perf_counter() - begun < seconds:
        for i in range(EPISODE):
            step(i)
        count += EPISODE * envs
    return count / (clock() - start)


def core_clock(pids: list[int]) -> Callable[[], float]:
    """Seconds that these processes and this one have run, divided by the cores that they may use."""

    def clock() -> float:
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        ticks = sum(int(field[11]) + int(field[12]) for field in fields)
        return (ticks / os.sysconf("SC_CLK_TCK") + time.process_time()) / len(os.sched_getaffinity(0))

    return clock


def pin(pid: int, index: int) -> None:
    """To one of our cores by turns."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {cores[index % len(cores)]})


def package_env(task: str) -> Any:
    """MetaWorld's own environment with a new goal every episode."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    env = ALL_V3_ENVIRONMENTS[f"{task}-v3"]()
    env._partially_observable, env._set_task_called, env._freeze_rand_vec = False, True, False
    del env.sawyer_observation_space  # cached with the goal hidden
    return env


def metaworld_physics(task: str, envs: int) -> Callable[[int], None]:
    """A step of nothing but physics."""
    import mujoco

    env = package_env(task)
    env.reset()
    model, rng = env.model, np.random.default_rng(os.getpid())
    mocap = env.hand_init_pos + rng.normal(scale=0.02, size=(ACTIONS, envs, 3)).cumsum(0).clip(-0.1, 0.1)
    ctrl = rng.uniform(-1, 1, (ACTIONS, envs, 1)) * [1, -1]
    state = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    simulations = [mujoco.MjData(model) for _ in range(envs)]
    for data in simulations:
        mujoco.mj_setState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)

    def step(i: int) -> None:
        for k, data in enumerate(simulations):
            data.mocap_pos[0] = mocap[i % ACTIONS, k]
            data.ctrl[:] = ctrl[i % ACTIONS, k]
            mujoco.mj_step(model, data, FRAME_SKIP)

    return step


def humanoidbench_physics(task: str, envs: int) -> Callable[[int], None]:
    import mujoco

    from sphere.envs.humanoidbench import FRAME_SKIP, HumanoidBench

    batch, rng = HumanoidBench(task, envs), np.random.default_rng(os.getpid())
    actions = rng.uniform(-1, 1, (ACTIONS, envs, len(batch.action_low))).astype(np.float32)
    batch.reset(np.arange(envs), [np.random.default_rng([0, 0, i, 0]) for i in range(envs)])
    start = batch.get_state()
    length = 1
    while length < EPISODE and not batch.step(actions[length])[2].any():
        length += 1
    control = (actions + 1) / 2 * batch.control_range + batch.control_low

    def step(i: int) -> None:
        if i % length == 0:
            batch.set_state(start)
        for k, data in enumerate(batch.data):
            data.ctrl[:] = control[i % ACTIONS, k]
            mujoco.mj_step(batch.model, data, FRAME_SKIP)

    return step


PHYSICS = {"metaworld": metaworld_physics, "humanoidbench": humanoidbench_physics}


def physics(suite: str, task: str, envs: int, seconds: float, core_time: bool, barrier: Any, answers: Any) -> None:
    """Nothing but physics, in a process of its own."""
    step = PHYSICS[suite](task, envs)
    barrier.wait()
    answers.put(steps_per_second(step, envs, seconds, time.process_time if core_time else time.perf_counter))


def physics_alone(
    context: Any, suite: str, task: str, envs: int, workers: int, seconds: float, core_time: bool
) -> float:
    barrier, answers = context.Barrier(workers), context.Queue()
    shares = [envs * (i + 1) // workers - envs * i // workers for i in range(workers)]
    arguments = [(suite, task, share, seconds, core_time, barrier, answers) for share in shares]
    processes = [context.Process(target=physics, args=each) for each in arguments]
    for i, process in enumerate(processes):
        process.start()
        pin(process.pid, i)
    total = sum(answers.get() for _ in processes)
    for process in processes:
        process.join()
    return total


def in_pieces(rollouts: Any, actions: np.ndarray, i: int) -> None:
    """A whole episode when its first step is asked for: workers that act by themselves need no answer in between."""
    if i == 0:
        rollouts.run(EPISODE, actions[:EPISODE])


def random_step(pool: Any, actions: np.ndarray, i: int) -> None:
    pool.step(actions[i])


def package_pool(task: str, envs: int) -> Any:
    from gymnasium.vector import AsyncVectorEnv

    pool = AsyncVectorEnv([partial(package_env, task)] * envs, context="forkserver")
    pool.reset()
    return pool


def compare(
    suite: str, task: str, envs: int, workers: int | None, seconds: float, rounds: int, core_time: bool
) -> list[float]:
    """Steps per second of ours, step by step and in pieces, of the package under gymnasium (0 where it cannot be run),
    and of physics alone."""
    from sphere.envs import make
    from sphere.envs.handles import Process
    from sphere.envs.rollout_driver import RolloutDriver

    context = multiprocessing.get_context("forkserver")
    ours = make(f"{suite}/{task}", num_envs=envs, workers=workers)
    size = (ACTIONS, *(ours.action_space.shape or ()))
    actions = np.random.default_rng(0).uniform(-1, 1, size).astype(np.float32)
    pids = [worker.process.pid for worker in ours._workers if isinstance(worker, Process)]
    cores = os.sched_getaffinity(0)
    for i, pid in enumerate(pids):
        pin(pid, i + len(ours._workers) - len(pids))  # the learner's own share, if it has one, is on the first core
    ours.reset()
    theirs = package_pool(task, envs) if suite == "metaworld" else None
    ways = [(partial(random_step, ours, actions), pids), (partial(in_pieces, RolloutDriver(ours), actions), pids)]
    if theirs is not None:
        ways.append((partial(random_step, theirs, actions), [process.pid or 0 for process in theirs.processes]))
    best = [0.0] * 4
    for _ in range(rounds):
        for k, (step, processes) in enumerate(ways):
            clock = core_clock(processes) if core_time else time.perf_counter
            if processes is pids and len(pids) < len(ours._workers):
                pin(0, 0)
            best[k] = max(best[k], steps_per_second(step, envs, seconds, clock))
            os.sched_setaffinity(0, cores)
        best[3] = max(best[3], physics_alone(context, suite, task, envs, len(ours._workers), seconds, core_time))
    for pool in (ours, theirs):
        if pool is not None:
            pool.close()
    return best


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


RATIOS = ("step / package", "step / physics", "pieces / package", "pieces / physics")


def speed(
    suite: str, tasks: list[str], envs: int, workers: int, seconds: float, rounds: int, core_time: bool
) -> kept.Table:
    unit = "second of core time" if core_time else "second"
    by = "workers by default" if workers is None else f"{workers} workers"
    print(f"{envs} environments, {by}, {len(os.sched_getaffinity(0))} cores; steps per {unit}")
    rates = dict.fromkeys(("by step", "pieces", "package", "physics"), ",.0f")
    table = kept.Table({"task": ""} | rates | dict.fromkeys(RATIOS, ".2f"))
    for task in tasks:
        stepped, pieces, package, bare = compare(suite, task, envs, workers, seconds, rounds, core_time)
        ratios = [ours / other if other else None for ours in (stepped, pieces) for other in (package, bare)]
        table.add(task, stepped, pieces, package or None, bare, *ratios)
    columns = list(zip(*(row[-4:] for row in table.rows), strict=True))
    means = [None if None in ratios else geometric_mean(list(ratios)) for ratios in columns]
    table.add("geometric mean", *[None] * 4, *means)
    return table


def weight(pid: int) -> dict[str, float]:
    """Megabytes of a process: all it has in memory (Rss), and with its part of what is shared (Pss)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(size.split()[0]) / 1024 for name, size in (line.split(":") for line in lines)}


def memory(suite: str, tasks: list[str], sizes: tuple[int, ...], workers: int) -> None:
    """Of the worker processes, after each of five passes through all tasks: nothing may grow from pass to pass."""
    from sphere.envs import make

    for envs in sizes:
        start = time.perf_counter()
        with make(f"{suite}/{tasks[0]}", num_envs=envs, workers=workers) as pool:
            pool.reset()
            seen: list[float] = []
            print(f"{envs} environments, {workers} workers: made and reset in {time.perf_counter() - start:.1f} s")
            for visit in range(5 * len(tasks)):
                task = tasks[visit % len(tasks)]
                start = time.perf_counter()
                pool.switch(task)
                took = time.perf_counter() - start
                for _ in range(20):
                    pool.step(pool.action_space.sample())
                parts = [weight(worker.process.pid) for worker in pool._workers]  # type: ignore[attr-defined]
                pss, rss = (sum(part[name] for part in parts) for name in ("Pss", "Rss"))
                print(f"  {task:18s} {pss:6.0f} MB, {pss / envs:5.1f} each (Rss {rss:6.0f}); switched in {took:.2f} s")
                seen.append(pss)
                if len(seen) % len(tasks) == 0:
                    print(f"  pass {len(seen) // len(tasks)}: {np.mean(seen[-len(tasks) :]):.0f} MB on average")


def main() -> None:
    from benchmarks.timing import count

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="metaworld", choices=list(PHYSICS))
    parser.add_argument("--envs", type=count, default=8)
    parser.add_argument("--workers", type=int, help="default: the pool's own")
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=count, default=2)
    parser.add_argument("--core-time", action="store_true", help="count the time that processes have run")
    parser.add_argument("--memory", action="store_true", help="weigh 8 and 80 environments instead")
    kept.add_option(parser)
    args = parser.parse_args()
    from sphere.envs import tasks

    chosen = args.tasks or list(tasks(args.suite))
    if args.memory:
        memory(args.suite, chosen, (8, 80), args.workers or 2)
        return
    multiprocessing.set_forkserver_preload(["metaworld.env_dict"])
    table = speed(args.suite, chosen, args.envs, args.workers, args.seconds, args.rounds, args.core_time)
    kept.keep(table, args.keep, "CPU")


if __name__ == "__main__":
    main()
