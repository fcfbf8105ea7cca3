"""A stream of 400 tasks, and tasks that come twice: tables and the page stay readable."""

import csv

import numpy as np
import pytest
from browsers import OVER, browsing, drawn, needs_browser
from made_runs import settings, write_run

from sphere.report.chart_data import MOST_POINTS, chart_data, thinned
from sphere.report.comparison import comparisons
from sphere.report.comparison_tables import continual_table, per_task_table, tables, tenths_table
from sphere.report.figures import write_figures
from sphere.report.load import load
from sphere.report.page import write_report
from sphere.report.tables import MeanStd

STREAM = [f"text/topic-{index}" for index in range(200)] * 2
"""Every task twice."""
SAYS = {"columns": ["accuracy", "loss"], "score": "accuracy"}
EVALUATION = {"every": 1000, "episodes": 2, "retention": False}


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Two methods with two seeds each. Accuracy is 3/4 after every task; three evaluations a task."""
    root = tmp_path_factory.mktemp("stream")
    for rho in (0.0, 0.1):
        for seed in (0, 1):
            config = settings(seed, rho, tasks=STREAM, says=SAYS, evaluation=EVALUATION)
            write_run(root / f"rho{rho:g}-seed{seed}", config)
    return root


@pytest.fixture(scope="module")
def comparison(stream):
    (found,) = comparisons(load([stream]))
    return found


@pytest.fixture(scope="module")
def report(stream, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    write_report([stream], out, figures=False)
    return out


def test_tables_show_tenths_and_every_task_is_in_a_csv(comparison, report):
    table = tenths_table(comparison, "crl")
    assert [row[0] for row in table.rows][:2] == ["tasks 1 to 40", "tasks 41 to 80"]
    assert len(table.rows) == 11
    assert all(cell == MeanStd(0.75, 0.0) for row in table.rows for cell in row[1:])
    assert "text-crl-tasks.csv" in table.note
    folder = report / "tables"
    assert {path.suffix for path in folder.glob("text-crl-tenths.*")} == {".txt", ".md", ".tex", ".csv"}
    assert [path.suffix for path in folder.glob("text-crl-tasks.*")] == [".csv"]
    with (folder / "text-crl-tasks.csv").open() as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + 400 + 1
    assert [rows[1][0], rows[201][0], rows[-1][0]] == ["topic-0", "topic-0 (2)", "average"]
    assert {float(row[1]) for row in rows[1:]} == {0.75}


def test_tenths_are_averages_over_their_tasks(tmp_path):
    """Of a run that stops in the seventh tenth: what it has finished counts, the rest is a dash."""
    write_run(tmp_path / "a", settings(tasks=STREAM[:50], says=SAYS, evaluation=EVALUATION), stop_at=3000 * 33)
    (found,) = comparisons(load([tmp_path]))
    cells = [row[1] for row in tenths_table(found, "crl").rows]
    assert [cell and cell.mean for cell in cells] == [0.75] * 6 + [None] * 5


def test_few_tasks_have_no_tenths(tmp_path):
    write_run(tmp_path / "a", settings())
    (found,) = comparisons(load([tmp_path]))
    assert not [table.name for table in tables(found) if "tenths" in table.name]
    assert chart_data(found)["byTask"] == {"crl": []}


def test_the_page_stays_small(report):
    page = (report / "index.html").read_text()
    assert len(page) < 2_000_000
    assert page.count("<tr") < 200
    text = page.split('<script type="application/json"')[0]
    assert "topic-7" not in text  # no list of names
    assert "text/topic-0 text/topic-1 text/topic-2 … text/topic-199 (400)" in text


def test_long_curves_are_thinned_to_the_ends_of_tasks(comparison):
    data = chart_data(comparison)
    for series in data["curves"]["crl"].values():
        for one in series:
            assert len(one["step"]) == len(one["mean"]) == 400
            assert (np.array(one["step"]) == 3000 * np.arange(1, 401)).all()
    (top, _) = data["byTask"]["crl"]
    assert top["step"].tolist() == list(range(1, 401))
    assert top["mean"].tolist() == [0.75] * 400


@pytest.mark.parametrize("length", [1, 10, 11, 12, 999, 12345])
def test_thinning_is_even_and_keeps_the_last(length):
    kept = thinned(length, 10)
    assert len(kept) == min(length, 10)
    assert kept[-1] == length - 1
    assert np.ptp(np.diff([-1, *kept])) <= 1
    assert MOST_POINTS >= 400


def test_figures_of_many_tasks_have_a_usual_size(comparison, tmp_path):
    written = write_figures(comparison, tmp_path)
    assert {path.stem for path in written} >= {"accuracy-bars", "by-task-crl", "learning-curves-crl"}
    assert "retention" not in {path.stem for path in written}
    assert max(path.stat().st_size for path in written) < 5_000_000


def test_the_second_visit_has_a_row_of_its_own(tmp_path):
    tasks = ["metaworld/hammer", "metaworld/push-wall", "metaworld/hammer"]
    write_run(tmp_path / "a", settings(tasks=tasks))
    (found,) = comparisons(load([tmp_path]))
    table = per_task_table(found, "crl")
    assert [row[0] for row in table.rows] == ["hammer", "push-wall", "hammer (2)", "average"]
    # the sequence begins as the paper's, but the paper has no second hammer
    assert [row[2] is None for row in table.rows] == [False, False, True, True]
    (row,) = continual_table(found).rows
    assert row[2].mean == pytest.approx((0.25 + 0.25 + 0.75) / 3)
    assert row[3].mean == pytest.approx((0.5 + 0.5 + 0) / 3)  # own 0.75, final 0.25, 0.25, 0.75


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_it_is_drawn(report, width):
    """Every chart has a drawing, labels do not lie over one another, and nothing is wider than the page."""
    complaints = []
    with browsing() as browser:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("pageerror", lambda error: complaints.append(str(error)))
        drawn(page, (report / "index.html").as_uri())
        assert page.locator(".plot[data-kind='tasks'] path.mean").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(OVER) == []
        assert page.evaluate("document.querySelectorAll('svg *').length") < 30_000
        assert not complaints
