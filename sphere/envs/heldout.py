"""The fixed states on which r_e(K) and the diagnostics of a suite are compared: `sphere heldout SUITE`.

States of a policy that was trained apart from everything that is compared, as in the paper (there on HumanoidBench's
Stair). The package ships one batch of 512 per suite, in `sphere/heldout/`, so that numbers of different users mean
the same; the first 256 are used (`--evaluation.heldout`). A file holds the states and, as JSON, where they come from
and their checksum. The policy is a small dense one that acts as in training: on Stair for HumanoidBench, through all
ten tasks for MetaWorld. Where no batch fits (one-hot ids, probe tasks, suites from outside), states of a random
policy take its place.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sphere import envs
from sphere.envs.pool import Pool
from sphere.storage.files import atomic_write

FOLDER = Path(__file__).parents[1] / "heldout"


class Heldout(NamedTuple):
    states: np.ndarray  # [state, observation], as the simulator gives them, in random order
    provenance: dict[str, Any]


def save(path: Path, states: np.ndarray, provenance: dict[str, Any]) -> None:
    states = np.ascontiguousarray(states, None if states.dtype == np.uint8 else np.float32)
    facts = {**provenance, "sha256": hashlib.sha256(states.tobytes()).hexdigest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        np.savez_compressed(file, states=states, provenance=np.frombuffer(json.dumps(facts).encode(), np.uint8))


def load(path: Path) -> Heldout:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            states, provenance = file["states"], json.loads(file["provenance"].tobytes())
        wanted = provenance["sha256"]
    except Exception as error:  # whatever a damaged archive makes the parsers raise
        raise ValueError(
            f"{path} is damaged ({error}); install sphere-rl again, or make it by sphere heldout"
        ) from error
    found = hashlib.sha256(np.ascontiguousarray(states).tobytes()).hexdigest()
    if found != wanted:
        raise ValueError(f"{path} was changed: its states have sha256 {found[:12]}…, want {wanted[:12]}…")
    return Heldout(states, provenance)


def shipped(suite: str) -> Heldout | None:
    """The batch of a suite that comes with the package."""
    path = FOLDER / f"{suite}.npz"
    return load(path) if path.is_file() else None


def fixed_states(task: str, count: int, shape: tuple[int, ...], settings: dict[str, Any]) -> np.ndarray | None:
    """The suite's own batch; where there is none that fits, states of a random policy, the same for every user."""
    if not count:
        return None
    batch = shipped(task.split("/")[0])
    if batch is not None and batch.states.shape[1:] == shape:
        if count > len(batch.states):
            raise ValueError(
                f"evaluation.heldout={count}, but the suite's batch has {len(batch.states)} states; use fewer"
            )
        return batch.states[:count]
    with envs.make(task, num_envs=8, seed=0, workers=0, **settings) as pool:
        return random_states(pool, count)


def random_states(pool: Pool, count: int, seed: int = 0) -> np.ndarray:
    """States that a uniformly random policy meets: a held-out batch for suites that ship none."""
    rng = np.random.default_rng(seed)
    raw, _ = pool.reset(seed=[2**32 - 1] * pool.num_runs)
    low, high = pool.single_action_space.low, pool.single_action_space.high
    seen = [raw]
    while sum(map(len, seen)) < 8 * count:
        raw, *_ = pool.step(rng.uniform(low, high, size=(pool.num_envs, len(low))).astype(np.float32))
        seen.append(raw)
    states = np.concatenate(seen)
    return states[rng.permutation(len(states))[:count]]
