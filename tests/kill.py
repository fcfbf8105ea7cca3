"""Training in a process that is killed by SIGKILL at random moments; `scripts/kills.py` does so 200 times."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fleets
import processes

SPREAD = 3
"""Iterations over which the moments of a kill are spread."""


def train_with_kills(
    config: fleets.FleetConfig,
    directory: Path,
    cache: Path,
    kills: int,
    seed: int,
    *,
    spec: dict[str, Any] | None = None,
    killed: Callable[[int], object] = lambda iteration: None,
) -> None:
    """Resume until done; so many times the process is killed, now and then at its start, else at a moment of its
    training. `spec`: of the fleet's data, else that of the probe tasks. `killed` hears of every kill, with the
    iterations that were done (-1: none in that process)."""
    rng = random.Random(seed)
    fleets.write(config, directory, spec)
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
        killed(hold.done(directory))
    process = fleets.resume(directory, cache)
    said = processes.ended(process)
    if process.returncode != 0:
        raise RuntimeError(f"resume failed:\n{said}")
