"""Networks of runs: the policy of a run's newest checkpoint, and states to evaluate it on."""

import functools
import json
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
    from sphere.experiments.configs import read, singles  # not at the top: these and the next take a second to import
    from sphere.training.fleet import Fleet

    config = read(json.loads((directory / "fleet.json").read_bytes()))
    fleet = Fleet(config, directory)
    try:
        if not fresh:
            fleet.resume()
        states = fleet.heldout
        if states is None:
            raise ValueError(f"{directory} was trained without held-out states; train it with --evaluation.heldout 256")
        raw = np.broadcast_to(states, (len(config.runs), *states.shape))
        seen = raw.astype(np.float32) if fleet.statistics is None else fleet.statistics.normalise(raw)
        met = np.concatenate([_rollouts(group, count) for group in fleet.groups])
        return {
            name: Snapshot(jax.tree.map(lambda leaf, i=i: leaf[i], fleet.actor), seen[i], met[i])
            for i, name in enumerate(singles(config))
        }
    finally:
        fleet.close()


def _rollouts(group: Any, count: int) -> np.ndarray:
    """[run, state, observation] of a group's runs, acting as in training."""
    found = [np.zeros((len(group.seeds), 0, group.obs_size), np.float32)]
    while sum(part.shape[1] for part in found) < count:
        rollout, _ = group.collector.collect(group.actor, group.program.rollout_steps, FRESH_NOISE + len(found))
        found.append(np.asarray(rollout.obs).reshape(len(group.seeds), -1, group.obs_size))
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
