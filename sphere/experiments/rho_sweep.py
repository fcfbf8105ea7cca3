"""How strong should the penalty be? Success against rho."""

import numpy as np

from sphere.experiments.cells import cell
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.tables import AVERAGE, success
from sphere.report.comparison_tables import paper_cell
from sphere.report.figures import COLOURS, curves
from sphere.report.paper import QUOTED, TABLES, Printed
from sphere.report.statistics import mean_std
from sphere.report.tables import Cell, Measured, Table

RHO = (0.0, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2)
"""The paper names 0, 1e-3 and 5e-2; the others are ours."""
ABLATION = TABLES["tab:humanoidbench-sphere-ablation"]
THEIRS: dict[str, Printed] = {
    "rho=0": ABLATION["w/o SPHERE"]["success"],
    "rho=0.001": ABLATION["w/ SPHERE"]["success"],
    "MetaWorld, rho=0.001": QUOTED["metaworld-crl, rho 1e-3"],
}
TITLE = "Success against rho, CRL"


def figure(found: Found):
    from matplotlib import pyplot

    shown, axis = pyplot.subplots(figsize=(4.6, 3.2), layout="constrained")
    known = [(rho, mean_std(scores)) for rho in RHO if (scores := found.scores(f"rho={rho:g}")) is not None]
    if known:
        means, deviations = (np.array(column) for column in zip(*(pair for _, pair in known), strict=True))
        axis.errorbar(range(len(known)), means, deviations, fmt="o-", color=COLOURS[1], capsize=3)
        axis.set_xticks(range(len(known)), [f"{rho:g}" for rho, _ in known])
    axis.set(xlabel="rho", ylabel="average success", ylim=(0, 1.05))
    return shown


def results(found: Found) -> Results:
    labels = [*(f"rho={rho:g}" for rho in RHO), "MetaWorld, rho=0.001"]
    rows: list[list[Cell]] = [
        [label, success(found.scores(label)) or Measured(float("nan")), paper_cell(THEIRS.get(label))]
        for label in labels
    ]
    table = Table("rho-sweep", TITLE, ("HumanoidBench unless said otherwise", "success", "paper"), rows, AVERAGE)
    one = found.of_suite("humanoidbench")
    ranks = curves(one, "crl", ["heldout/ntk_rank"]) if one else None
    return Results([table], {"rho-sweep": figure(found), "ntk-rank": ranks})


experiment = Experiment(
    TITLE,
    "fig:humanoidbench-sphere-rho-sweep",
    lambda: [
        *(cell(f"rho={rho:g}", "humanoidbench-crl", "sphere", rho=rho) for rho in RHO),
        cell("MetaWorld, rho=0.001", "metaworld-crl", "sphere", rho=1e-3),
    ],
    results,
)
