"""Tables in four forms, with the paper's number beside ours, and nothing in a name that can break a form."""

import csv
import io

import pytest
from made_runs import settings, write_comparison, write_run

from sphere.report.compared import against_table, average_table, continual_table, per_task_table
from sphere.report.load import load
from sphere.report.summary import averages, comparisons, continual
from sphere.report.tables import Measured, Table

NASTY = Table(
    "nasty",
    "50% & more_of <b>",
    ("name", "value"),
    [["a|b & c_d <script>", Measured(0.5, 0.25)], ["=1+1", None], ["x\ny", Measured(1.0)], ['"q", \\', "no"]],
    "100% of {it}",
)


def test_text_is_aligned():
    lines = (
        Table("t", "Title", ("task", "x"), [["long name", Measured(0.5, 0.1)], ["s", Measured(1)]]).text().splitlines()
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
    assert hammer[1] == Measured(0.75, 0.0)
    assert hammer[2] == Measured(0.98, 0.04)
    assert table.rows[-1][0] == "average"
    assert table.rows[-1][2] is None  # ours is of three of its ten tasks: its average is no match


def test_an_average_of_other_tasks_than_the_papers_has_no_number_beside_it(comparison):
    """Of a sequence; a task from scratch does not depend on the others (tests/test_report_so_far.py)."""
    assert [one.protocol for one in averages(comparison) if one.paper is not None] == ["rl", "rl"]


def test_a_table_without_any_number_of_the_paper_has_no_column_for_it(tmp_path):
    write_run(tmp_path / "a", settings(tasks=["probe/one", "probe/two"]))
    (found,) = comparisons(load([tmp_path]))
    assert per_task_table(found, "crl").columns == ("task", "Top-K MoE")


def test_ours_is_shown_with_runs_and_interval(comparison):
    table = average_table(comparison)
    assert [row[:3] for row in table.rows][1] == ["Top-K MoE", "CRL", "3"]
    assert Measured(0.75, 0.0) in table.rows[1]


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
