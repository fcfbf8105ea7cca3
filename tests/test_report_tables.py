"""Tables in four forms, with the paper's number beside ours, and nothing in a name that can break a form."""

import csv
import io
import json

import numpy as np
import pytest
from made_runs import settings, write_comparison, write_run

from sphere.presets import CW10, H1
from sphere.report import paper
from sphere.report.comparison import Comparison, comparisons, load_map
from sphere.report.comparison_tables import (
    against_table,
    average_table,
    continual_table,
    diagnostics_table,
    per_task_table,
)
from sphere.report.figures import DASHES
from sphere.report.load import load
from sphere.report.summary import averages, continual
from sphere.report.tables import MeanStd, Table

NASTY = Table(
    "nasty",
    "50% & more_of <b>",
    ("name", "value"),
    [["a|b & c_d <script>", MeanStd(0.5, 0.25)], ["=1+1", None], ["x\ny", MeanStd(1.0)], ['"q", \\', "no"]],
    "100% of {it}",
)


def test_text_is_aligned():
    lines = (
        Table("t", "Title", ("task", "x"), [["long name", MeanStd(0.5, 0.1)], ["s", MeanStd(1)]]).text().splitlines()
    )
    assert lines[0] == "Title"
    assert lines[2:] == ["task                 x", "long name  0.50 ± 0.10", "s                 1.00"]


def test_markdown_escapes_what_would_end_a_cell():
    text = NASTY.markdown()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4
    assert all(row.replace("\\|", "").count("|") == 3 for row in rows)
    assert "<script>" not in text


def test_latex_escapes_its_specials():
    text = NASTY.latex()
    assert r"50\% \& more\_of" in text
    assert r"a|b \& c\_d" in text
    assert r"100\% of \{it\}" in text
    assert r"$0.50 \pm 0.25$" in text
    assert r"\textbackslash{}" in text
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    assert body.count(r"\\") == 4


def test_csv_has_numbers_as_numbers_and_no_formulas():
    rows = list(csv.reader(io.StringIO(NASTY.csv())))
    assert rows[0] == ["name", "value", "value std"]
    assert rows[1] == ["a|b & c_d <script>", "0.5", "0.25"]
    assert rows[2] == ["'=1+1", "", ""]
    assert rows[3] == ["x\ny", "1.0", ""]
    assert rows[4] == ['"q", \\', "no", ""]


@pytest.fixture
def comparison(tmp_path):
    write_comparison(tmp_path)
    (found,) = comparisons(load([tmp_path]))
    return found


def test_methods_stand_in_the_papers_order(comparison):
    assert comparison.methods == ("Top-K MoE", "SPHERE")
    assert [(m, p) for m, p, _ in comparison.groups] == [
        ("Top-K MoE", "rl"),
        ("Top-K MoE", "crl"),
        ("SPHERE", "rl"),
        ("SPHERE", "crl"),
    ]


def test_the_papers_number_stands_beside_ours(comparison):
    table = per_task_table(comparison, "crl")
    assert table.columns == ("task", "Top-K MoE", "paper", "SPHERE", "paper")
    hammer = table.rows[0]
    assert hammer[0] == "hammer"
    assert hammer[1] == MeanStd(0.75, 0.0)
    assert hammer[2] == MeanStd(0.98, 0.04)
    assert table.rows[-1][0] == "average"
    assert table.rows[-1][2] is None  # ours is of three of its ten tasks: its average is no match


def test_an_average_of_other_tasks_than_the_papers_has_no_number_beside_it(comparison):
    """Of a sequence; a task from scratch does not depend on the others (tests/test_report_finished_part.py)."""
    assert [one.protocol for one in averages(comparison) if one.paper is not None] == ["rl", "rl"]


def test_a_sequence_in_another_order_stands_beside_the_paper_as_far_as_it_is_the_same(tmp_path):
    """A task's number depends on the tasks before it; from scratch it does not."""
    order = ["hammer", "faucet-close", "push-wall"]
    for protocol in ("crl", "rl"):
        write_run(tmp_path / protocol, settings(protocol=protocol, tasks=[f"metaworld/{task}" for task in order]))
    (found,) = comparisons(load([tmp_path]))
    assert [row[2] is None for row in per_task_table(found, "crl").rows] == [False, True, True, True]
    assert [row[2] is None for row in per_task_table(found, "rl").rows] == [False, False, False, False]


def test_all_ten_tasks_in_another_order_have_another_average(tmp_path):
    for name, tasks in (("same", CW10), ("reversed", CW10[::-1])):
        write_run(tmp_path / name, settings(tasks=[f"metaworld/{task}" for task in tasks]))
    papers = {found.tasks[0]: averages(found)[0].paper for found in comparisons(load([tmp_path]))}
    assert papers["metaworld/hammer"].mean == 0.21
    assert papers["metaworld/peg-unplug-side"] is None


