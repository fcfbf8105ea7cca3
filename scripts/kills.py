"""`python scripts/kills.py 200`: fleets that are killed by SIGKILL at random moments end as undisturbed ones do.

Kills are shared out among small fleets of at most 25 kills each, of the probe tasks and of MetaWorld. Each fleet is resumed
after every kill; in the end its records and its last checkpoint are compared with those of a fleet that was never
stopped, bit for bit, wall-clock times aside. Needs the checkout: it uses the machinery of the tests.
"""

# ruff: noqa: E402  (the machinery of the tests is no package: its folder comes on the path first)
import dataclasses
import importlib.util
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import fleets
import jax
import kill
import numpy as np
import processes

from sphere.training.loop import train

EACH = 25
"""Kills of a fleet at most."""
METAWORLD = ("metaworld/window-close", "metaworld/push")


def configs() -> dict[str, fleets.FleetConfig]:
    """By name, each with its share of the kills. Learners and suites that are added later get a row here."""
    found = {"probe": fleets.TINY}
    if importlib.util.find_spec("metaworld") or importlib.util.find_spec("mujoco"):
        found["metaworld"] = fleets.changed(fleets.TINY, tasks=METAWORLD, seeds=(0,), horizon=40)
    return found


def equal(one: Path, other: Path) -> bool:
    first, second = fleets.final_arrays(one), fleets.final_arrays(other)
    same = first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
    return same and fleets.numbers(one) == fleets.numbers(other)


def one_fleet(name: str, config: fleets.FleetConfig, kills: int, seed: int, root: Path, cache: Path) -> bool:
    config = dataclasses.replace(config, steps_per_task=config.iteration_steps * (kills + 5))
    train(config, root / "straight", quiet=True)
    begun = time.monotonic()
    kill.train_with_kills(config, root / "killed", cache, kills, seed)
    same = equal(root / "straight", root / "killed")
    words = f"{name}, seed {seed}: {kills} kills in {time.monotonic() - begun:.0f} s, records and final state"
    print(f"{words} {'equal' if same else 'DIFFER'}", flush=True)
    return same


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    jax.config.update("jax_default_matmul_precision", "highest")  # as in the processes that are killed
    rows, done, good = list(configs().items()), 0, True
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(-(-wanted // EACH)):
            name, config = rows[seed % len(rows)]
            kills = min(EACH, wanted - done)
            try:
                good &= one_fleet(name, config, kills, seed, Path(folder) / str(seed), Path(folder) / "cache")
            finally:
                processes.end_all()
            done += kills
    print(f"{done} kills by SIGKILL: {'all ends equal' if good else 'SOME ENDS DIFFER'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
