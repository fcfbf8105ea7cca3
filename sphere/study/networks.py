"""Experiments that look at networks: a run's policy from its newest checkpoint, and states to look at it on."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sphere.report.load import Run
from sphere.runs import checkpoint
from sphere.runs.fleet import Fleet
from sphere.runs.settings import FleetConfig, rebuild, run_name
from sphere.study.cells import Scale
from sphere.study.experiment import Found

FRESH_NOISE = 2**30
"""Rollouts of an experiment draw noise under numbers that training does not reach."""


class Snapshot(NamedTuple):
    actor: Any
    """Of one run, as it acts."""
    heldout: np.ndarray
    """The suite's held-out states as this actor sees them, [state, observation]."""
    rollout: np.ndarray
    """States of the task that the run is at, met by acting as in training, [state, observation]."""


def snapshot(run: Run, rollout: int = 0, fresh: bool = False) -> Snapshot | None:
    """Networks of a run; None if it has no checkpoint. `rollout`: at least so many states. `fresh`: before any training."""
    directory = run.path.parent
    if not checkpoint.checkpoints(directory):
        return None
    config = rebuild(FleetConfig, json.loads((directory / "fleet.json").read_bytes()))
    place = [run_name(*one) for one in config.runs].index(run.path.name)
    fleet = Fleet(config, directory)
    try:
        if not fresh:
            fleet.resume()
        states = fleet.heldout
        if states is None:
            raise ValueError(f"{run.name} has no held-out states; train it with --evaluation.heldout 256")
        raw = np.broadcast_to(states, (len(config.runs), *states.shape))
        seen = raw.astype(np.float32) if fleet.statistics is None else fleet.statistics.normalise(raw)
        met = _rollouts(fleet, place, rollout) if rollout else np.zeros((0, states.shape[1]), np.float32)
        return Snapshot(jax.tree.map(lambda leaf: leaf[place], fleet.actor), seen[place], met)
    finally:
        fleet.close()


def _rollouts(fleet: Fleet, place: int, count: int) -> np.ndarray:
    for group in fleet.groups:
        if place < len(group.seeds):
            break
        place -= len(group.seeds)
    found: list[np.ndarray] = []
    while sum(map(len, found)) < count:
        rollout, _ = group.collector.collect(group.actor, group.program.rollout_steps, FRESH_NOISE + len(found))
        found.append(np.asarray(rollout.obs[place]).reshape(-1, rollout.obs.shape[-1]))
    return np.concatenate(found)[:count]


def batches(states: np.ndarray, size: int, count: int, seed: int = 0) -> np.ndarray:
    """[batch, state, observation]: each batch has different states, drawn from all."""
    if len(states) < size:
        raise ValueError(f"{len(states)} states cannot give a batch of {size}; roll out more")
    rng = np.random.default_rng(seed)
    return np.stack([states[rng.choice(len(states), size, replace=False)] for _ in range(count)])


def batch_size(scale: Scale) -> tuple[int, int]:
    """States of a batch, as in the paper, and how many batches."""
    return (16, 8) if scale == "smoke" else (64, 100)


def first_snapshots(found: Found, labels: Sequence[str], rollout: int = 0) -> dict[str, Snapshot]:
    """Of the first seed of each label that has finished."""
    snapshots = {}
    for label in labels:
        done = sorted((run for run in found.runs(label) if run.finished), key=lambda run: run.seed)
        if done and (one := snapshot(done[0], rollout)):
            snapshots[label] = one
    return snapshots


def by_batch(
    found: Found, labels: Sequence[str], function: Callable[[Any, Any], tuple[Any, Any]]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two numbers of every batch of rollout states, or two arrays, for each label."""
    size, count = batch_size(found.scale)
    points = {}
    for label, one in first_snapshots(found, labels, rollout=64 * size).items():
        states = jnp.asarray(batches(one.rollout, size, count))
        first, second = jax.jit(lambda actor, x: jax.lax.map(lambda s: function(actor, s), x))(one.actor, states)
        points[label] = (np.ravel(first).astype(float), np.ravel(second).astype(float))
    return points
