"""Intervals of few runs are those of the whole bootstrap distribution, checked by ordered draws written out one by one.

`ordered` knows nothing of multisets: all n^n sequences of draws, each as likely as any other.
"""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from test_report_scores import made

from sphere.report import resampling, statistics
from sphere.report.comparison import comparisons
from sphere.report.load import load
from sphere.report.scores import own_scores
from sphere.report.statistics import Interval, improvement, interval, ratio
from sphere.report.summary import against_baseline, finished_part

RESULTS = Path(__file__).parents[1] / "results"


def ordered(runs):
    return np.array(list(itertools.product(range(runs), repeat=runs)))


def percentiles(values, runs, freedom=None):
    """The expanded percentile interval of equally likely values, from its definition."""
    reach = scipy.stats.t.ppf(0.975, freedom or runs - 1) * math.sqrt(runs / (runs - 1))
    values = np.sort(values.ravel())
    return [values[math.ceil(share * len(values) - 1e-6) - 1] for share in scipy.stats.norm.cdf([-reach, reach])]


def test_multisets_have_the_probabilities_of_ordered_draws():
    for runs, many in ((1, 1), (2, 3), (3, 10), (5, 126), (6, 462)):
        assert resampling.number(runs, 1) == many
        found = resampling.every(runs)
        assert found.counts.shape == (1, many, runs)
        assert np.all(found.counts.sum(axis=2) == runs)
    drawn, times = np.unique([np.bincount(row, minlength=3) for row in ordered(3)], axis=0, return_counts=True)
    want = {tuple(row): count / 27 for row, count in zip(drawn.tolist(), times.tolist(), strict=True)}
    found = resampling.every(3)
    assert {tuple(row): p for row, p in zip(found.counts[0].tolist(), found.probability, strict=True)} == (
        pytest.approx(want)
    )
    both = resampling.every(3, groups=2)
    assert both.counts.shape == (2, 100, 3)
    assert both.probability.sum() == pytest.approx(1)


@pytest.mark.parametrize("statistic", [statistics.mean_of, statistics.iqm_of, statistics.pooled_iqm_of])
def test_an_interval_of_five_runs_is_that_of_all_3125_ordered_draws(statistic):
    table = np.random.default_rng(0).uniform(size=(5, 3))
    found = interval(made(table), statistic)
    assert [found.low, found.high] == pytest.approx(percentiles(statistic(table[ordered(5)]), 5))
    assert found == interval(made(table), statistic, seed=1)  # nothing is left to chance


def test_tasks_apart_are_enumerated_too_where_they_are_few():
    table = np.random.default_rng(1).uniform(size=(3, 2))
    first, second = table[ordered(3), 0].mean(axis=1), table[ordered(3), 1].mean(axis=1)
    found = interval(made(table), independent_tasks=True)
    assert [found.low, found.high] == pytest.approx(percentiles((first[:, None] + second) / 2, 3, freedom=4))


@pytest.mark.parametrize("runs", [(4, 4), (4, 3)])
def test_two_methods_are_compared_over_all_pairs_of_draws(runs):
    rng = np.random.default_rng(2)
    a, b = rng.uniform(size=(runs[0], 2)), rng.integers(0, 3, size=(runs[1], 2)) / 2  # ties and zeros
    first, second = ordered(runs[0]), ordered(runs[1])
    found = improvement(made(a), made(b))
    wins = ((a[:, None] > b) + 0.5 * (a[:, None] == b)).mean(axis=2)
    drawn = np.array([[wins[np.ix_(i, j)].mean() for j in second] for i in first])
    assert [found.low, found.high] == pytest.approx(percentiles(drawn, min(runs)))
    found = ratio(made(a), made(b + 0.1))
    drawn = a[first].mean(axis=(1, 2))[:, None] / (b + 0.1)[second].mean(axis=(1, 2))
    assert [found.low, found.high] == pytest.approx(percentiles(drawn, min(runs)))


def test_paired_runs_are_drawn_together():
    rng = np.random.default_rng(3)
    a, b = rng.uniform(1, 2, size=(4, 2)), rng.uniform(1, 2, size=(4, 2))
    found = ratio(made(a), made(b), paired=True)
    drawn = a[ordered(4)].mean(axis=(1, 2)) / b[ordered(4)].mean(axis=(1, 2))
    assert [found.low, found.high] == pytest.approx(percentiles(drawn, 4))


def test_more_runs_are_resampled_20000_times():
    assert resampling.RESAMPLES >= 20_000
    assert math.prod([resampling.number(5, 1)] * 2) == 126**2 <= resampling.RESAMPLES
    data = made(np.random.default_rng(4).uniform(size=(12, 2)))
    (drawn,), crossed = resampling.drawn([(12, 1)], resampling.RESAMPLES, 0)
    assert drawn.counts.shape == (1, 20_000, 12)
    assert not crossed
    few = [interval(data, seed=seed) for seed in (0, 1)]
    assert few[0] != few[1]
    assert few[0].low == pytest.approx(few[1].low, abs=0.02)


def test_a_statistic_of_large_tables_is_taken_some_resamples_at_a_time(monkeypatch):
    data = made(np.random.default_rng(5).uniform(size=(5, 4)))
    whole = interval(data, statistics.pooled_iqm_of)
    monkeypatch.setattr(resampling, "NUMBERS", 100)
    assert interval(data, statistics.pooled_iqm_of) == whole


def first_two(found: Interval):
    return round(found.low, 2), round(found.high, 2)


def test_published_intervals_are_those_of_the_whole_distribution():
    """Five against five: 3125^2 ordered draws, as products of the 3125 averages of each side."""
    (found,) = comparisons(load([RESULTS / "metaworld-crl"]))
    (one,) = against_baseline(found)
    assert first_two(one.ratio) == (1.09, 26.75)
    assert first_two(one.improvement) == (0.49, 0.78)
    ours, theirs = (own_scores(found.group(name, "crl"), found.tasks).scores for name in (one.method, one.other))
    averages = [side.by_run()[ordered(5)].mean(axis=1) for side in (ours, theirs)]
    values, times = np.unique(averages[1].round(12), return_counts=True)
    with np.errstate(divide="ignore"):  # five times the run that reached nothing
        drawn, share = averages[0][:, None] / values, times / 3125
    reach = scipy.stats.t.ppf(0.975, 4) * math.sqrt(5 / 4)
    for level, end in zip(scipy.stats.norm.cdf([-reach, reach]), (one.ratio.low, one.ratio.high), strict=True):
        at_most = np.sum((drawn <= end * (1 + 1e-9)) * share) / 3125
        below = np.sum((drawn < end * (1 - 1e-9)) * share) / 3125
        assert below < level <= at_most
    (found,) = comparisons(load([RESULTS / "metaworld-crl-first"]))
    (one,) = against_baseline(finished_part(found, "crl"))
    assert first_two(one.ratio) == (0.68, 2.11)
