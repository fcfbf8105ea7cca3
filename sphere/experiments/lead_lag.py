"""Does r_e(K) fall before success does? Lagged correlations and a one-step prediction under the sign flip."""

import numpy as np

from sphere.experiments.cells import cell
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.report.comparison import band
from sphere.report.comparison_tables import paper_cell
from sphere.report.figures import COLOURS
from sphere.report.paper import QUOTED
from sphere.report.predictors import BLOCK, Series, best_lag, lagged_correlations, predict_one_step
from sphere.report.tables import Cell, Measured, Table
from sphere.training.progress import plural

LABEL = "Negative-SPHERE, rho=-1e-3"
LAGS = range(-20, 21)
TITLE = "Does r_e(K) run ahead of success? Sign flip, HumanoidBench, CRL"


def series(found: Found) -> tuple[Series, Series] | None:
    """Success and r_e(K) at the evaluations that have both, means over runs."""
    one = found.comparison
    bands = [band(found.runs(LABEL), n) for n in (one.curve, "heldout/ntk_rank")]
    success, rank = bands
    if success is None or rank is None:
        return None
    both = np.intersect1d(success.step, rank.step)
    return (
        Series("success", both, success.mean[np.isin(success.step, both)]),
        Series("r_e(K)", both, rank.mean[np.isin(rank.step, both)]),
    )


def figure(correlations: dict[int, float]):
    from matplotlib import pyplot

    shown, axis = pyplot.subplots(figsize=(4.6, 3.0), layout="constrained")
    axis.bar(list(correlations), [0 if np.isnan(v) else v for v in correlations.values()], color=COLOURS[0])
    axis.axvline(0, color="0.5", linewidth=0.8, linestyle=":")
    axis.set(xlabel="lag in evaluations (right: r_e(K) taken earlier)", ylabel="correlation with success")
    return shown


def results(found: Found) -> Results:
    pair = series(found)
    if pair is None:
        return Results()
    correlations = lagged_correlations(*pair, LAGS)
    best, prediction = best_lag(correlations), predict_one_step(*pair)
    nothing = Measured(float("nan"))
    ours: dict[str, Cell] = {
        "lead-lag: best lag": nothing if best is None else str(best),
        "lead-lag: Pearson at the best lag": nothing if best is None else Measured(correlations[best]),
        "one-step regression: standardised coefficient": Measured(prediction.coefficient) if prediction else nothing,
        "one-step regression: p(beta <= 0)": Measured(prediction.not_positive) if prediction else nothing,
    }
    theirs: dict[str, Cell] = {name: paper_cell(QUOTED[name]) for name in ours} | {"lead-lag: best lag": "10"}
    rows: list[list[Cell]] = [[name, value, theirs[name]] for name, value in ours.items()]
    note = (
        f"{plural(len(pair[0].step), 'evaluation')}, means over {plural(len(found.runs(LABEL)), 'run')}. "
        "Correlation of success with r_e(K) that "
        "many evaluations before. Regression of success on success and r_e(K) one evaluation before and a linear trend; "
        f"moving-block bootstrap, blocks of {BLOCK}. A dash: a series does not vary, or is too short."
    )
    return Results([Table("lead-lag", TITLE, ("", "ours", "paper"), rows, note)], {"lead-lag": figure(correlations)})


experiment = Experiment(
    TITLE,
    "fig:negative-intervention-leadlag",
    lambda: [cell(LABEL, "humanoidbench-crl", "sphere", rho=-1e-3)],
    results,
)
