"""Networks of runs: the policy of a run's newest checkpoint, and states to evaluate it on."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sphere.experiments.experiment import Found, Scale
from sphere.report.run import Run
from sphere.storage import checkpoint

FRESH_NOISE = 2**30
"""Rollouts of an experiment draw their noise under iteration numbers that training does not reach."""


class Snapshot(NamedTuple):
    actor: Any
    """Of one run, as it acts."""
    heldout: np.ndarray
    """The suite's held-out states as this actor sees them, [state, observation]."""
    rollout: np.ndarray
    """States of the run's current task, visited by acting as in training, [state, observation]."""


STATES: dict[Scale, int] = {"smoke": 256, "small": 4096, "paper": 4096}
"""Number of states of a run's rollouts, at least."""


def snapshot(run: Run, scale: Scale, fresh: bool = False) -> Snapshot | None:
    """Networks of a run; None if it has no checkpoint. `fresh`: before any training, and without a rollout."""
    directory = run.path.parent
    kept = checkpoint.checkpoints(directory)
    if not kept:
        return None
    opened = _opened(directory, kept[-1].name, 0 if fresh else STATES[scale], fresh)
    return opened[run.path.name]


@functools.lru_cache(maxsize=16)  # runs of one fleet are wanted one after another, and opening it takes seconds
def _opened(directory: Path, newest: str, count: int, fresh: bool) -> dict[str, Snapshot]:
    from sphere.saved import SavedFleet  # not at the top: it takes a second to import

    fleet = SavedFleet.open(directory)
    policy = fleet.fresh() if fresh else fleet.policy
    source = fleet.open_source()
    try:
        found = source.states()
        if found is None:
            raise ValueError(f"{directory} was trained without held-out states; train it with --evaluation.heldout 256")
        seen, met = found.places["heldout"], _rollouts(source, policy, len(fleet.config.runs), count)
    finally:
        source.close()
    return {
        run.name: Snapshot(jax.tree.map(lambda leaf, i=i: leaf[i], policy), np.asarray(seen[i]), met[i])
        for i, run in enumerate(fleet.config.runs)
    }


def _rollouts(source: Any, policy: Any, runs: int, count: int) -> np.ndarray:
    """[run, state, observation], acting as in training."""
    found = [np.zeros((runs, 0, *source.spec.observation), np.float32)]
    while sum(part.shape[1] for part in found) < count:
        data, _ = source.collect(policy, FRESH_NOISE + len(found))
        found.append(np.asarray(data["obs"]).reshape(runs, -1, *source.spec.observation))
    return np.concatenate(found, axis=1)[:, :count]


def batches(states: np.ndarray, size: int, count: int, seed: int = 0) -> np.ndarray:
    """[batch, state, observation]: each batch has different states, drawn from all."""
    if len(states) < size:
        raise ValueError(f"{len(states)} states are too few for a batch of {size}; roll out more")
    rng = np.random.default_rng(seed)
    return np.stack([states[rng.choice(len(states), size, replace=False)] for _ in range(count)])


def batch_size(scale: Scale) -> tuple[int, int]:
    """Number of states of a batch, as in the paper, and number of batches."""
    return (16, 8) if scale == "smoke" else (64, 100)


def first_snapshots(found: Found, labels: Sequence[str]) -> dict[str, Snapshot]:
    """Of the first seed of each label that has finished."""
    snapshots = {}
    for label in labels:
        done = sorted(found.finished(label), key=lambda run: run.seed)
        if done and (one := snapshot(done[0], found.scale)):
            snapshots[label] = one
    return snapshots


def by_batch(
    found: Found, labels: Sequence[str], function: Callable[[Any, Any], tuple[Any, Any]]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two numbers of every batch of rollout states, or two arrays, for each label."""
    size, count = batch_size(found.scale)
    points = {}
    for label, one in first_snapshots(found, labels).items():
        states = jnp.asarray(batches(one.rollout, size, count))
        with jax.default_matmul_precision("highest"):  # TF32 would lift the floor of the spectra
            first, second = jax.jit(lambda actor, x: jax.lax.map(lambda s: function(actor, s), x))(one.actor, states)
        points[label] = (np.ravel(first).astype(float), np.ravel(second).astype(float))
    return points
