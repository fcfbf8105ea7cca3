"""Lagged correlation, one-step prediction and moving-block bootstrap, against values by hand, numpy and scipy."""

import numpy as np
import pytest
from scipy import stats

from sphere.report.predictors import Series, best_lag, block_starts, lagged_correlations, predict_one_step


def series(name, values, step=None):
    return Series(name, np.arange(len(values)) if step is None else np.asarray(step), np.asarray(values, float))


def moving_blocks(length, block, resamples, rng):
    """Indices [resample, length]."""
    starts = block_starts(length, block, resamples, rng)
    return (starts[:, :, None] + np.arange(block)).reshape(resamples, -1)[:, :length]


def test_a_shifted_copy_is_found_at_its_shift():
    leader = np.random.default_rng(0).normal(size=60)
    outcome = np.roll(leader, 3)
    found = lagged_correlations(series("success", outcome[3:]), series("rank", leader[3:]), range(-5, 6))
    assert found[3] == pytest.approx(1)  # the outcome at t is the leader three before
    assert best_lag(found) == 3
    assert all(abs(value) < 0.5 for lag, value in found.items() if lag != 3)


def test_lags_by_hand():
    """Pairs at lag 1: (2, 1), (4, 2), (3, 4), with deviations (-1, -4/3), (1, -1/3), (0, 5/3): 1 / sqrt(2 * 14/3)."""
    outcome, leader = series("success", [1, 2, 4, 3]), series("rank", [1, 2, 4, 3])
    found = lagged_correlations(outcome, leader, [0, 1, -1, 2])
    assert found[0] == pytest.approx(1)
    assert found[1] == pytest.approx(1 / np.sqrt(28 / 3))
    assert found[-1] == pytest.approx(found[1])  # equal series: earlier and later change places
    assert np.isnan(found[2])  # two pairs say nothing


def test_lags_agree_with_scipy():
    rng = np.random.default_rng(1)
    outcome, leader = rng.normal(size=(2, 40))
    found = lagged_correlations(series("success", outcome), series("rank", leader), [4, -7])
    assert found[4] == pytest.approx(stats.pearsonr(outcome[4:], leader[:-4]).statistic)
    assert found[-7] == pytest.approx(stats.pearsonr(outcome[:-7], leader[7:]).statistic)


def test_nothing_is_said_of_what_does_not_vary():
    flat, rank = series("success", np.zeros(30)), series("rank", np.arange(30.0))
    assert np.isnan(lagged_correlations(flat, rank, [1])[1])
    assert best_lag(lagged_correlations(flat, rank, [1, 2])) is None
    assert predict_one_step(flat, rank) is None
    assert predict_one_step(series("success", [0, 1, 0, 1]), series("rank", [1, 2, 3, 4])) is None  # too short


@pytest.mark.parametrize("length", [10, 25, 60, 100])
def test_nothing_is_said_of_fewer_than_four_blocks(length):
    """With one block all resamples are the series itself, and noise would be certain of its sign."""
    noise = np.random.default_rng(length).normal(size=(2, length))
    assert predict_one_step(series("success", noise[0]), series("rank", noise[1]), block=25) is None


def test_four_blocks_of_noise_have_an_interval():
    noise = np.random.default_rng(0).normal(size=(2, 101))
    found = predict_one_step(series("success", noise[0]), series("rank", noise[1]), block=25)
    assert found.high - found.low > 0.1


def test_lags_that_leave_less_than_half_of_the_pairs_are_not_judged():
    leader, outcome = np.random.default_rng(1).normal(size=(2, 24))
    found = lagged_correlations(series("success", outcome), series("rank", leader), range(-20, 21))
    assert {lag for lag, value in found.items() if np.isfinite(value)} == set(range(-12, 13))


def test_the_coefficient_is_that_of_least_squares():
    """By the partial-regression identity: residuals of both sides on the other columns give the same slope."""
    rng = np.random.default_rng(2)
    outcome, leader = rng.normal(size=50).cumsum(), rng.normal(size=50).cumsum()
    found = predict_one_step(series("success", outcome), series("rank", leader), block=10, resamples=10)
    y, x = outcome[1:], leader[:-1]
    others = np.column_stack([np.ones(49), outcome[:-1], np.arange(49)])
    rest = [side - others @ np.linalg.lstsq(others, side, rcond=None)[0] for side in (y, x)]
    slope = stats.linregress(rest[1], rest[0]).slope
    assert found.coefficient == pytest.approx(slope * x.std() / y.std())
    assert found.evaluations == 49


