"""The paper's numbers as data: they agree with one another, and with the paper's source where it is at hand."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from sphere.report import paper

SOURCE = Path(__file__).resolve().parents[2] / "shared" / "paper" / "000_dbbe66be97d0e79c.txt"


def rows(key, method):
    table = paper.SUCCESS[key][method]
    return [value for task, value in table.items() if task != "average"], table["average"]


@pytest.mark.parametrize("key", paper.SUCCESS, ids="-".join)
def test_printed_averages_are_the_means_of_the_printed_rows(key):
    for method in paper.SUCCESS[key]:
        tasks, average = rows(key, method)
        assert len(tasks) == (10 if key[0] == "metaworld" else 5)
        # rows and averages are rounded to 0.01 each
        assert abs(np.mean([task.mean for task in tasks]) - average.mean) <= 0.0101, (key, method)


@pytest.mark.parametrize("key", paper.SUCCESS, ids="-".join)
def test_what_stands_behind_an_average_is_the_mean_of_the_tasks_deviations(key):
    for method in paper.SUCCESS[key]:
        tasks, average = rows(key, method)
        assert abs(np.mean([task.std for task in tasks]) - average.std) <= 0.0101, (key, method)


def test_the_headline_follows_from_the_tables():
    def average(suite, protocol, method):
        found = paper.success(suite, protocol, method)
        assert found is not None
        return found.mean

    assert average("metaworld", "crl", "SPHERE") / average("metaworld", "crl", "Top-K MoE") - 1 == pytest.approx(
        1.33, abs=0.01
    )
    assert average("humanoidbench", "crl", "SPHERE") / average(
        "humanoidbench", "crl", "Top-K MoE"
    ) - 1 == pytest.approx(0.5)
    gaps = [average("metaworld", "rl", m) - average("metaworld", "crl", m) for m in ("Top-K MoE", "SPHERE")]
    assert 1 - gaps[1] / gaps[0] == pytest.approx(0.52, abs=0.01)


def test_tables_that_repeat_a_setting_repeat_its_number():
    top, ours = paper.success("humanoidbench", "crl", "Top-K MoE"), paper.success("humanoidbench", "crl", "SPHERE")
    for label in ("tab:humanoidbench-sphere-ablation", "tab:sphere-design-ablations-extra"):
        assert paper.TABLES[label]["w/o SPHERE"]["success"] == top
        assert paper.TABLES[label]["w/ SPHERE"]["success"] == ours
    assert paper.TABLES["tab:humanoidbench-robustness"]["ReLU"] == {"Top-K MoE": top, "SPHERE": ours}
    for label, row in (("tab:spectral-plasticity-baselines", "SPHERE"), ("tab:actor-critic-placement", "Actor only")):
        assert paper.TABLES[label][row]["success"] == ours


def test_averages_that_stand_in_other_tables_are_found():
    assert all(paper.success("humanoidbench", "crl", method) for method in paper.OTHERS)
    assert paper.success("humanoidbench", "crl", "ReDo") == (0.41, 0.04)
    assert paper.success("humanoidbench", "rl", "ReDo") is None
    assert paper.success("humanoidbench", "crl", "ReDo", "walk") is None


def test_what_the_paper_does_not_have_is_none():
    assert paper.success("metaworld", "crl", "ReDo") is None
    assert paper.success("probe", "crl", "SPHERE") is None
    assert math.isnan(paper.TABLES["tab:plasticity-diagnostics"]["Dormant ratio"]["SPHERE"].std)


def printed(text: str, label: str) -> list[float]:
    """Every number of a table's body in the LaTeX source, in order; names, percentages and differences aside."""
    body = text[text.index(f"\\label{{{label}}}") :]
    body = body[body.index("\\midrule") : body.index("\\end{tabular}")]
    cells = [cell for row in body.split("\\\\") for cell in row.split("&")[1:]]
    cells = [re.sub(r"\([^)]*\)", "", cell) for cell in cells if "%" not in re.sub(r"\([^)]*\)", "", cell)]
    return [float(n) for cell in cells if "+" not in cell for n in re.findall(r"\d+\.\d+", cell)]


@pytest.mark.skipif(not SOURCE.exists(), reason=f"the paper's source is not beside the checkout ({SOURCE})")
def test_every_number_is_the_sources():
    text = SOURCE.read_text()
    for (suite, protocol), label in paper.SOURCES.items():
        methods = paper.SUCCESS[suite, protocol]
        tasks = list(next(iter(methods.values())))
        ours = [number for task in tasks for method in methods.values() for number in method[task]]
        assert printed(text, label) == ours, label
    for label, table in paper.TABLES.items():
        ours = [n for row in table.values() for value in row.values() for n in value if not math.isnan(n)]
        assert printed(text, label) == ours, label
    for value in paper.QUOTED.values():
        assert f"{value.mean:g}" in text
