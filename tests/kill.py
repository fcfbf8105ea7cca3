"""`python tests/kill.py 20`: train a fleet that is killed by SIGKILL at random moments, compare with an undisturbed
one."""

import dataclasses
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import fleets
import jax
import numpy as np
import processes

from sphere.training.loop import train

SPREAD = 3
"""Iterations over which the moments of a kill are spread."""


def train_with_kills(config, directory: Path, cache: Path, kills: int, seed: int) -> None:
    """Resume until done; so many times the process is killed, now and then at its start, else at a moment of its
    training."""
    rng = random.Random(seed)
    fleets.write(config, directory)
    last = config.iterations_per_task * len(config.tasks) - 1
    for kill in range(kills):
        first = rng.randrange(last * kill // kills, last * (kill + 1) // kills)
        hold = fleets.Hold(directory.with_name("hold"), min(first + SPREAD, last))
        process = fleets.resume(directory, cache, hold=hold)
        if rng.random() < 0.8:  # the kill should hit training, not only the start-up
            processes.until(lambda hold=hold, first=first: hold.done(directory) >= first, process)
        time.sleep(rng.random() * 0.15)
        process.kill()
        said = processes.ended(process)
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"it ended by itself:\n{said}")
    process = fleets.resume(directory, cache)
    said = processes.ended(process)
    if process.returncode != 0:
        raise RuntimeError(f"resume failed:\n{said}")


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    config = dataclasses.replace(fleets.TINY, steps_per_task=64 * 60)
    jax.config.update("jax_default_matmul_precision", "highest")  # as in the processes that are killed
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        train(config, root / "straight", quiet=True)
        try:
            train_with_kills(config, root / "killed", root / "cache", kills, seed=1)
        finally:
            processes.end_all()
        same = fleets.numbers(root / "straight") == fleets.numbers(root / "killed")
        one, other = (fleets.final_arrays(root / name) for name in ("straight", "killed"))
        same = same and all(np.array_equal(one[name], other[name]) for name in one) and one.keys() == other.keys()
    print(f"killed {kills} times by SIGKILL; records and final state {'equal' if same else 'DIFFER'}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
