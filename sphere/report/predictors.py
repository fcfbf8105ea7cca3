"""Does a diagnostic say something about the score? At the first evaluation of a task about its end, or some
evaluations ahead.

Methods differ in their diagnostics and in their scores, and so do tasks: over all runs nearly everything correlates.
So ranks are compared within each method and task, among runs that differ by their seed only.

Evaluations of one run follow one another and are not independent samples: an interval over single evaluations would
be far too narrow. The bootstrap of a regression therefore draws blocks of neighbouring evaluations (Kuensch 1989).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata, t

from sphere.report.comparison import Comparison, metrics
from sphere.report.names import SECOND
from sphere.report.run import Run
from sphere.report.scores import own_episodes

LEAST = 3
"""Runs of a method: two are always in order or in reverse."""
RESAMPLES = 9999
BLOCK = 25
BLOCK_RESAMPLES = 20_000


@dataclass(frozen=True)
class Association:
    correlation: float
    """Spearman's, within groups and tasks."""
    p: float
    """Share of permutations of runs within their groups that give a correlation as far from zero."""
    pairs: int


@dataclass(frozen=True)
class Predictor:
    """A diagnostic at a task's first evaluation, with what was reached at its end; None where that does not vary."""

    metric: str
    score: Association | None
    second: Association | None
    """With the column that is shown beside the score; None also where records have none."""


Group = tuple[np.ndarray, np.ndarray]
"""A diagnostic and an outcome of one method, both [run, task]."""


def within_groups(
    groups: Sequence[Group], *, paired: bool = False, resamples: int = RESAMPLES, seed: int = 0
) -> Association | None:
    """Rank correlation of two tables within groups and columns; None where nothing varies.

    Permutations move whole rows: a run's tasks are not independent samples. Nor are runs of different methods with one
    seed, which begin with the same network and meet the same episodes: `paired`, rows of all groups move together.
    """
    if paired and len({len(x) for x, _ in groups}) > 1:
        raise ValueError("paired groups have the same runs in the same order; these differ in number")
    ranked = [ranks for x, y in groups if (ranks := _ranks(x, y)) is not None]
    if not ranked:
        return None
    scale = np.sqrt(sum(np.sum(x**2) for x, _ in ranked) * sum(np.sum(y**2) for _, y in ranked))
    rng = np.random.default_rng(seed)
    observed, drawn, order = 0.0, np.zeros(resamples), None
    for x, y in ranked:
        products = x @ y.T  # of every run's diagnostics with every run's outcomes
        if order is None or not paired:
            order = rng.permuted(np.tile(np.arange(len(x)), (resamples, 1)), axis=1)
        observed += np.trace(products)
        drawn += products[np.arange(len(x)), order].sum(axis=1)
    extreme = np.sum(np.abs(drawn) >= abs(observed) - 1e-9 * scale)
    correlation = round(float(observed / scale), 12) + 0.0  # products that cancel leave a last digit, or a minus
    return Association(correlation, float((1 + extreme) / (1 + resamples)), sum(x.size for x, _ in ranked))


def _ranks(x: np.ndarray, y: np.ndarray) -> Group | None:
    """Centred ranks of the columns in which both sides are known and vary."""
    if len(x) < LEAST:
        return None
    known = np.isfinite(x).all(axis=0) & np.isfinite(y).all(axis=0)
    x, y = x[:, known], y[:, known]
    vary = (np.ptp(x, axis=0) > 0) & (np.ptp(y, axis=0) > 0)
    if not vary.any():
        return None
    first, second = ((rankdata(side[:, vary], axis=0) - (len(x) + 1) / 2) / (len(x) + 1) for side in (x, y))
    return first, second


def early_predictors(comparison: Comparison, since: int = 1) -> list[Predictor]:
    """Of every diagnostic under CRL, from the second task on (or a later one, counted from 0), the lowest p first."""
    groups = [_equally_far(runs) for _, protocol, runs in comparison.groups if protocol == "crl"]
    groups, paired = _paired([runs for runs in groups if len(runs) >= LEAST])
    numbers = range(since, len(comparison.tasks))

    def tables(value: Callable[[Run, int], float]) -> list[np.ndarray]:
        return [np.array([[value(run, n) for n in numbers] for run in runs]) for runs in groups]

    begun = tables(_first_step)
    second = f"evaluation/{SECOND}"
    ends = [tables(lambda run, n: _own_score(run, comparison, n))]
    if comparison.score != SECOND:
        ends.append(tables(lambda run, n: _at_end(run, second, n)))
    found = []
    for name in metrics([run for runs in groups for run in runs]):
        if name.startswith("evaluation/"):
            continue
        values = tables(lambda run, n, name=name: _at(run, name, n, 0))  # type: ignore[misc]
        known = [np.where(step == step[:1], value, np.nan) for step, value in zip(begun, values, strict=True)]
        both = [within_groups(list(zip(known, end, strict=True)), paired=paired) for end in ends]
        if any(both):
            found.append(Predictor(name, *(both if len(both) == 2 else [*both, None])))
    return sorted(found, key=lambda one: (min(end.p for end in (one.score, one.second) if end), one.metric))


