"""Statistics from their definitions: values computed by hand, scipy, and the coverage of the bootstrap on
synthetic data."""

import numpy as np
import pytest
import scipy.stats

from sphere.report import statistics
from sphere.report.scores import Scores
from sphere.report.statistics import improvement, interval, ratio


def made(table, tasks=None, episodes=1) -> Scores:
    """Scores with given means: rows are runs, seeds count from 0, and every episode of a cell has its value."""
    table = np.asarray(table, float)
    tasks = tasks or [f"t{index}" for index in range(table.shape[1])]
    return Scores.of(
        {
            (f"run{row}", row): {task: [value] * episodes for task, value in zip(tasks, values, strict=True)}
            for row, values in enumerate(table)
        }
    )


def test_episodes_are_averaged_inside_a_run_and_never_counted_as_runs():
    few = Scores.of({("a", 0): {"t": [1, 0]}, ("b", 1): {"t": [1] * 1000}})
    assert few.runs == ("a", "b")
    np.testing.assert_allclose(few.by_run(), [0.5, 1.0])
    mean, std = statistics.mean_std(few)
    assert (mean, std) == (0.75, 0.25)  # not 1001/1002


def test_mean_and_deviation_are_over_runs_of_averages_over_tasks():
    table = [[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]
    mean, std = statistics.mean_std(made(table))
    averages = [0.5, 0.0, 0.75]
    assert mean == pytest.approx(np.mean(averages))
    assert std == pytest.approx(
        np.std(averages)
    )  # population: one seed of five at 1 is 0.20 +- 0.40, as the paper prints it
    assert statistics.mean_std(made([[1], [0], [0], [0], [0]])) == (pytest.approx(0.2), pytest.approx(0.4))


def test_the_papers_deviation_of_an_average_is_the_mean_of_the_tasks_deviations():
    table = [[1.0, 0.0], [0.0, 1.0]]
    assert statistics.mean_std(made(table))[1] == 0
    assert statistics.mean_of_task_deviations(made(table)) == 0.5


def test_iqm_and_iqr_equal_scipy():
    rng = np.random.default_rng(0)
    for runs in (2, 3, 5, 8, 10, 11):
        table = rng.uniform(size=(runs, 4))
        by_run = table.mean(axis=1)
        assert statistics.iqm(made(table)) == pytest.approx(scipy.stats.trim_mean(by_run, 0.25))
        assert statistics.iqr(made(table)) == pytest.approx(scipy.stats.iqr(by_run))
        pooled = scipy.stats.trim_mean(table.reshape(-1), 0.25)
        assert statistics.iqm(made(table), over="runs and tasks") == pytest.approx(pooled)
    assert statistics.iqm(made([[0], [1], [2], [9]])) == 1.5


def test_probability_of_improvement_is_mann_whitney_averaged_over_tasks():
    rng = np.random.default_rng(1)
    ours, theirs = rng.integers(0, 4, size=(5, 3)) / 3, rng.integers(0, 4, size=(7, 3)) / 3  # with ties
    want = np.mean([scipy.stats.mannwhitneyu(ours[:, t], theirs[:, t]).statistic / 35 for t in range(3)])
    assert statistics.probability_of_improvement(made(ours), made(theirs)) == pytest.approx(want)
    assert statistics.probability_of_improvement(made([[1], [1]]), made([[0], [0]])) == 1
    assert statistics.probability_of_improvement(made([[1], [1]]), made([[1]])) == 0.5


def test_continual_world_by_hand():
    own = made([[1.0, 0.8], [0.6, 1.0]])
    final = made([[0.2, 0.8], [0.0, 1.0]])
    assert statistics.average_performance(final) == pytest.approx((0.2 + 0.8 + 0.0 + 1.0) / 4)
    by_task = statistics.forgetting(own, final)
    assert by_task == {"t0": pytest.approx((0.8 + 0.6) / 2), "t1": pytest.approx(0.0)}
    segment, reference = made([[0.5, 0.9], [0.7, 0.9]]), made([[0.2, 1.0], [0.4, 1.0]])
    transfer = statistics.forward_transfer(segment, reference)
    assert transfer == {"t0": pytest.approx((0.6 - 0.3) / (1 - 0.3))}  # t1 cannot be improved on: left out


def test_labels_decide_not_positions():
    """The same numbers in another order are the same scores."""
    one = Scores.of({("a", 0): {"x": [1], "y": [0]}, ("b", 1): {"x": [0], "y": [0]}})
    other = Scores.of({("b", 1): {"y": [0], "x": [0]}, ("a", 0): {"y": [0], "x": [1]}})
    final = Scores.of({("b", 1): {"y": [0], "x": [0]}, ("a", 0): {"y": [0], "x": [0]}})
    assert statistics.forgetting(one, final) == {"x": 0.5, "y": 0.0}
    assert statistics.mean_std(one) == statistics.mean_std(other)
    assert ratio(one, other, paired=True).value == 1


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({}, "no runs"),
        ({("a", 0): {}}, "no tasks"),
        ({("a", 0): {"t": [1]}, ("b", 1): {"u": [1]}}, "b has no t"),
        ({("a", 0): {"t": []}}, "a has no episodes of t"),
        ({("a", 0): {"t": [np.nan]}}, "a, t"),
        ({("a", 0): {"t": np.ones((2, 2))}}, "one row"),
        ({("a", 0): {"t": [1]}, ("a", 1): {"t": [1]}}, "twice"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(records, words):
    with pytest.raises(ValueError, match=words):
        Scores.of(records)


def test_an_array_is_not_scores():
    with pytest.raises((TypeError, AttributeError)):
        statistics.mean_std(np.ones((3, 4)))  # type: ignore[arg-type]


def test_methods_on_different_tasks_are_not_compared():
    with pytest.raises(ValueError, match="t1"):
        statistics.probability_of_improvement(made([[1]]), made([[1, 1]]))
    with pytest.raises(ValueError, match="seed"):
        ratio(made([[1.0], [1.0]]), made([[1.0]]), paired=True)
    with pytest.raises(ValueError, match="run"):
        statistics.forgetting(made([[1.0], [1.0]]), made([[1.0]]))


# The bootstrap


def test_the_bootstrap_is_seeded():
    data = made(np.random.default_rng(2).uniform(size=(12, 3)))
    assert interval(data, seed=1) == interval(data, seed=1)
    assert interval(data, seed=1) != interval(data, seed=2)


def test_one_run_has_no_interval():
    found = interval(made([[0.3, 0.5]]))
    assert found.value == pytest.approx(0.4)
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_runs_are_resampled_whole_unless_tasks_are_independent():
    """Two tasks that cancel in every run: the average is certain if runs stay whole."""
    data = made([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0], [0, 1]])
    whole, apart = interval(data), interval(data, independent_tasks=True)
    assert (whole.low, whole.high) == (0.5, 0.5)
    assert apart.low < 0.4 < 0.6 < apart.high


@pytest.mark.parametrize(
    ("runs", "independent", "least"), [(5, False, 0.90), (10, False, 0.92), (10, True, 0.92), (30, False, 0.93)]
)
def test_95_percent_intervals_hold_the_truth_about_95_times_in_100(runs, independent, least):
    rng = np.random.default_rng(3)
    tasks, truth, trials = np.array([0.2, 0.5, 0.8]), 0.5, 600
    hits = 0
    for trial in range(trials):
        table = tasks + rng.normal(0, 0.1, size=(runs, 3))
        if not independent:
            table = table + rng.normal(0, 0.1, size=(runs, 1))  # what is common to the tasks of a run
        found = interval(made(table), independent_tasks=independent, resamples=1000, seed=trial)
        hits += found.low <= truth <= found.high
    assert least <= hits / trials <= 0.985, hits / trials


def test_intervals_of_a_ratio_hold_it():
    rng = np.random.default_rng(4)
    hits = 0
    for trial in range(300):
        ours, theirs = made(rng.normal(0.6, 0.1, (8, 2))), made(rng.normal(0.3, 0.05, (8, 2)))
        found = ratio(ours, theirs, resamples=1000, seed=trial)
        hits += found.low <= 2.0 <= found.high
    assert 0.92 <= hits / 300 <= 0.99, hits / 300


@pytest.mark.parametrize("independent", [False, True])
def test_intervals_of_the_probability_of_improvement_hold_it(independent):
    """Normal scores one deviation apart: P(X > Y) = Phi(1 / sqrt 2)."""
    rng = np.random.default_rng(6)
    truth, hits = scipy.stats.norm.cdf(1 / np.sqrt(2)), 0
    for trial in range(300):
        ours, theirs = made(rng.normal(1, 1, (12, 3))), made(rng.normal(0, 1, (12, 3)))
        found = improvement(ours, theirs, independent_tasks=independent, resamples=1000, seed=trial)
        assert found.value == pytest.approx(statistics.probability_of_improvement(ours, theirs))
        hits += found.low <= truth <= found.high
    assert 0.91 <= hits / 300 <= 0.99, hits / 300


def test_hundreds_of_runs_are_compared_in_little_memory():
    many = made(np.random.default_rng(7).uniform(size=(400, 10)))
    found = improvement(many, many, independent_tasks=True, resamples=2000)
    assert found.value == 0.5
    assert 0.48 < found.low < 0.5 < found.high < 0.52


def test_a_paired_ratio_uses_that_seeds_go_together():
    rng = np.random.default_rng(5)
    luck = rng.uniform(0.2, 1.0, size=(8, 1))
    ours, theirs = made(luck), made(luck / 2)
    paired, free = ratio(ours, theirs, paired=True), ratio(ours, theirs)
    assert (paired.low, paired.high) == (pytest.approx(2), pytest.approx(2))
    assert free.high - free.low > 0.5


def test_a_ratio_over_nothing_is_not_a_number_to_boast_of():
    none = ratio(made([[0.5], [0.6], [0.4]]), made([[0.0], [0.0], [0.0]]))
    assert none.value == np.inf
    assert none.high == np.inf
    both = ratio(made([[0.0], [0.0]]), made([[0.0], [0.0]]))
    assert np.isnan(both.value)
    assert (both.low, both.high) == (0, np.inf)
    rare = ratio(made([[0.5], [0.6], [0.4]]), made([[0.0], [0.0], [0.3]]))
    assert rare.high == np.inf
    assert np.isfinite(rare.low)
