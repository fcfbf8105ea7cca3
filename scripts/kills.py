"""`python scripts/kills.py 200`: fleets that are killed by SIGKILL at random moments end as undisturbed ones do.

Kills are shared out among small fleets of at most ten kills each: PPO on the probe tasks and on MetaWorld, TD3 with its
replay memory, classifiers on a stream of labelled tasks. Each fleet is resumed after every kill. In the end its
records, its last checkpoint and its replay memory are compared with those of a fleet that was never stopped, bit for
bit, wall-clock times aside. Leaves with 1 where an end differs. Stopped by Ctrl-C or SIGTERM it says what it has, and
leaves with 130. Needs the checkout: it uses the machinery of the tests.
"""

# ruff: noqa: E402  (the machinery of the tests is no package: its folder comes on the path first)
import argparse
import dataclasses
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import fleets
import jax
import kill
import numpy as np
import processes

from benchmarks import kept
from benchmarks.timing import count, device
from sphere.algos.classifier import Classifier
from sphere.data.streams import Stream
from sphere.training.loop import train
from sphere.training.settings import Evaluation, FleetConfig

EACH = 10
"""Kills of a fleet at most."""
METAWORLD = ("metaworld/window-close", "metaworld/push")


def configs() -> dict[str, FleetConfig]:
    """By name, each with its share of the kills. Learners and suites that are added later get a row here."""
    found = {"probe": fleets.TINY, "td3": fleets.OFF_POLICY, "classifier": classifier()}
    if importlib.util.find_spec("metaworld") or importlib.util.find_spec("mujoco"):
        found["metaworld"] = fleets.changed(fleets.TINY, tasks=METAWORLD, seeds=(0,), horizon=40)
    return found


def classifier() -> FleetConfig:
    """Supervised: a stream of labelled images that are made up, in new orders and crops every epoch."""
    return FleetConfig(
        tasks=("squares/0", "squares/1"),
        seeds=(0, 1),
        rho=(0.0, 0.1),
        learner=Classifier(examples=50, batch_size=25, actor=fleets.TINY.learner.actor),
        source=Stream(classes=5, per_class=10, test_per_class=10, augment=True),
        evaluation=Evaluation(every=256, heldout=8, retention=True),
        checkpoint_every=2,
    )


def differences(one: Path, other: Path) -> list[str]:
    """What is not equal, by name."""
    first, second = fleets.final_arrays(one), fleets.final_arrays(other)
    arrays = [name for name in first.keys() | second.keys() if not np.array_equal(first.get(name), second.get(name))]
    records = fleets.numbers(one), fleets.numbers(other)
    lines = [name for name in records[0].keys() | records[1].keys() if records[0].get(name) != records[1].get(name)]
    memory = [{str(p.relative_to(root)): p.read_bytes() for p in root.glob("*/replay-*.bin")} for root in (one, other)]
    rows = [name for name in memory[0].keys() | memory[1].keys() if memory[0].get(name) != memory[1].get(name)]
    return sorted(arrays + lines + rows)


class Tally:
    """Kills so far, by the name of a configuration, and how the fleets ended."""

    def __init__(self, wanted: int):
        self.wanted, self.begun = wanted, time.monotonic()
        self.kills: Counter[str] = Counter()
        self.early: Counter[str] = Counter()  # before the first iteration of a process
        self.fleets: Counter[str] = Counter()
        self.different: Counter[str] = Counter()
        self.open = 0  # kills of the fleet that has not ended yet

    def summary(self) -> str:
        lines = [
            f"  {name}: {self.kills[name]} kills, fleets {self.fleets[name]}, "
            + (f"{self.different[name]} ENDS DIFFER" if self.different[name] else "all ends equal")
            for name in self.fleets
        ]
        done, different = self.kills.total(), self.different.total()
        verdict = f"{different} ENDS DIFFER" if different else "all ends equal" if done else "nothing compared"
        minutes = (time.monotonic() - self.begun) / 60
        head = f"{done} of {self.wanted} kills by SIGKILL, fleets {self.fleets.total()}, {minutes:.0f} min: {verdict}"
        more = [f"  {self.open} more in a fleet that was not finished, so not compared"] if self.open else []
        return "\n".join([head, *lines, *more])

    def table(self) -> kept.Table:
        """Of fleets that ended."""
        columns = {"fleets of": "", "kills": "d", "at its start": "d", "fleets": "d", "ends equal": "d"}
        table = kept.Table(columns)
        for name, ended in self.fleets.items():
            table.add(name, self.kills[name], self.early[name], ended, ended - self.different[name])
        return table


def one_fleet(name: str, config: FleetConfig, kills: int, number: int, root: Path, tally: Tally) -> None:
    """The same settings with seeds of its own, trained twice."""
    seeds = tuple(seed + 100 * number for seed in config.seeds)
    config = dataclasses.replace(config, seeds=seeds, steps_per_task=config.iteration_steps * (2 * kills + 5))
    train(config, root / "straight", quiet=True)
    spec = json.loads((root / "straight" / "fleet.json").read_text())["spec"]
    begun, early = time.monotonic(), [0]

    def killed(iteration: int) -> None:
        tally.open += 1
        early[0] += iteration < 0
        where = f"after iteration {iteration} of {config.total_iterations}" if iteration >= 0 else "at its start"
        total = tally.kills.total() + tally.open
        print(f"{total:>4} of {tally.wanted}: {name}, fleet {number}, killed {where}", flush=True)

    kill.train_with_kills(config, root / "killed", root.parent / "cache", kills, number, spec=spec, killed=killed)
    wrong = differences(root / "straight", root / "killed")
    tally.kills[name] += kills
    tally.early[name] += early[0]
    tally.fleets[name] += 1
    tally.different[name] += bool(wrong)
    tally.open = 0
    end = f"DIFFERS in {', '.join(wrong)}" if wrong else "equal to that of the undisturbed fleet"
    print(f"{name}, fleet {number}: {kills} kills in {time.monotonic() - begun:.0f} s; its end is {end}", flush=True)


def as_in_other_processes(cache: Path) -> None:
    """Products and compiled programs of this process as those of the processes that are killed."""
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=count, nargs="?", default=200)
    kept.add_option(parser)
    options = parser.parse_args()
    wanted = options.kills
    signal.signal(signal.SIGTERM, stop)
    rows, tally, left = list(configs().items()), Tally(wanted), 0
    with tempfile.TemporaryDirectory() as folder:
        as_in_other_processes(Path(folder) / "cache")
        try:
            for number in range(-(-wanted // EACH)):
                name, config = rows[number % len(rows)]
                kills = min(EACH, wanted - number * EACH)
                one_fleet(name, config, kills, number, Path(folder) / str(number), tally)
        except KeyboardInterrupt:
            left = 130
            print("stopped; this is what there is", flush=True)
        finally:
            processes.end_all()
            print(tally.summary(), flush=True)
    kept.keep(tally.table(), options.keep, device())
    sys.exit(1 if tally.different.total() else left)


if __name__ == "__main__":
    main()
