"""A report is about the score that a record names, or about a column that the user names; none is known to it."""

import json
import re

import pytest
from browsers import browsing, drawn, needs_browser
from made_runs import agree, settings, write_comparison, write_run

from sphere.cli.main import main
from sphere.report.comparison import comparisons
from sphere.report.comparison_tables import (
    against_table,
    average_table,
    continual_table,
    per_task_table,
    predictors_table,
    tables,
)
from sphere.report.figures import curves, score_bars
from sphere.report.load import load
from sphere.report.page import render
from sphere.report.summary import against_baseline, averages


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return is 3 at the end of every task; success_at_end is 3/4 and success_once 1."""
    return write_comparison(tmp_path_factory.mktemp("runs"))


def compared(runs, score):
    (found,) = comparisons(load([runs], score))
    return found


@pytest.mark.parametrize(
    ("score", "word", "mean"), [(None, "success", 0.75), ("success_once", "success", 1.0), ("return", "return", 3.0)]
)
def test_every_table_is_about_the_score(runs, score, word, mean):
    found = compared(runs, score)
    assert {one.mean.value for one in averages(found)} == {mean}
    assert average_table(found).columns[3] == word
    assert average_table(found).title == f"Average {word}, metaworld"
    assert per_task_table(found, "crl").title == f"{word.capitalize()} by task, metaworld, CRL"
    assert f"of the {word} right after" in per_task_table(found, "crl").note


def test_the_papers_success_stands_beside_no_return(runs):
    assert "paper" in per_task_table(compared(runs, None), "crl").columns
    assert "paper" in per_task_table(compared(runs, "success_once"), "crl").columns
    returns = compared(runs, "return")
    assert not [table.name for table in tables(returns) if "paper" in table.columns]
    assert {one.paper for one in averages(returns)} == {None}


def test_forward_transfer_needs_a_score_of_at_most_one(runs):
    success, returns = (continual_table(compared(runs, name)) for name in (None, "return"))
    assert [row[4].text() for row in success.rows] == ["0.00", "0.00"]
    assert [row[4].text() for row in returns.rows] == ["–", "–"]
    assert "return has no such bound" in returns.note
    assert [row[3].mean for row in returns.rows] == pytest.approx([4 / 3, 4 / 3])  # own 3, final 1, 1, 3


def test_a_ratio_of_what_is_not_positive_says_nothing(tmp_path):
    for seed in (0, 1):
        for rho in (0.0, 0.1):
            said = {"columns": ["loss"], "score": "loss"}
            write_run(tmp_path / f"{rho}-{seed}", settings(seed, rho, says=said))
    (found,) = comparisons(load([tmp_path]))
    (one,) = against_baseline(found)
    assert one.ratio.value != one.ratio.value
    assert one.improvement.value == 0.5
    assert "no ratio where a run's average loss is not positive" in against_table(found).note
    text = render(load([tmp_path]))
    assert "Under CRL, a run of SPHERE is the better one with probability 0.50" in text
    assert "times the loss" not in text


def test_nothing_on_the_page_speaks_of_success_where_there_is_none(tmp_path):
    for rho in (0.0, 0.1):
        config = settings(rho=rho, tasks=["text/a", "text/b"], says={"columns": ["accuracy"], "score": "accuracy"})
        write_run(tmp_path / f"{rho}", config)
    text = re.sub(r"<(script|style)>.*?</\1>", "", render(load([tmp_path])), flags=re.DOTALL)
    assert "Average accuracy" in text
    assert "success" not in text.lower()
    assert "return" not in text.lower()


def test_early_predictors_are_of_the_score_and_of_the_return_where_there_is_one(runs):
    assert predictors_table(compared(runs, None)).columns[1::3] == ("success", "return")
    assert predictors_table(compared(runs, "return")).columns[1::3] == ("return",)


def test_axes_go_as_far_as_the_score_does(runs):
    limits = {}
    for score in (None, "return"):
        found = compared(runs, score)
        limits[score] = score_bars(found).axes[0].get_ylim()
        figure = curves(found, "crl", found.score_curves)
        assert len(figure.axes) == (2 if score is None else 1)
    assert limits[None] == (0, 1.05)
    assert limits["return"][1] > 3


def test_the_command_line_takes_a_column_and_refuses_others(runs, tmp_path, capsys):
    words = ["report", str(runs), "-o", str(tmp_path / "out"), "--no-figures"]
    assert main([*words, "--score", "return"]) == 0
    assert "return" in (tmp_path / "out" / "tables" / "metaworld-averages.csv").read_text().splitlines()[0]
    assert main([*words, "--score", "beauty"]) == 1
    told = capsys.readouterr().err
    assert "no run has a score 'beauty'; there are return, length, success_once, success_at_end" in told


@needs_browser
@pytest.mark.parametrize("score", ["return", "loss"])
def test_bars_of_a_score_without_bounds_are_inside_their_drawing(tmp_path, score):
    """Positive ones beyond 1, and negative ones, which reach from 0 to the left."""
    for rho in (0.0, 0.1):
        path = write_run(tmp_path / f"{rho}", settings(rho=rho, says={"columns": ["return", "loss"], "score": score}))
        lines = [json.loads(line) for line in (path / "episodes.jsonl").read_text().splitlines()]
        scaled = [line | {score: line[score] * (1 if rho else 100)} for line in lines]
        (path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scaled))
        agree(path)
    (tmp_path / "page.html").write_text(render(load([tmp_path])))
    with browsing() as browser:
        page = drawn(browser.new_page(viewport={"width": 1000, "height": 900}), (tmp_path / "page.html").as_uri())
        boxes = page.evaluate("""[...document.querySelectorAll('.plot[data-kind=bars] .bar')].map(bar =>
            [Number(bar.getAttribute('x')), Number(bar.getAttribute('width')), bar.ownerSVGElement.clientWidth])""")
    assert len(boxes) == 2
    assert all(x >= 0 and x + width <= whole for x, width, whole in boxes)
    assert max(width for _, width, _ in boxes) > 50 * min(width for _, width, _ in boxes)
