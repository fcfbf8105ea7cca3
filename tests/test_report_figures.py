"""Figures of a report as files: their forms, their titles, the same bytes twice."""

import numpy as np
from made_runs import TASKS, settings, write_run

from sphere.report.comparison import comparisons
from sphere.report.figures import curves, dominant_direction, save, tsne_panels, write_figures
from sphere.report.load import load


def test_figures_come_in_three_forms_and_do_not_depend_on_the_clock(tmp_path):
    write_run(tmp_path / "runs" / "a", settings(tasks=list(TASKS[:2])))
    (comparison,) = comparisons(load([tmp_path / "runs"]))
    first = write_figures(comparison, tmp_path / "one")
    names = {path.stem for path in first}
    assert names == {
        "success-bars",
        "learning-curves-crl",
        "ntk-rank-crl",
        "router-crl",
        "diagnostics-crl",
        "retention",
    }
    assert {path.suffix for path in first} == {".svg", ".pdf", ".png"}
    assert all(path.stat().st_size > 1000 for path in first)
    again = {path.name: path for path in write_figures(comparison, tmp_path / "two")}
    for path in first:
        assert path.read_bytes() == again[path.name].read_bytes(), path.name


def test_panels_of_one_figure_are_told_apart(tmp_path):
    write_run(tmp_path / "runs" / "a", settings(tasks=list(TASKS[:2])))
    (comparison,) = comparisons(load([tmp_path / "runs"]))
    figure = curves(comparison, "crl", [f"{place}/ntk_rank" for place in ("heldout", "online", "standardised")])
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert len(set(titles)) == 3
    assert titles[2] == "r_e(K), held-out states, standardised ↑ more is better"
    assert {axis.get_ylabel() for axis in figure.axes} == {"directions"}
    assert figure.axes[-1].get_xlabel() == "environment steps of a run"


def test_tsne_panels_from_features(tmp_path):
    rng = np.random.default_rng(0)
    phi = np.concatenate([rng.normal(size=(20, 1)) * np.eye(6)[axis] * (3 - axis) for axis in range(3)])
    direction = dominant_direction(phi)
    assert [len(set(direction[20 * k : 20 * k + 20])) for k in range(3)] == [1, 1, 1]
    assert len(set(direction)) == 3
    panels = {"Top-K MoE": {"start": phi[::2]}, "SPHERE": {"start": phi[::2]}}
    files = save(tsne_panels(panels), tmp_path / "tsne")
    assert [file.exists() for file in files] == [True] * 3
