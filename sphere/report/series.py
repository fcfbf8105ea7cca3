"""Does one series run ahead of another? Lagged correlations, and a one-step regression with a moving-block bootstrap.

Evaluations of one run follow one another and are not independent samples: an interval over single evaluations would be far too
narrow. The bootstrap therefore draws blocks of neighbouring evaluations (Kuensch 1989).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

BLOCK = 25
RESAMPLES = 2000


@dataclass(frozen=True)
class Series:
    """A number at every evaluation, in order."""

    name: str
    step: np.ndarray
    values: np.ndarray

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or self.values.shape != self.step.shape:
            raise ValueError(
                f"{self.name} has {self.values.shape} values at {self.step.shape} steps; wanted one value per step"
            )
        if not np.all(np.isfinite(self.values)):
            raise ValueError(f"{self.name} is not finite at step {self.step[~np.isfinite(self.values)][0]}")


def same_steps(first: Series, second: Series) -> None:
    if not np.array_equal(first.step, second.step):
        raise ValueError(
            f"{first.name} ({len(first.step)} evaluations) and {second.name} ({len(second.step)}) are not of the same steps; "
            "compare series of the same runs"
        )


def lagged_correlations(outcome: Series, leader: Series, lags: Iterable[int]) -> dict[int, float]:
    """Pearson's correlation of outcome_t and leader_(t - lag), by lag. Lags > 0: the leader is taken earlier.

    NaN where fewer than three pairs or half of all are left (of a few some lag always fits), or one side does not vary.
    """
    same_steps(outcome, leader)
    found = {}
    for lag in lags:
        later, earlier = (outcome.values, leader.values) if lag >= 0 else (leader.values, outcome.values)
        first, second = later[abs(lag) :], earlier[: len(earlier) - abs(lag)]
        flat = len(first) < max(3, len(later) / 2) or np.ptp(first) == 0 or np.ptp(second) == 0
        found[lag] = float("nan") if flat else float(np.corrcoef(first, second)[0, 1])
    return found


def best_lag(correlations: dict[int, float]) -> int | None:
    """The lag with the largest correlation; the shortest of several. None if there is none."""
    known = {lag: value for lag, value in correlations.items() if np.isfinite(value)}
    return max(known, key=lambda lag: (known[lag], -abs(lag))) if known else None


@dataclass(frozen=True)
class Prediction:
    """The leader's standardised coefficient in outcome_t ~ 1 + outcome_(t-1) + t + leader_(t-1)."""

    coefficient: float
    low: float
    high: float
    """95% percentile interval of the bootstrap."""
    not_positive: float
    """Share of resamples whose coefficient is not above zero: the paper's p(beta <= 0)."""
    evaluations: int


def predict_one_step(
    outcome: Series, leader: Series, *, block: int = BLOCK, resamples: int = RESAMPLES, seed: int = 0
) -> Prediction | None:
    """None where nothing can be said: fewer evaluations than four blocks, whose resamples would be nearly alike, or a series
    that does not vary."""
    same_steps(outcome, leader)
    rows = np.column_stack(
        [outcome.values[1:], outcome.values[:-1], np.arange(len(outcome.values) - 1.0), leader.values[:-1]]
    )
    if len(rows) < 4 * block or np.any(np.ptp(rows, axis=0) == 0):
        return None
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    drawn = moving_blocks(len(rows), block, resamples, np.random.default_rng(seed))
    values = np.array([_coefficient(rows[chosen]) for chosen in drawn])
    low, high = np.percentile(values, [2.5, 97.5])
    return Prediction(_coefficient(rows), float(low), float(high), float(np.mean(values <= 0)), len(rows))


def _coefficient(rows: np.ndarray) -> float:
    design = np.column_stack([np.ones(len(rows)), rows[:, 1:]])
    return float(np.linalg.lstsq(design, rows[:, 0], rcond=None)[0][-1])


def moving_blocks(length: int, block: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Indices [resample, length]: blocks of neighbours, drawn with replacement from all that fit, one after another."""
    if not 1 <= block <= length:
        raise ValueError(f"a block of {block} does not fit in a series of {length}; use 1 to {length}")
    starts = rng.integers(length - block + 1, size=(resamples, -(-length // block)))
    return (starts[:, :, None] + np.arange(block)).reshape(resamples, -1)[:, :length]
