"""Statistics of scores, with bootstrap intervals over runs; definitions and sources in docs/report.md.

Under the continual protocol the tasks of a run belong to one agent, so runs are resampled whole. Where every task was
trained alone (`independent_tasks`), runs are resampled within each task: the stratified bootstrap of Agarwal et al.
(2021).

With few runs a percentile interval is too narrow, so the percentiles are widened (`resampling.expanded_tail`). Without
it, five runs held the truth 82 times in 100 instead of 95; with it 92. With three runs it is 75 either way: an interval
cannot leave the range of the runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sphere.report import resampling
from sphere.report.resampling import RESAMPLES, expanded_tail, quantile
from sphere.report.scores import Scores, same_tasks

Numbers = np.ndarray | np.floating
"""A statistic of one table, or of each in a stack."""


# Aggregates. Each also works on a stack [..., run, task], which is how the bootstrap calls it.


def mean_of(table: np.ndarray) -> Numbers:
    return table.mean(axis=(-2, -1))


def iqm_of(table: np.ndarray) -> Numbers:
    return _trimmed_mean(table.mean(axis=-1))


def pooled_iqm_of(table: np.ndarray) -> Numbers:
    return _trimmed_mean(table.reshape(*table.shape[:-2], -1))


def _trimmed_mean(values: np.ndarray) -> Numbers:
    """Mean of what is left when a quarter, rounded down, is cut from both ends (scipy's trim_mean)."""
    count = values.shape[-1]
    cut = count // 4
    return np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)


def mean_std(scores: Scores) -> tuple[float, float]:
    """Mean over runs of their averages over tasks, and the population standard deviation over runs.

    Population, because the paper's tables are: one success in five seeds is printed there as 0.20 +- 0.40. NaN for
    one run.
    """
    return float(scores.by_run().mean()), deviation(scores.by_run())


def deviation(values: np.ndarray) -> float:
    """Population standard deviation; of one value NaN, not 0: it says nothing about the next one."""
    return float(np.std(values)) if len(values) > 1 else float("nan")


def mean_of_task_deviations(scores: Scores) -> float:
    """What the paper prints behind +- of an average: the mean over tasks of the deviations over runs."""
    return float(np.mean([deviation(column) for column in scores.table.T]))


def iqm(scores: Scores, over: Literal["runs", "runs and tasks"] = "runs") -> float:
    """Interquartile mean, of the runs' averages (as in the paper) or of all runs on all tasks (as in rliable)."""
    return float(iqm_of(scores.table) if over == "runs" else pooled_iqm_of(scores.table))


def iqr(scores: Scores) -> float:
    """75th minus 25th percentile of the runs' averages; of one run NaN."""
    if len(scores.runs) == 1:
        return float("nan")
    low, high = np.percentile(scores.by_run(), [25, 75])
    return float(high - low)


def pairs_won(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[task, our run, their run]: 1 where ours is better, a half where they are equal."""
    first, second = ours.T[:, :, None], theirs.T[:, None, :]
    return (first > second) + 0.5 * (first == second)


def probability_of_improvement(ours: Scores, theirs: Scores) -> float:
    """That a run of ours is better than one of theirs on a task drawn at random; ties count half."""
    return float(pairs_won(ours.table, same_tasks(ours, theirs)).mean())


# Continual World


def average_performance(final: Scores) -> float:
    """Mean over tasks of the score of the final policy."""
    return mean_std(final)[0]


def forgetting(own: Scores, final: Scores) -> dict[str, float]:
    """Of each task: the score right after its own training minus that at the end, mean over runs."""
    if set(own.runs) != set(final.runs):
        apart = sorted(set(own.runs) ^ set(final.runs))
        raise ValueError(f"run {', '.join(apart)} has only one of the two evaluations; forgetting needs both")
    order = [final.runs.index(run) for run in own.runs]
    lost = own.table - same_tasks(own, final)[order]
    return dict(zip(own.tasks, lost.mean(axis=0).tolist(), strict=True))


def forward_transfer(segment: Scores, reference: Scores) -> dict[str, float]:
    """Of each task (AUC - AUC_ref) / (1 - AUC_ref), AUC the mean score over the task's own segment: of scores up to
    1.

    The reference's AUC is the mean over its runs (tasks trained alone). Tasks with AUC_ref = 1 are left out: nothing
    can be better than that.
    """
    ours, alone = segment.table.mean(axis=0), same_tasks(segment, reference).mean(axis=0)
    return {
        task: float((a - b) / (1 - b)) for task, a, b in zip(segment.tasks, ours, alone, strict=True) if b < 1 - 1e-12
    }


# Bootstrap

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
    """Of a statistic of one method: `mean_of`, `iqm_of`, or any function of stacked tables [..., run, task].

    Here and below: all resamples where they are few, else `resamples` of them, drawn by `seed` (`report/resampling`).
    """
    (drawn,), _ = resampling.drawn([_side(scores, independent_tasks)], resamples, seed)
    values = resampling.values_of(statistic, scores.table, drawn)
    size = _smallest([scores], independent_tasks)
    return _bounds(float(statistic(scores.table)), values, drawn.probability, size, confidence)


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
    tables = [ours.table, same_tasks(ours, theirs)]
    sides = [_side(ours, independent_tasks), _side(theirs, independent_tasks)]
    if paired:
        tables[1], sides = tables[1][_partners(ours, theirs)], sides[:1]
    drawn, crossed = resampling.drawn(sides, resamples, seed)
    means = [resampling.means(table, drawn[-1 if i else 0]) for i, table in enumerate(tables)]
    probability = drawn[0].probability
    if crossed and not paired:
        means[0], probability = means[0][:, None], np.outer(probability, drawn[1].probability).ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        value, values = float(mean_of(tables[0]) / mean_of(tables[1])), (means[0] / means[1]).ravel()
    return _bounds(value, values, probability, _smallest([ours, theirs], independent_tasks), confidence)


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
    sides = [_side(ours, independent_tasks), _side(theirs, independent_tasks)]
    (first, second), crossed = resampling.drawn(sides, resamples, seed)
    found = []  # group by group, by how often each run is drawn: every pair of every resample would be too many numbers
    for won, mine, other in zip(wins, first.counts, second.counts, strict=True):
        found.append((mine @ won @ other.T).ravel() if crossed else np.sum((mine @ won) * other, axis=1))
    values = np.mean(found, axis=0) / (wins.shape[1] * wins.shape[2])
    probability = np.outer(first.probability, second.probability).ravel() if crossed else first.probability
    return _bounds(float(wins.mean()), values, probability, _smallest([ours, theirs], independent_tasks), confidence)


def _side(scores: Scores, independent_tasks: bool) -> tuple[int, int]:
    """Runs, and in how many groups they are resampled: whole, or separately for each task."""
    return len(scores.runs), len(scores.tasks) if independent_tasks else 1


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


def _bounds(
    value: float, drawn: np.ndarray, probability: np.ndarray, size: tuple[int, int], confidence: float
) -> Interval:
    runs, freedom = size
    if runs < 2:
        return Interval(value, float("nan"), float("nan"))
    tail = expanded_tail(confidence, runs, freedom)
    low = quantile(np.where(np.isnan(drawn), 0, drawn), probability, tail)
    high = quantile(np.where(np.isnan(drawn), np.inf, drawn), probability, 1 - tail)
    return Interval(value, low, high)
