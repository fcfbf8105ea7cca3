"""Runs that have not finished all tasks are compared on what all of them have finished, and nothing is called an
average of more than it is of."""

import math

import pytest
from made_runs import settings, write_run

from sphere.report.comparison import comparisons
from sphere.report.comparison_tables import finished_part_table, per_task_table, tables
from sphere.report.load import load
from sphere.report.page import render
from sphere.report.paper import SUCCESS
from sphere.report.summary import against_baseline, averages
from sphere.report.tables import MeanStd

CW10 = [f"metaworld/{task}" for task in SUCCESS["metaworld", "crl"]["SPHERE"] if task != "average"]


def write(root, tasks, **stops):
    """Runs of both methods, stopped after so many steps."""
    for name, steps in stops.items():
        method, seed = name.split("_")
        config = settings(int(seed), {"topk": 0.0, "sphere": 0.1}[method], tasks=tasks)
        write_run(root / name, config, stop_at=steps)
    (found,) = comparisons(load([root]))
    return found


def test_what_all_have_finished_is_compared_with_the_papers_same_tasks(tmp_path):
    """Success is 0.75 after every task, so averages are 0.75 and ratios 1; of the paper's tasks these are the
    first two."""
    found = write(tmp_path, CW10, topk_0=6000, topk_1=7000, sphere_0=12000, sphere_1=8000)
    table = finished_part_table(found, "crl")
    assert table.columns == (
        *("method", "runs", "success", "mean, 95% interval", "paper"),
        *("ratio of averages", "probability of improvement", "paper's ratio"),
    )
    top, ours = table.rows
    assert top[:4] == ["Top-K MoE", "2", MeanStd(0.75, 0.0), "0.75 [0.75, 0.75]"]
    assert top[4].mean == pytest.approx((0.98 + 0.0) / 2)
    assert top[5:] == [None, None, None]
    assert ours[4].mean == pytest.approx((0.98 + 0.70) / 2)
    assert ours[5:7] == ["1.00 [1.00, 1.00]", "0.50 [0.50, 0.50]"]
    assert ours[7].mean == pytest.approx((0.98 + 0.70) / (0.98 + 0.0))
    assert "2 of 10 tasks" in table.title
    assert "metaworld-crl-finished-part" in [one.name for one in tables(found)]


def test_the_row_of_averages_says_of_how_many(tmp_path):
    found = write(tmp_path, CW10, topk_0=6000, sphere_0=9000)
    last = per_task_table(found, "crl").rows[-1]
    assert last[0] == "average of the first 2"
    assert last[1].mean == last[3].mean == 0.75
    assert [round(last[i].mean, 2) for i in (2, 4)] == [0.49, 0.84]


def test_other_tasks_than_the_papers_have_no_number_beside_them(tmp_path):
    found = write(tmp_path, CW10[:3], topk_0=6000, sphere_0=6000)
    table = finished_part_table(found, "crl")
    assert table.columns == (
        "method",
        "runs",
        "success",
        "mean, 95% interval",
        "ratio of averages",
        "probability of improvement",
    )
    assert per_task_table(found, "crl").rows[-1][2] is None


def test_tasks_from_scratch_stand_beside_the_paper_on_the_same_ones(tmp_path):
    """Trained alone a task depends on no other: the paper's mean over some of its tasks is what ours is measured by."""
    for task in ("metaworld/push", "metaworld/hammer"):
        for rho in (0.0, 0.1):
            write_run(tmp_path / f"{task}-{rho}", settings(0, rho, "rl", tasks=[task]))
    (found,) = comparisons(load([tmp_path]))
    top, ours = averages(found)
    assert top.paper.mean == pytest.approx((0.98 + 0.82) / 2)
    assert math.isnan(top.paper.std)
    assert ours.paper.mean == pytest.approx((0.96 + 1.00) / 2)
    (one,) = against_baseline(found)
    assert one.paper_ratio == pytest.approx(1.96 / 1.80)
    assert per_task_table(found, "rl").rows[-1][2].mean == pytest.approx(0.90)


def test_a_task_that_the_paper_does_not_have_leaves_it_out(tmp_path):
    write_run(tmp_path / "run", settings(0, 0.0, "rl", tasks=["metaworld/hammer", "metaworld/basketball"]))
    (found,) = comparisons(load([tmp_path]))
    assert averages(found)[0].paper is None


@pytest.mark.parametrize("steps", [9000, 5000, 3000], ids=["one has finished all", "one task in common", "the same"])
def test_it_is_there_only_while_it_is_needed(tmp_path, steps):
    """A run that has finished all makes the true average; one task is no average."""
    found = write(tmp_path, CW10[:3], topk_0=9000 if steps == 9000 else 6000, sphere_0=steps)
    assert finished_part_table(found, "crl").rows == []
    assert per_task_table(found, "crl").rows[-1][0] == "average"


def test_the_page_says_it_in_its_first_sentences(tmp_path):
    found = write(tmp_path, CW10, topk_0=6000, topk_1=7000, sphere_0=12000, sphere_1=8000)
    text = render(load([tmp_path]))
    assert found.tasks == tuple(CW10)
    assert "No run has finished all tasks yet. Over the first 2, under CRL, SPHERE reaches 1.00 times" in text
    assert "metaworld, CRL, over the first 2 of 10 tasks" in text