@pytest.mark.parametrize("length", [50, 53])
def test_resamples_are_regressions_on_blocks_of_neighbours(length):
    """One by one, from the rows themselves: the deviation of their coefficients, and how many are not above zero."""
    outcome, leader = np.random.default_rng(6).normal(size=(2, length + 1))
    found = predict_one_step(series("success", outcome), series("rank", leader), block=10, resamples=200)
    rows = np.column_stack([outcome[1:], outcome[:-1], np.arange(float(length)), leader[:-1]])
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    drawn = []
    for chosen in moving_blocks(length, 10, 200, np.random.default_rng(0)):
        design = np.column_stack([np.ones(length), rows[chosen, 1:]])
        drawn.append(np.linalg.lstsq(design, rows[chosen, 0], rcond=None)[0][-1])
    blocks = length / 10
    reach = stats.t.ppf(0.975, 1.5 * blocks) * np.sqrt(blocks / (blocks - 1)) * np.std(drawn, ddof=1)
    assert (found.low, found.high) == pytest.approx((found.coefficient - reach, found.coefficient + reach))
    assert found.not_positive == np.mean(np.array(drawn) <= 0)


def test_95_percent_intervals_of_the_shortest_series_hold_the_truth_about_95_times_in_100():
    """Four blocks of noise, where the leader says nothing. By plain percentiles it was 82 of 100."""
    rng = np.random.default_rng(7)
    trials, hits = 300, 0
    for _ in range(trials):
        outcome, leader = rng.normal(size=(2, 101))
        found = predict_one_step(series("success", outcome), series("rank", leader), resamples=300)
        hits += found.low <= 0 <= found.high
    assert 0.92 <= hits / trials <= 0.985, hits / trials


def driven(strength, rng, length=400):
    """Success that follows its past and the rank one before."""
    rank, success = np.zeros(length), np.zeros(length)
    for t in range(1, length):
        rank[t] = 0.9 * rank[t - 1] + rng.normal()
        success[t] = 0.5 * success[t - 1] + strength * rank[t - 1] + rng.normal()
    return series("success", success), series("rank", rank)


def test_a_leader_is_told_from_none():
    found = predict_one_step(*driven(0.5, np.random.default_rng(3)), resamples=300)
    assert found.coefficient > 0.2
    assert found.not_positive == 0
    assert found.low < found.coefficient < found.high
    shares = [
        predict_one_step(*driven(0.0, np.random.default_rng(seed)), resamples=100).not_positive for seed in range(20)
    ]
    assert 0.2 < np.mean(shares) < 0.8  # without an effect both signs occur
    assert min(shares) < 0.3
    assert max(shares) > 0.7


def test_the_bootstrap_is_seeded():
    pair = driven(0.1, np.random.default_rng(4), 120)
    assert predict_one_step(*pair, resamples=50) == predict_one_step(*pair, resamples=50)
    assert predict_one_step(*pair, resamples=50) != predict_one_step(*pair, resamples=50, seed=1)


def test_blocks_are_of_neighbours_and_all_starts_occur():
    drawn = moving_blocks(10, 4, 2000, np.random.default_rng(0))
    assert drawn.shape == (2000, 10)
    assert drawn.min() == 0
    assert drawn.max() == 9
    assert np.all(np.diff(drawn[:, :4], axis=1) == 1)
    assert np.all(np.diff(drawn[:, 4:8], axis=1) == 1)
    starts = np.bincount(drawn[:, 0], minlength=10)
    assert np.all(starts[:7] > 200)  # 2000 / 7 each
    assert np.all(starts[7:] == 0)  # a block does not run over the end
    whole = moving_blocks(6, 6, 3, np.random.default_rng(0))
    np.testing.assert_array_equal(whole, np.tile(np.arange(6), (3, 1)))


def test_the_spread_of_block_means_is_that_of_dependent_data():
    """Of an AR(1) series the mean varies more than independent data would; blocks see it, single draws do not."""
    rng = np.random.default_rng(5)
    values = np.zeros(2000)
    for t in range(1, 2000):
        values[t] = 0.8 * values[t - 1] + rng.normal()
    spread = {
        block: values[moving_blocks(2000, block, 500, np.random.default_rng(0))].mean(axis=1).std() for block in (1, 50)
    }
    truth = 1 / (1 - 0.8) / np.sqrt(2000)  # long-run deviation of the mean
    assert spread[50] == pytest.approx(truth, rel=0.25)
    assert spread[1] < 0.5 * truth


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: series("rank", [1, np.nan], [5, 10]), "rank is not finite at step 10"),
        (lambda: series("rank", [1, 2, 3], [5, 10]), "wanted one value per step"),
        (
            lambda: lagged_correlations(series("success", [1, 2]), series("rank", [1, 2, 3]), [0]),
            "not of the same steps",
        ),
        (lambda: moving_blocks(5, 6, 1, np.random.default_rng(0)), "use 1 to 5"),
    ],
)
def test_mistakes_are_named(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
