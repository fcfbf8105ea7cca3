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
    runs: int


def load_map(runs: Sequence[Run], place: str = "heldout") -> Load | None:
    """Mean at every evaluation over the runs that have come so far. Experts of different runs have nothing to do with each
    other, so they are sorted by load first."""
    names = {name for run in runs for name in run.curve.values if name.startswith(f"{place}/load/")}
    experts = sorted(int(name.rsplit("/", 1)[1]) for name in names)
    known = [run for run in runs if experts and all(f"{place}/load/{e}" in run.curve.values for e in experts)]
    step = np.unique(np.concatenate([run.curve.step for run in known])) if known else np.array([], np.int64)
    if not step.size:
        return None
    share = np.full((len(known), len(experts), step.size), np.nan)
    for one, run in zip(share, known, strict=True):
        own = np.stack([run.curve.values[f"{place}/load/{e}"] for e in experts])
        one[:, np.searchsorted(step, run.curve.step)] = -np.sort(-own, axis=0) if len(known) > 1 else own
    seen = np.isfinite(share).all(axis=1).any(axis=0)
    return Load(step[seen], np.nanmean(share[:, :, seen], axis=0), len(known)) if seen.any() else None


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
