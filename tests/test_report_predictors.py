"""What a diagnostic at a task's beginning says about its end: a rank correlation within methods and tasks."""

import itertools
import json
import shutil

import numpy as np
import pytest
from made_runs import TASKS, agree, settings, write_run
from scipy.stats import spearmanr

from sphere.report.comparison import comparisons
from sphere.report.comparison_tables import predictors_table
from sphere.report.load import load
from sphere.report.predictors import early_predictors, within_groups


def test_one_group_and_one_task_is_spearmans_correlation():
    rng = np.random.default_rng(0)
    for ties in (False, True):
        x, y = rng.normal(size=(2, 9, 1))
        if ties:
            x, y = np.round(x), np.round(2 * y)
        found = within_groups([(x, y)])
        assert found.correlation == pytest.approx(spearmanr(x[:, 0], y[:, 0]).statistic)
        assert found.pairs == 9


def test_p_is_that_of_all_permutations():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 5, 3))
    r = within_groups([(x, y)]).correlation
    every = [
        within_groups([(x, y[list(order)])], resamples=1).correlation for order in itertools.permutations(range(5))
    ]
    exact = np.mean(np.abs(every) >= abs(r) - 1e-12)
    assert within_groups([(x, y)]).p == pytest.approx(exact, abs=0.015)


def test_runs_are_permuted_whole():
    """One run that is best in everything is one coincidence, however many tasks show it."""
    x = np.tile(np.arange(4.0)[:, None], (1, 50))
    found = within_groups([(x, x)])
    assert found.correlation == pytest.approx(1)
    assert found.p == pytest.approx(2 / 24, abs=0.01)  # of 24 orders one has 1 and one -1


def test_what_sets_methods_or_tasks_apart_does_not_count():
    rng = np.random.default_rng(2)
    groups = [(rng.normal(size=(6, 4)), rng.normal(size=(6, 4))) for _ in range(2)]
    plain = within_groups(groups)
    far = np.array([0.0, 10.0, 20.0, 30.0])
    shifted = [(x + 100 * i + far, y + 100 * i + far) for i, (x, y) in enumerate(groups)]
    assert within_groups(shifted) == plain
    assert (
        np.corrcoef(np.concatenate([x.ravel() for x, _ in shifted]), np.concatenate([y.ravel() for _, y in shifted]))[
            0, 1
        ]
        > 0.9
    )


def test_under_chance_p_is_uniform():
    rng = np.random.default_rng(3)
    p = [
        within_groups([(rng.normal(size=(5, 3)), rng.normal(size=(5, 3))) for _ in range(2)], resamples=199).p
        for _ in range(300)
    ]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.035)
    assert np.mean(p) == pytest.approx(0.5, abs=0.06)


def test_methods_that_share_seeds_are_permuted_together():
    """What a seed brings to both methods is one coincidence: p stays uniform with `paired`, and not without."""
    rng = np.random.default_rng(4)

    def chance(paired):
        p = []
        for _ in range(300):
            shared = [(rng.normal(size=(5, 3)), rng.normal(size=(5, 3)))] * 2
            noisy = [(x + 0.1 * rng.normal(size=x.shape), y + 0.1 * rng.normal(size=y.shape)) for x, y in shared]
            p.append(within_groups(noisy, paired=paired, resamples=199).p)
        return np.mean(np.array(p) <= 0.05)

    assert chance(paired=True) == pytest.approx(0.05, abs=0.035)
    assert chance(paired=False) > 0.1


def test_paired_groups_have_the_same_runs():
    x = np.random.default_rng(5).normal(size=(5, 2))
    with pytest.raises(ValueError, match="same runs"):
        within_groups([(x, x), (x[:4], x[:4])], paired=True)


def test_tasks_without_variation_or_with_gaps_are_left_out():
    x = np.array([[1.0, 2.0, np.nan], [2.0, 2.0, 1.0], [3.0, 2.0, 2.0]])
    y = np.array([[0.1, 0.2, 0.3], [0.3, 0.1, 0.2], [0.2, 0.3, 0.1]])
    assert within_groups([(x, y)]) == within_groups([(x[:, :1], y[:, :1])])
    assert within_groups([(x[:, 1:], y[:, 1:])]) is None
    assert within_groups([(x[:2], y[:2])]) is None  # two runs are always in order or in reverse


