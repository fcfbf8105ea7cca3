"""Tables of numbers by two things: load by expert and time, success by task and moment."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sphere.report.run import Run
from sphere.report.select import after_task
from sphere.report.summary import Comparison


@dataclass(frozen=True)
class Load:
    """Share of selections that each expert takes, over training: [expert, evaluation]."""

    step: np.ndarray
    share: np.ndarray


def load_map(runs: Sequence[Run], place: str = "heldout") -> Load | None:
    """Mean over runs. Experts of different runs have nothing to do with each other, so they are sorted by load first."""
    names = {name for run in runs for name in run.curve.values if name.startswith(f"{place}/load/")}
    experts = sorted(int(name.rsplit("/", 1)[1]) for name in names)
    stacks: list[np.ndarray] = []
    step = np.array([], np.int64)
    for run in runs:
        if run.curve.step.size and all(f"{place}/load/{e}" in run.curve.values for e in experts):
            share = np.stack([run.curve.values[f"{place}/load/{e}"] for e in experts]) if experts else np.array([])
            if share.size and (not stacks or share.shape == stacks[0].shape):
                stacks.append(-np.sort(-share, axis=0) if len(runs) > 1 else share)
                step = run.curve.step
    return Load(step, np.mean(stacks, axis=0)) if stacks else None


def retention(comparison: Comparison, runs: Sequence[Run]) -> np.ndarray | None:
    """Mean success [after task, on task] over runs; NaN where nothing was evaluated; None if only the diagonal is known."""
    table = np.array(
        [
            [[after_task(run, task, boundary, comparison.success) for task in comparison.tasks] for run in runs]
            for boundary in range(len(comparison.tasks))
        ]
    )
    known = np.isfinite(table).any(axis=1)
    if not (known & ~np.eye(len(comparison.tasks), dtype=bool)).any():
        return None
    mean = np.full(known.shape, np.nan)
    for boundary, task in zip(*np.nonzero(known), strict=True):
        mean[boundary, task] = np.nanmean(table[boundary, :, task])
    return mean
