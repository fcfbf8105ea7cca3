"""What the page says in words: lines that hide one another, runs without a success, names, units and directions."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from made_runs import TASKS, agree, settings, write_run

from sphere.diagnostics import Diagnostics
from sphere.report.chart_data import chart_data
from sphere.report.comparison import comparisons
from sphere.report.load import load
from sphere.report.metrics import DIRECTIONS, MEASURES, full_words, measure
from sphere.report.page import render, write_report
from sphere.report.remarks import remarks

TWO = {"tasks": list(TASKS[:2])}
CBP = {"method": "cbp", "label": "CBP"}


def rewrite(path: Path, success: Callable[[dict], bool]) -> Path:
    """Episodes that succeed where this says so."""
    file = path / "episodes.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line | {"success_at_end": success(line)}) + "\n" for line in lines))
    return agree(path)


def fail(path: Path) -> Path:
    return rewrite(path, lambda _: False)


def said(root: Path) -> list[str]:
    (comparison,) = comparisons(load([root]))
    return remarks(comparison)


def text(root: Path) -> str:
    return re.sub("<[^>]+>", "", render(load([root])).split("<script")[0])


def test_methods_with_the_same_numbers_are_told(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"none{seed}", settings(seed, **TWO))
        write_run(tmp_path / f"cbp{seed}", settings(seed, says=CBP, **TWO))
        write_run(tmp_path / f"sphere{seed}", settings(seed, 0.1, **TWO), shift=1.0)
    (same, score, *others) = sorted(said(tmp_path), key=len, reverse=True)
    assert same.startswith("Top-K MoE and CBP have the same numbers at every evaluation: one line lies on the other")
    # the penalty's runs have other diagnostics and the same successes
    assert {score, *others} == {
        "CBP and SPHERE have the same score at every evaluation: one line hides the other.",
        "Top-K MoE and SPHERE have the same score at every evaluation: one line hides the other.",
    }
    assert same in text(tmp_path)


def test_methods_that_share_some_seeds_only_are_not_called_the_same(tmp_path):
    write_run(tmp_path / "none0", settings(0, **TWO))
    write_run(tmp_path / "none1", settings(1, **TWO))
    write_run(tmp_path / "cbp0", settings(0, says=CBP, **TWO))
    assert said(tmp_path) == []


def test_copies_of_a_run_under_other_seeds_are_told(tmp_path):
    first = write_run(tmp_path / "a", settings(0, **TWO))
    write_run(tmp_path / "b", settings(1, **TWO))
    copied = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    (tmp_path / "b" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in copied))
    assert said(tmp_path) == [
        "Runs of Top-K MoE have the same numbers (a, b): copies count as one run, not as several."
    ]


def test_runs_without_a_success_are_told_and_not_shown_as_0_and_0(tmp_path):
    for seed in (0, 1):
        fail(write_run(tmp_path / f"none{seed}", settings(seed, **TWO)))
    fail(write_run(tmp_path / "sphere0", settings(0, 0.1, **TWO), shift=1.0))
    write_run(tmp_path / "sphere1", settings(1, 0.1, **TWO), shift=1.0)
    assert said(tmp_path) == [
        "Top-K MoE has had no success at any evaluation: by this score it has learned nothing.",
        "1 of 2 runs of SPHERE has had no success at any evaluation.",
    ]
    shown = text(tmp_path)
    assert "no success yet" in shown  # the card
    ours = re.sub(r"<td class=\"paper-cell\".*?</td>", "", render(load([tmp_path])))
    assert "0.00 ± 0.00" not in re.sub("<[^>]+>", "", ours)


def test_a_run_that_goes_on_may_succeed_yet(tmp_path):
    fail(write_run(tmp_path / "none", settings(0, **TWO), stop_at=4000))
    (one,) = said(tmp_path)
    assert one.startswith("Top-K MoE has had no success at any evaluation yet")


def test_every_diagnostic_has_a_name_a_meaning_a_unit_and_a_direction():
    assert set(Diagnostics._fields) | {"saturation"} == set(MEASURES)
    for name, one in MEASURES.items():
        assert "_" not in one.word.replace("r_e(", "").replace("A_last", ""), name
        assert one.meaning, name
        assert one.unit, name
        assert one.better in DIRECTIONS
    # as in the paper's table of expert specialisation
    lower = {"overlap", "max_violation"}
    higher = {"orthogonality", "silhouette", "knn_jaccard", "active_ratio", "routing_entropy"}
    assert {MEASURES[name].better for name in lower} == {-1}
    assert {MEASURES[name].better for name in higher} == {1}
    assert measure("evaluation/return").better == 1
    assert full_words("heldout/critic/knn_jaccard") == "kNN Jaccard, critic, held-out states"


def test_the_page_has_names_as_in_the_text_and_says_which_way_is_better(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", settings(seed, **TWO))
    page = render(load([tmp_path]))
    body = page.split("<script")[0]
    small = re.findall(r"<figure>(.*?)</figure>", body)
    assert small
    assert all(
        any(words in one for words in DIRECTIONS.values())
        for one in small
        if 'data-kind="lines"' in one and "data-small" in one
    )
    assert "dormant_ratio" not in re.sub("<details>.*?</details>", "", re.sub('data-metric="[^"]*"', "", body))
    assert 'data-unit="share of units"' in body
    assert '"stepUnit":"environment steps of a run"' in page
    assert body.count('class="legend"') >= 4


def test_parts_without_content_are_left_out(tmp_path):
    write_run(tmp_path / "a", settings(0, **TWO), stop_at=0)
    headings = re.findall(r"<h3>(.*?)</h3>", render(load([tmp_path])))
    assert headings == []


def test_curves_are_a_csv_file(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"a{seed}", settings(seed, **TWO))
    write_report([tmp_path / "runs"], tmp_path / "out", figures=False)
    with (tmp_path / "out" / "curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    loaded = load([tmp_path / "runs"])
    assert len(rows) == sum(run.curve.step.size for run in loaded.runs) == 2 * 2 * 3
    (run,) = [run for run in loaded.runs if run.seed == 1]
    own = [row for row in rows if row["seed"] == "1"]
    assert [int(row["step"]) for row in own] == run.curve.step.tolist()
    assert [row["task"] for row in own] == ["hammer"] * 3 + ["push-wall"] * 3
    assert [row["task_number"] for row in own] == ["1"] * 3 + ["2"] * 3
    for name in ("evaluation/success_at_end", "heldout/ntk_rank"):
        np.testing.assert_allclose([float(row[name]) for row in own], run.curve.values[name], rtol=1e-8)
    assert {row["method"] for row in rows} == {"Top-K MoE"}


def test_bars_show_the_digits_of_the_tables(tmp_path):
    """0.125 is 0.12 in tables; the page's script would make 0.13 of it."""
    rewrite(
        write_run(tmp_path / "a", settings(0, **TWO)), lambda line: line["task_index"] == 1 and line["episode"] == 0
    )
    (comparison,) = comparisons(load([tmp_path]))
    (bar,) = chart_data(comparison)["bars"]
    assert bar["mean"] == 0.125
    assert bar["text"] == "0.12"