def write(root, rank_of, success_of, seeds=range(5), rhos=(0.0, 0.1)):
    """Runs whose r_e(K) as met at the first evaluation of a task, and success at its end, are given by run and task."""
    for rho in rhos:
        for seed in seeds:
            path = write_run(root / f"rho{rho:g}-seed{seed}", settings(seed, rho))
            for file, change in (("metrics.jsonl", rank), ("episodes.jsonl", success)):
                lines = [json.loads(line) for line in (path / file).read_text().splitlines()]
                for line in lines:
                    change(line, TASKS.index(line["task"]), seed, rho, rank_of, success_of)
                (path / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
            agree(path)
    (comparison,) = comparisons(load([root]))
    return comparison


def rank(line, task, seed, rho, rank_of, _):
    if "evaluation/return" in line:
        first = line["step"] % 3000 == 1000
        line["online/ntk_rank"] = rank_of(seed, task, rho) if first else 7.0


def success(line, task, seed, rho, _, success_of):
    if line["kind"] == "evaluation" and line["step"] % 3000 == 0:
        line["success_at_end"] = line["episode"] < success_of(seed, task, rho)


def test_it_reads_the_first_evaluation_and_the_end_of_every_task_but_the_first(tmp_path):
    shuffled = [3, 0, 4, 1, 2]
    comparison = write(
        tmp_path,
        lambda seed, task, rho: seed + 10 * rho if task else -seed,  # the first task would say the contrary
        lambda seed, task, rho: [0, 1, 2, 3, 4][seed] if task == 1 or not rho else shuffled[seed] if task else seed,
    )
    found = {one.metric: one for one in early_predictors(comparison)}
    a, b = np.arange(5), np.array(shuffled)
    expected = np.mean([1, 1, 1, spearmanr(a, b).statistic])
    assert found["online/ntk_rank"].score.correlation == pytest.approx(expected)
    assert found["online/ntk_rank"].score.pairs == 20
    assert found["online/ntk_rank"].second is None  # the same for all runs
    assert "heldout/dormant_ratio" not in found  # the same for all runs
    assert not [name for name in found if name.startswith("evaluation/") or "/load/" in name]
    later = {one.metric: one for one in early_predictors(comparison, since=2)}["online/ntk_rank"].score
    assert later.correlation == pytest.approx(np.mean([1, spearmanr(a, b).statistic]))
    assert later.pairs == 10


def test_no_correlation_is_zero_and_no_digit_of_rounding():
    """Ranks are multiples of a sixth here; sums of their products that cancel need not be 0 to the last digit."""
    rng = np.random.default_rng(0)
    x, y = rng.permuted(np.tile(np.arange(5.0)[:, None], (2, 1000, 1, 6)), axis=2)
    none = np.sum((x - 2) * (y - 2), axis=(1, 2)) == 0
    found = [str(within_groups([pair], resamples=9).correlation) for pair in zip(x[none], y[none], strict=True)]
    assert len(found) > 10
    assert set(found) == {"0.0"}


def test_returns_are_those_of_the_last_evaluation_of_finished_tasks(tmp_path):
    write(tmp_path, lambda seed, task, rho: seed, lambda seed, task, rho: 2, rhos=[0.0])
    for seed in range(5):
        for name in ("metrics.jsonl", "episodes.jsonl"):
            path = tmp_path / f"rho0-seed{seed}" / name
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for line in lines:
                if line.get("kind") == "evaluation":
                    line["return"] = -float(seed) if line["step"] % 3000 == 0 else float(seed)
            if seed == 4:  # its third task is not finished: the other four give more pairs without it
                lines = [line for line in lines if line["step"] < 9000]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        agree(path.parent)
    (comparison,) = comparisons(load([tmp_path]))
    found = {one.metric: one for one in early_predictors(comparison)}["online/ntk_rank"]
    assert found.score is None
    assert found.second.correlation == pytest.approx(-1)
    assert found.second.pairs == 8


def test_a_run_that_lags_behind_does_not_empty_the_table(tmp_path):
    comparison = write(tmp_path / "runs", lambda seed, task, rho: seed, lambda seed, task, rho: seed)
    whole = early_predictors(comparison)
    write_run(tmp_path / "runs" / "late", settings(9, 0.0), stop_at=1000)
    (comparison,) = comparisons(load([tmp_path]))
    assert early_predictors(comparison) == whole


def test_a_run_that_one_method_lacks_does_not_make_methods_independent(tmp_path):
    """The same numbers in three methods are one coincidence, with or without one of the runs."""
    write(tmp_path, lambda seed, task, rho: seed, lambda seed, task, rho: seed, rhos=[0.0, 0.1, 0.2])
    shutil.rmtree(tmp_path / "rho0.2-seed4")
    (comparison,) = comparisons(load([tmp_path]))
    found = {one.metric: one for one in early_predictors(comparison)}["online/ntk_rank"]
    assert found.score.pairs == 3 * 4 * 2  # methods, seeds that all have, tasks
    assert found.score.p > 1 / 24 - 0.01


def keep(run, wanted):
    """Of both records, the lines of some steps."""
    for name in ("metrics.jsonl", "episodes.jsonl"):
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines if wanted(line["step"])))


def test_beginnings_at_different_steps_or_at_the_end_are_not_compared(tmp_path):
    comparison = write(tmp_path, lambda seed, task, rho: seed, lambda seed, task, rho: seed, rhos=[0.0])
    assert {one.metric: one for one in early_predictors(comparison)}["online/ntk_rank"].score.pairs == 10
    keep(tmp_path / "rho0-seed3", lambda step: step != 4000)
    (comparison,) = comparisons(load([tmp_path]))
    assert {one.metric: one for one in early_predictors(comparison)}["online/ntk_rank"].score.pairs == 5
    for seed in range(5):  # only the evaluations at the end of tasks are left
        keep(tmp_path / f"rho0-seed{seed}", lambda step: step % 3000 == 0)
    (comparison,) = comparisons(load([tmp_path]))
    assert not early_predictors(comparison)


def test_the_table_says_the_strongest_first_and_what_p_means(tmp_path):
    comparison = write(tmp_path, lambda seed, task, rho: -seed, lambda seed, task, rho: seed)
    table = predictors_table(comparison)
    assert table.rows[0][0] == "online/ntk_rank"
    assert table.rows[0][1].mean == pytest.approx(-1)
    assert "by chance" in table.note
    text = table.text()
    assert "metaworld" in text


def test_too_few_runs_or_tasks_have_no_table(tmp_path):
    comparison = write(tmp_path, lambda seed, task, rho: seed, lambda seed, task, rho: seed, seeds=range(2))
    assert not predictors_table(comparison).rows
