"""Which diagnostics, taken when a task has just begun, go with how well it is learned in the end?

Methods differ in their diagnostics and in their success, and so do tasks: over all runs nearly everything correlates. So
ranks are compared within each method and task, among runs that differ by their seed only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from sphere.report.run import Run
from sphere.report.select import own_episodes
from sphere.report.summary import Comparison, metrics

LEAST = 3
"""Runs of a method: two are always in order or in reverse."""
RESAMPLES = 9999


@dataclass(frozen=True)
class Association:
    correlation: float
    """Spearman's, within groups and tasks."""
    p: float
    """Share of permutations of runs within their groups that give a correlation as far from zero."""
    pairs: int


@dataclass(frozen=True)
class Foretold:
    """A diagnostic at a task's first evaluation, with what was reached at its end; None where that does not vary."""

    metric: str
    success: Association | None
    returns: Association | None


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


def foretold(comparison: Comparison, since: int = 1) -> list[Foretold]:
    """Of every diagnostic under CRL, from the second task on (or a later one, counted from 0), the lowest p first."""
    groups = [_abreast(runs) for _, protocol, runs in comparison.groups if protocol == "crl"]
    groups, paired = _paired([runs for runs in groups if len(runs) >= LEAST])
    numbers = range(since, len(comparison.tasks))

    def tables(value: Callable[[Run, int], float]) -> list[np.ndarray]:
        return [np.array([[value(run, n) for n in numbers] for run in runs]) for runs in groups]

    begun = tables(_first_step)
    ends = [tables(lambda run, n: _success(run, comparison, n)), tables(_return)]
    found = []
    for name in metrics([run for runs in groups for run in runs]):
        if name.startswith("evaluation/"):
            continue
        values = tables(lambda run, n, name=name: _at(run, name, n, 0))  # type: ignore[misc]
        known = [np.where(step == step[:1], value, np.nan) for step, value in zip(begun, values, strict=True)]
        both = [within_groups(list(zip(known, end, strict=True)), paired=paired) for end in ends]
        if any(both):
            found.append(Foretold(name, *both))
    return sorted(found, key=lambda one: (min(end.p for end in (one.success, one.returns) if end), one.metric))


def _paired(groups: list[list[Run]]) -> tuple[list[list[Run]], bool]:
    """Methods that share seeds, by the seeds that all have, in one order; others as they are, since nothing ties them."""
    seeds = [{run.seed for run in runs} for runs in groups]
    if sum(map(len, seeds)) == len(set().union(*seeds)):
        return groups, False
    common = set.intersection(*seeds)
    return [sorted((run for run in runs if run.seed in common), key=lambda run: run.seed) for runs in groups], True


def _abreast(runs: Sequence[Run]) -> list[Run]:
    """Those that have finished as many tasks as gives the most pairs: one that lags behind does not hold up all others."""
    done = [sum(run.steps >= run.task_steps * (n + 1) for n in range(len(run.tasks))) for run in runs]
    pairs = {least: (least - 1) * sum(count >= least for count in done) for least in set(done)}
    least = max(pairs, key=lambda one: pairs[one])
    return [run for run, count in zip(runs, done, strict=True) if count >= least]


def _success(run: Run, comparison: Comparison, number: int) -> float:
    episodes = own_episodes(run, comparison.tasks[number], comparison.success)
    return float(episodes.mean()) if episodes.size else float("nan")


def _return(run: Run, number: int) -> float:
    return _at(run, "evaluation/return", number, -1) if run.steps >= run.task_steps * (number + 1) else float("nan")


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