def test_the_papers_tasks_are_in_the_order_of_its_sequences():
    assert (tuple(paper.tasks("metaworld")), tuple(paper.tasks("humanoidbench"))) == (CW10, H1)


def test_the_last_evaluation_is_the_last_also_where_it_has_no_number(tmp_path):
    """A router that has collapsed has no silhouette: what it was before is not what it is at the end."""
    path = write_run(tmp_path / "a", settings())
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if "heldout/silhouette" in line:
            line["heldout/silhouette"] = 0.3 if line["step"] < 5000 else "nan"
            line["heldout/ntk_rank"] = line["step"] / 1000
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_run(tmp_path / "begun", settings(seed=1), stop_at=2000)
    (found,) = comparisons(load([tmp_path]))
    shown = {row[0]: row[1] for row in diagnostics_table(found, "crl").rows}
    assert shown["silhouette"] is None
    assert shown["ntk_rank"].text() == "9.00"  # of the one that has come so far


def test_lines_of_many_methods_differ_in_colour_or_dash(tmp_path):
    (run,) = load([write_run(tmp_path / "a", settings())]).runs
    methods = ("PPO", "PPO(10x)", "Top-K MoE", *(f"method {i}" for i in range(16)), "SPHERE")
    found = Comparison("metaworld", run.tasks, 3000, run.score, (run,), methods)
    styles = [(found.colour(method), found.dash(method)) for method in methods]
    assert len(set(styles)) == len(methods)
    assert [found.colour(name) for name in ("Top-K MoE", "SPHERE")] == [0, 1]
    assert max(dash for _, dash in styles) < len(DASHES)


def test_a_map_of_loads_has_all_runs_as_far_as_they_are(tmp_path):
    """Three evaluations of two runs; the run that has just begun counts in the first, and decides nothing."""
    for name, stop_at in (("begun", 1000), ("going", 3000)):
        write_run(tmp_path / name, settings(seed=stop_at), stop_at=stop_at)
    runs = load([tmp_path]).runs
    loads = {1000: 0.4, 3000: 0.8}
    for run in runs:
        for expert in range(4):
            run.curve.values[f"heldout/load/{expert}"][:] = loads[run.steps] if expert == 2 else 0.1
    for order in (runs, runs[::-1]):
        found = load_map(order)
        assert found.runs == 2
        assert found.step.tolist() == [1000, 2000, 3000]
        np.testing.assert_allclose(found.share[0], [0.6, 0.8, 0.8])  # experts by load
        np.testing.assert_allclose(found.share[1:], 0.1)
    assert load_map(runs[:1]).share[2].tolist() == [loads[runs[0].steps]] * len(runs[0].curve.step)


def test_a_table_without_any_number_of_the_paper_has_no_column_for_it(tmp_path):
    write_run(tmp_path / "a", settings(tasks=["probe/one", "probe/two"]))
    (found,) = comparisons(load([tmp_path]))
    assert per_task_table(found, "crl").columns == ("task", "Top-K MoE")


def test_ours_is_shown_with_runs_and_interval(comparison):
    table = average_table(comparison)
    assert [row[:3] for row in table.rows][1] == ["Top-K MoE", "CRL", "3"]
    assert MeanStd(0.75, 0.0) in table.rows[1]


def test_against_the_baseline(comparison):
    table = against_table(comparison)
    assert [row[0] for row in table.rows] == ["SPHERE", "SPHERE"]
    assert "1.00 [1.00, 1.00]" in table.rows[0]
    assert "0.50 [0.50, 0.50]" in table.rows[0]


def test_continual_worlds_numbers(comparison):
    """Own success 0.75 everywhere; final 0.25, 0.25, 0.75; AUC 0.5 under both protocols."""
    top, ours = continual(comparison)
    assert (top.method, ours.method) == ("Top-K MoE", "SPHERE")
    assert ours.performance == pytest.approx(1.25 / 3)
    assert ours.forgetting == pytest.approx(1 / 3)
    assert ours.transfer == 0
    assert continual_table(comparison).rows[1][0] == "SPHERE"


def test_runs_that_are_still_going_make_no_average_but_their_tasks(tmp_path):
    write_run(tmp_path / "a", settings(seed=0), stop_at=5000)
    (found,) = comparisons(load([tmp_path]))
    assert averages(found) == []
    table = per_task_table(found, "crl")
    assert table.rows[0][1].text() == "0.75"  # one run has no deviation
    assert table.rows[1][1] is None
    assert average_table(found).rows == []
