"""Bootstrap resamples of runs: all of them where there are few runs, else many at random.

A resample of n runs is a multiset: how often each run is in it. Five runs have 126, each with its multinomial
probability, and five against five 126^2. All of them together are the bootstrap distribution itself. Of 2,000 drawn at
random the ends of an interval of five runs, a thousandth each, would rest on two. Runs are resampled in *groups*: one
where they are drawn whole, one for each task where every task was trained alone.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import stats

RESAMPLES = 20_000
"""Up to so many, of both sides together, all are taken (eight runs, five against five); of more, so many at random."""
NUMBERS = 2**22
"""That are held at a time where a statistic wants the resampled tables themselves."""


class Resamples(NamedTuple):
    """Of one side of a comparison."""

    counts: np.ndarray  # [group, resample, run]: how often each run is drawn
    probability: np.ndarray  # [resample], sums to 1


def number(runs: int, groups: int) -> int:
    """Of multisets of `runs` runs, for each group its own."""
    return math.comb(2 * runs - 1, runs) ** groups


@cache
def every(runs: int, groups: int = 1) -> Resamples:
    """All of them, with their probabilities."""
    draws = itertools.combinations_with_replacement(range(runs), runs)
    counts = np.array([np.bincount(one, minlength=runs) for one in draws], dtype=np.int16)
    orders = [math.factorial(runs) // math.prod(map(math.factorial, row)) for row in counts.tolist()]
    probability = np.array(orders) / runs**runs
    chosen = np.indices((len(counts),) * groups).reshape(groups, -1)
    return Resamples(counts[chosen], np.prod(probability[chosen], axis=0))


def random(runs: int, groups: int, resamples: int, rng: np.random.Generator) -> Resamples:
    first = runs * np.arange(resamples, dtype=np.int32)[:, None]  # a place for every run of every resample
    counts = np.empty((groups, resamples, runs), np.int16)
    for group in counts:
        chosen = first + rng.integers(runs, size=(resamples, runs), dtype=np.int32)
        group[:] = np.bincount(chosen.ravel(), minlength=group.size).reshape(group.shape)
    return Resamples(counts, np.full(resamples, 1 / resamples))


def drawn(sides: Sequence[tuple[int, int]], resamples: int, seed: int) -> tuple[list[Resamples], bool]:
    """For each side, given as (runs, groups): all resamples, if those of all sides with each other are not too many
    (then True: each goes with each), or as many as asked for, at random (resample i of one with i of the other)."""
    if math.prod(number(*side) for side in sides) <= RESAMPLES:
        return [every(*side) for side in sides], True
    rng = np.random.default_rng(seed)
    return [random(*side, resamples, rng) for side in sides], False


def means(table: np.ndarray, resamples: Resamples) -> np.ndarray:
    """Of the resampled tables [run, task], without forming them."""
    groups, _, runs = resamples.counts.shape
    columns = table.mean(axis=1, keepdims=True) if groups == 1 else table
    found = [counts @ column for counts, column in zip(resamples.counts, columns.T, strict=True)]
    return np.mean(found, axis=0) / runs


def values_of(
    statistic: Callable[[np.ndarray], np.ndarray | np.floating], table: np.ndarray, resamples: Resamples
) -> np.ndarray:
    """Any statistic of stacked tables [..., run, task], some resamples at a time."""
    return np.concatenate([np.atleast_1d(statistic(some)) for some in _tables(table, resamples)])


def _tables(table: np.ndarray, resamples: Resamples) -> Iterator[np.ndarray]:
    groups, count, runs = resamples.counts.shape
    step = max(1, NUMBERS // table.size)
    for start in range(0, count, step):
        some = resamples.counts[:, start : start + step]
        rows = np.stack([np.repeat(np.tile(np.arange(runs), len(c)), c.ravel()).reshape(-1, runs) for c in some], 2)
        yield table[rows[:, :, 0]] if groups == 1 else table[rows, np.arange(groups)]


def quantile(values: np.ndarray, probability: np.ndarray, level: float) -> float:
    """The smallest value up to which there is at least so much probability. No interpolation: infinite values would
    make it NaN."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(probability[order])
    return float(values[order[min(int(np.searchsorted(reached, level - 1e-12)), len(order) - 1)]])


def expanded_tail(confidence: float, samples: int, freedom: float) -> float:
    """What to cut from each end of a bootstrap distribution of `samples` samples (Hesterberg 2015, "expanded percentile
    interval"): resamples vary as if the variance had been divided by n and not n - 1, and percentiles are those of a
    normal and not of a t distribution."""
    reach = stats.t.ppf((1 + confidence) / 2, freedom) * np.sqrt(samples / (samples - 1))
    return float(stats.norm.sf(reach))
