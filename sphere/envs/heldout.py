"""The fixed states on which r_e(K) and the diagnostics of a suite are compared: `sphere heldout SUITE`.

States of a policy that was trained apart from everything that is compared, as in the paper (there on HumanoidBench's Stair).
The package ships one batch per suite, in `sphere/heldout/`, so that numbers of different users mean the same. A file holds the
states and, as JSON, where they come from and their checksum.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sphere.storage import run_directory

FOLDER = Path(__file__).parents[1] / "heldout"


class Heldout(NamedTuple):
    states: np.ndarray  # [state, observation], as the simulator gives them, in random order
    provenance: dict[str, Any]


def save(path: Path, states: np.ndarray, provenance: dict[str, Any]) -> None:
    states = np.ascontiguousarray(states, np.float32)
    facts = {**provenance, "sha256": hashlib.sha256(states.tobytes()).hexdigest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with run_directory.atomic_write(path) as file:
        np.savez_compressed(file, states=states, provenance=np.frombuffer(json.dumps(facts).encode(), np.uint8))


def load(path: Path) -> Heldout:
    with np.load(path, allow_pickle=False) as file:
        states, provenance = file["states"], json.loads(file["provenance"].tobytes())
    found = hashlib.sha256(np.ascontiguousarray(states).tobytes()).hexdigest()
    if found != provenance["sha256"]:
        raise ValueError(f"{path} was changed: its states have sha256 {found[:12]}…, want {provenance['sha256'][:12]}…")
    return Heldout(states, provenance)


def shipped(suite: str) -> Heldout | None:
    """The batch of a suite that comes with the package."""
    path = FOLDER / f"{suite}.npz"
    return load(path) if path.is_file() else None
