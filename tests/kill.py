"""`python tests/kill.py 20`: train a fleet that is killed by SIGKILL at random moments, compare with an undisturbed one."""

import dataclasses
import random
import sys
import tempfile
import time
from pathlib import Path

import fleets
import jax
import numpy as np

from sphere.training.loop import train


def train_with_kills(config, directory: Path, cache: Path, kills: int, seed: int) -> int:
    """Resume until done, killing the process `kills` times at moments spread over its life; how often it was killed."""
    rng = random.Random(seed)
    fleets.write(config, directory)
    done = 0
    while True:
        process = fleets.resume(directory, cache)
        if done < kills:
            begun = _wait_for_progress(process, directory) if rng.random() < 0.8 else True
            time.sleep(rng.random() * (0.15 if begun else 0.0))
            if process.poll() is None:
                process.kill()
                process.communicate()
                done += 1
                continue
        said = process.communicate(timeout=300)[0]
        if process.returncode != 0:
            raise RuntimeError(f"resume failed:\n{said}")
        return done


def _wait_for_progress(process, directory: Path) -> bool:
    """Until the records grow (or the process ends): the kill should hit training, not only the start-up."""
    size = _size(directory)
    while process.poll() is None and _size(directory) <= size:
        time.sleep(0.005)
    return process.poll() is None


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*/metrics.jsonl"))


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    config = dataclasses.replace(fleets.TINY, steps_per_task=64 * 60)
    jax.config.update("jax_default_matmul_precision", "highest")  # as in the processes that are killed
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        train(config, root / "straight", quiet=True)
        done = train_with_kills(config, root / "killed", root / "cache", kills, seed=1)
        same = fleets.numbers(root / "straight") == fleets.numbers(root / "killed")
        one, other = (fleets.final_arrays(root / name) for name in ("straight", "killed"))
        same = same and all(np.array_equal(one[name], other[name]) for name in one) and one.keys() == other.keys()
    print(f"killed {done} times by SIGKILL; records and final state {'equal' if same else 'DIFFER'}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
