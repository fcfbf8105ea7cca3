"""Bootstrap intervals over runs: of one method, of a ratio of two, and of the probability of improvement.

Under the continual protocol the tasks of a run belong to one agent, so runs are resampled whole. Where every task was trained
alone (`independent_tasks`), runs are resampled within each task: the stratified bootstrap of Agarwal et al. (2021).

With few runs a percentile interval is too narrow: resamples vary as if the deviation had been divided by n and not n - 1, and
percentiles are those of a normal and not of a t distribution. The percentiles are therefore widened (Hesterberg 2015,
"expanded percentile interval"). Without it, five runs held the truth 82 times in 100 instead of 95; with it 92. With three
runs it is 75 either way: an interval cannot leave the range of the runs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from sphere.report.scores import Numbers, Scores, mean_of, pairs_won, same_tasks

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A statistic and its bootstrap interval; NaN bounds where there is one run."""

    value: float
    low: float
    high: float


def interval(
    scores: Scores,
    statistic: Callable[[np.ndarray], Numbers] = mean_of,
    *,
    independent_tasks: bool = False,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Of a statistic of one method: `mean_of`, `iqm_of`, or any function of stacked tables [..., run, task]."""
    rng = np.random.default_rng(seed)
    drawn = _resample(scores.table, rng, resamples, independent_tasks)
    value = float(statistic(scores.table))
    return _bounds(value, statistic(drawn), _smallest([scores], independent_tasks), confidence)


def ratio(
    ours: Scores,
    theirs: Scores,
    *,
    paired: bool = False,
    independent_tasks: bool = False,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Our average over theirs. `paired`: runs of one seed are drawn together.

    x/0 is infinite; 0/0 says nothing, so such resamples stretch the interval on both sides.
    """
    first, second = ours.table, same_tasks(ours, theirs)
    rng = np.random.default_rng(seed)
    if paired:
        second = second[_partners(ours, theirs)]
        both = _resample(np.concatenate([first, second], axis=1), rng, resamples, independent_tasks, first.shape[1])
        drawn = mean_of(both[..., : first.shape[1]]), mean_of(both[..., first.shape[1] :])
    else:
        drawn = (
            mean_of(_resample(first, rng, resamples, independent_tasks)),
            mean_of(_resample(second, rng, resamples, independent_tasks)),
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        value, values = float(mean_of(first) / mean_of(second)), drawn[0] / drawn[1]
    return _bounds(value, values, _smallest([ours, theirs], independent_tasks), confidence)


def improvement(
    ours: Scores,
    theirs: Scores,
    *,
    independent_tasks: bool = False,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Of the probability that a run of ours is better than one of theirs."""
    wins = pairs_won(ours.table, same_tasks(ours, theirs))
    if not independent_tasks:
        wins = wins.mean(axis=0, keepdims=True)
    rng = np.random.default_rng(seed)
    # how often each run is drawn, [task or one, resample, run]: every pair of every resample would be too many numbers
    first, second = (_times_drawn(rng, resamples, len(wins), runs) for runs in wins.shape[1:])
    drawn = np.mean(np.sum((first @ wins) * second, axis=2), axis=0) / (wins.shape[1] * wins.shape[2])
    return _bounds(float(wins.mean()), drawn, _smallest([ours, theirs], independent_tasks), confidence)


def _times_drawn(rng: np.random.Generator, resamples: int, groups: int, runs: int) -> np.ndarray:
    return rng.multinomial(runs, np.full(runs, 1 / runs), size=(groups, resamples)).astype(float)


def _resample(
    table: np.ndarray, rng: np.random.Generator, resamples: int, independent_tasks: bool, period: int | None = None
) -> np.ndarray:
    """Tables [resample, run, task] with runs drawn with replacement: whole, or anew for each task.

    With `period` columns of the same place in a period are drawn together: pairs of one task.
    """
    runs, tasks = table.shape
    if not independent_tasks:
        return table[rng.integers(runs, size=(resamples, runs))]
    width = period or tasks
    chosen = rng.integers(runs, size=(resamples, runs, width))
    chosen = np.tile(chosen, (1, 1, tasks // width))
    return table[chosen, np.arange(tasks)]


def _partners(ours: Scores, theirs: Scores) -> list[int]:
    """The rows of `theirs` by our seeds."""
    for side in (ours, theirs):
        if len(set(side.seeds)) != len(side.seeds):
            raise ValueError(f"several runs have one seed ({side.seeds}); pairing by seed needs one run per seed")
    if set(ours.seeds) != set(theirs.seeds):
        apart = sorted(set(ours.seeds) ^ set(theirs.seeds))
        raise ValueError(f"only one method has seed {', '.join(map(str, apart))}; pair the same seeds, or do not pair")
    return [theirs.seeds.index(seed) for seed in ours.seeds]


def _smallest(sides: list[Scores], independent_tasks: bool) -> tuple[int, int]:
    """Runs of the smaller side, and the degrees of freedom of its deviation."""
    runs = min(len(side.runs) for side in sides)
    return runs, (runs - 1) * (len(sides[0].tasks) if independent_tasks else 1)


def _bounds(value: float, drawn: Numbers, size: tuple[int, int], confidence: float) -> Interval:
    runs, freedom = size
    if runs < 2:
        return Interval(value, float("nan"), float("nan"))
    reach = stats.t.ppf((1 + confidence) / 2, freedom) * np.sqrt(runs / (runs - 1))
    tail = float(stats.norm.sf(reach))
    # no interpolation between resamples: infinite ones would make it NaN
    low = np.quantile(np.where(np.isnan(drawn), 0, drawn), tail, method="inverted_cdf")
    high = np.quantile(np.where(np.isnan(drawn), np.inf, drawn), 1 - tail, method="inverted_cdf")
    return Interval(value, float(low), float(high))
