"""What `sphere verify` prints: how far this program is from recorded or running references."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro

from sphere.errors import unknown

GOLDEN = Path(__file__).parents[1] / "golden"
"""Recordings of other programs. They come with the package; README.md beside them says what they hold."""

USAGE = """usage: sphere verify update [FILE]          recorded updates of PPO (or of FILE's learner), replayed
       sphere verify td3 | td3-bc           recorded updates of TD3 and TD3+BC, replayed
       sphere verify metaworld              our MetaWorld beside the package's own; --help for more
       sphere verify humanoidbench [FILE]   recorded episodes of the package, replayed"""


HELP = """usage: sphere verify {what} [FILE]

  FILE   an .npz in the format of sphere/golden/README.md: {holds}; default: sphere/golden/{name}

prints how far this program is from each of them, and leaves with exit code 1 if one is further than its target"""


def _file(arguments: list[str], what: str, name: str, holds: str) -> Path:
    """The file that was named, or the package's own."""
    if {"-h", "--help"} & set(arguments):
        print(HELP.format(what=what, name=name, holds=holds))
        sys.exit()  # as it does where tyro shows the help
    if len(arguments) > 1:
        raise ValueError(f"usage: sphere verify {what} [FILE]: one file or none; got {len(arguments)}")
    return Path(arguments[0]) if arguments else GOLDEN / name


def update(arguments: list[str]) -> bool:
    return _replayed(
        _file(arguments, "update", "ppo_update.npz", "recorded updates of PPO, TD3 or TD3+BC, to be replayed")
    )


def td3(arguments: list[str]) -> bool:
    return _replayed(_file(arguments, "td3", "td3_update.npz", "recorded TD3 updates, to be replayed"))


def td3_bc(arguments: list[str]) -> bool:
    return _replayed(_file(arguments, "td3-bc", "td3bc_update.npz", "recorded TD3+BC updates, to be replayed"))


def _replayed(path: Path) -> bool:
    from sphere.cli.verify_td3 import is_td3, verify_td3
    from sphere.cli.verify_update import read_arrays, verify_update

    found = (verify_td3 if is_td3(read_arrays(path)) else verify_update)(path)
    for case in dict.fromkeys(deviation.case for deviation in found):
        print(f"\ncase {case}\n{'array':<68} {'deviation':>11} {'target':>9}")
        for d in (d for d in found if d.case == case):
            print(f"{d.name:<68} {d.found:>11.2e} {d.target:>9.0e}{'' if d.passed else '   TOO FAR'}")
    failed = sum(not deviation.passed for deviation in found)
    print(f"\n{len(found) - failed} of {len(found)} within their targets")
    return not failed


@dataclass(frozen=True)
class VerifyMetaWorld:
    """Step our environments and the package's own side by side; exit 1 if they differ."""

    steps: int = 2000
    """At least so many per task."""
    tasks: tuple[str, ...] = ()
    """Default: all ten."""
    seed: int = 0


def _by_workers(what: str, arguments: list[str]) -> bool | None:
    """By a process that has the MuJoCo of the simulator processes; None: they have this one's."""
    from sphere.envs.worker_path import VARIABLE, folder

    own = folder()
    if own is None:
        return None
    print(f"by the MuJoCo of the simulator processes, in {own}", flush=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(own), *sys.path]), VARIABLE: ""}
    command = [sys.executable, "-m", "sphere", "verify", what, *arguments]
    return subprocess.run(command, env=environment, check=False).returncode == 0


def metaworld(arguments: list[str]) -> bool:
    found = _by_workers("metaworld", arguments)
    return _metaworld(arguments) if found is None else found


def humanoidbench(arguments: list[str]) -> bool:
    found = _by_workers("humanoidbench", arguments)
    return _humanoidbench(arguments) if found is None else found


def _metaworld(arguments: list[str]) -> bool:
    from sphere.envs import tasks
    from sphere.envs.metaworld_verify import verify

    options = tyro.cli(VerifyMetaWorld, prog="sphere verify metaworld", args=arguments)
    known = tasks("metaworld")
    print(f"{'task':<20} {'steps':>7} {'episodes':>9} {'successes':>10} {'observation':>12} {'reward':>9} {'flags':>6}")
    good = True
    wanted = [task.removeprefix("metaworld/") for task in options.tasks]
    for task in wanted or known:
        if task not in known:
            raise unknown("task", task, known)
        (row,) = verify(options.steps, (task,), options.seed)
        print(
            f"{task:<20} {row.steps:>7,} {row.episodes:>9} {row.successes:>10} {row.observation:>12.1e} "
            f"{row.reward:>9.1e} {row.flags:>6}{'' if row.passed else '   DIFFERS'}",
            flush=True,
        )
        good &= row.passed
    print(
        f"\nlargest differences from the package's own step; {'all' if good else 'NOT all'} at most 1e-9, flags equal"
    )
    return good


def _humanoidbench(arguments: list[str]) -> bool:
    from sphere.envs.humanoidbench_verify import verify

    holds = "recorded episodes of the package, to be replayed"
    rows = verify(_file(arguments, "humanoidbench", "h1_traces.npz", holds))
    print(f"{'task':<10} {'episodes':>9} {'steps':>7} {'observation':>12} {'reward':>9} {'terminations':>13}")
    for row in rows:
        print(
            f"{row.task:<10} {row.episodes:>9} {row.steps:>7,} {row.observation:>12.1e} {row.reward:>9.1e} "
            f"{row.terminations:>13}{'' if row.passed else '   DIFFERS'}"
        )
    good = all(row.passed for row in rows)
    print(f"\nlargest differences from the recorded episodes; {'all' if good else 'NOT all'} at most 1e-9, ends equal")
    return good


CHECKS: dict[str, Callable[[list[str]], bool]] = {
    "update": update,
    "td3": td3,
    "td3-bc": td3_bc,
    "metaworld": metaworld,
    "humanoidbench": humanoidbench,
}