def _paired(groups: list[list[Run]]) -> tuple[list[list[Run]], bool]:
    """Methods that share seeds, by the seeds that all have, in one order; others as they are, since nothing ties
    them."""
    seeds = [{run.seed for run in runs} for runs in groups]
    if sum(map(len, seeds)) == len(set().union(*seeds)):
        return groups, False
    common = set.intersection(*seeds)
    return [sorted((run for run in runs if run.seed in common), key=lambda run: run.seed) for runs in groups], True


def _equally_far(runs: Sequence[Run]) -> list[Run]:
    """Those that have finished as many tasks as gives the most pairs: one that lags behind does not hold up all
    others."""
    done = [sum(run.steps >= run.task_steps * (n + 1) for n in range(len(run.tasks))) for run in runs]
    pairs = {least: (least - 1) * sum(count >= least for count in done) for least in set(done)}
    least = max(pairs, key=lambda one: pairs[one])
    return [run for run, count in zip(runs, done, strict=True) if count >= least]


def _own_score(run: Run, comparison: Comparison, number: int) -> float:
    episodes = own_episodes(run, comparison.tasks[number])
    return float(episodes.mean()) if episodes.size else float("nan")


def _at_end(run: Run, metric: str, number: int) -> float:
    return _at(run, metric, number, -1) if run.steps >= run.task_steps * (number + 1) else float("nan")


def _first_step(run: Run, number: int) -> float:
    """Of the evaluations of a task; NaN where the first is also the last."""
    rows = np.flatnonzero(run.curve.task == number)
    return float(run.curve.step[rows[0]]) if rows.size > 1 else float("nan")


def _at(run: Run, metric: str, number: int, evaluation: int) -> float:
    """At one of the evaluations of a task."""
    rows = np.flatnonzero(run.curve.task == number)
    return (
        float(run.curve.values[metric][rows[evaluation]]) if rows.size and metric in run.curve.values else float("nan")
    )


# Along training


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
            f"{first.name} ({len(first.step)} evaluations) and {second.name} ({len(second.step)}) are not of the "
            "same steps; compare series of the same runs"
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
class LaggedEffect:
    """The leader's standardised coefficient in outcome_t ~ 1 + outcome_(t-1) + t + leader_(t-1)."""

    coefficient: float
    low: float
    high: float
    """95% interval: the coefficient and `_reach` deviations of the resamples to both sides."""
    not_positive: float
    """Share of resamples whose coefficient is not above zero: the paper's p(beta <= 0). As sure of itself as the plain
    percentile interval, which holds the truth in 82 to 85 of 100 series of four blocks and not in 95."""
    evaluations: int


def predict_one_step(
    outcome: Series, leader: Series, *, block: int = BLOCK, resamples: int = BLOCK_RESAMPLES, seed: int = 0
) -> LaggedEffect | None:
    """None where nothing can be said: fewer evaluations than four blocks, whose resamples would be nearly alike,
    or a series that does not vary."""
    same_steps(outcome, leader)
    rows = np.column_stack(
        [outcome.values[1:], outcome.values[:-1], np.arange(len(outcome.values) - 1.0), leader.values[:-1]]
    )
    if len(rows) < 4 * block or np.any(np.ptp(rows, axis=0) == 0):
        return None
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    starts = block_starts(len(rows), block, resamples, np.random.default_rng(seed))
    values = _coefficients(_sums(rows, starts, block))
    coefficient = float(_coefficients(_products(rows).sum(axis=0)[None])[0])
    far = _reach(len(rows) / block) * float(values.std(ddof=1))
    return LaggedEffect(coefficient, coefficient - far, coefficient + far, float(np.mean(values <= 0)), len(rows))


def _reach(blocks: float, confidence: float = 0.95) -> float:
    """In deviations of the resamples, which vary too little by (k - 1) / k as those of k samples do. The deviation is
    itself an estimate, so t and not normal: overlapping blocks know it two thirds as badly as k separate ones
    (Kuensch 1989), so with 1.5 k degrees of freedom. docs/metrics.md has how often it holds the truth."""
    return float(t.ppf((1 + confidence) / 2, 1.5 * blocks) * np.sqrt(blocks / (blocks - 1)))


def _products(rows: np.ndarray) -> np.ndarray:
    """Of the regression's columns with each other, [row, 5, 5]: 1, those that explain, and last the explained one."""
    columns = np.column_stack([np.ones(len(rows)), rows[:, 1:], rows[:, 0]])
    return columns[:, :, None] * columns[:, None, :]


def _sums(rows: np.ndarray, starts: np.ndarray, block: int) -> np.ndarray:
    """The products summed over each resample, [resample, 5, 5], from running sums; the last block is cut at the end."""
    running = np.concatenate([np.zeros((1, 5, 5)), np.cumsum(_products(rows), axis=0)])
    ends = starts + block
    ends[:, -1] -= starts.shape[1] * block - len(rows)
    return np.sum(running[ends] - running[starts], axis=1)


def _coefficients(sums: np.ndarray) -> np.ndarray:
    """The last coefficient of least squares, the shortest solution where there are several."""
    return (np.linalg.pinv(sums[:, :4, :4], rcond=1e-12, hermitian=True) @ sums[:, :4, 4:])[:, 3, 0]


def block_starts(length: int, block: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """[resample, block]: of blocks of neighbours, drawn with replacement from all that fit, as many as cover the
    length."""
    if not 1 <= block <= length:
        raise ValueError(f"a block of {block} does not fit in a series of {length}; use 1 to {length}")
    return rng.integers(length - block + 1, size=(resamples, -(-length // block)))
