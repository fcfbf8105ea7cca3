"""The strength and the sign of the penalty: success against rho, rho below 0, and whether r_e(K) leads success."""

from typing import Any

import numpy as np

from sphere.experiments.arms import Arm
from sphere.experiments.beside_paper import AVERAGE, success, success_table
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.report.comparison import band
from sphere.report.comparison_tables import paper_cell
from sphere.report.paper import QUOTED, TABLES, Printed
from sphere.report.predictors import BLOCK, Series, best_lag, lagged_correlations, predict_one_step
from sphere.report.statistics import mean_std
from sphere.report.tables import Cell, MeanStd, Table
from sphere.training.progress import plural

# How strong should the penalty be? Success against rho.

SWEEP_TITLE = "Success against rho, CRL"
SWEEP = {f"rho={rho:g}": rho for rho in (0.0, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2)}
"""The paper names 0, 1e-3 and 5e-2; the others are ours."""
ON_METAWORLD = "MetaWorld, rho=0.001"
ABLATION = TABLES["tab:humanoidbench-sphere-ablation"]
THEIRS: dict[str, Printed] = {
    "rho=0": ABLATION["w/o SPHERE"]["success"],
    "rho=0.001": ABLATION["w/ SPHERE"]["success"],
    ON_METAWORLD: QUOTED["metaworld-crl, rho 1e-3"],
}


def sweep_results(found: Found) -> Results:
    from sphere.report.figures import curves

    rows: list[list[Cell]] = [
        [label, success(found.scores(label)) or MeanStd(float("nan")), paper_cell(THEIRS.get(label))]
        for label in (*SWEEP, ON_METAWORLD)
    ]
    table = Table("rho-sweep", SWEEP_TITLE, ("HumanoidBench unless said otherwise", "success", "paper"), rows, AVERAGE)
    one = found.of_suite("humanoidbench")
    ranks = curves(one, "crl", ["heldout/ntk_rank"]) if one else None
    return Results([table], {"rho-sweep": _sweep_figure(found), "ntk-rank": ranks})


def _sweep_figure(found: Found) -> Any:
    from matplotlib import pyplot

    from sphere.report.figures import COLOURS

    figure, axis = pyplot.subplots(figsize=(4.6, 3.2), layout="constrained")
    known = [(rho, mean_std(scores)) for label, rho in SWEEP.items() if (scores := found.scores(label)) is not None]
    if known:
        means, deviations = (np.array(column) for column in zip(*(pair for _, pair in known), strict=True))
        axis.errorbar(range(len(known)), means, deviations, fmt="o-", color=COLOURS[1], capsize=3)
        axis.set_xticks(range(len(known)), [f"{rho:g}" for rho, _ in known])
    axis.set(xlabel="rho", ylabel="average success", ylim=(0, 1.05))
    return figure


# With rho below 0 the penalty makes features alike instead of different.

FLIP_TITLE, FLIP_SOURCE = "Sign flip of rho, HumanoidBench, CRL", "tab:negative-intervention-success"
NEGATIVE = Arm("Negative-SPHERE, rho=-1e-3", "sphere", rho=-1e-3)
FLIP = (Arm("Top-K MoE, rho=0", "sphere", rho=0.0), Arm("SPHERE, rho=1e-3", "sphere", rho=1e-3), NEGATIVE)


def flip_results(found: Found) -> Results:
    from sphere.report.figures import curves

    one = found.comparison
    table = success_table(found, "sign-flip", FLIP_TITLE, FLIP_SOURCE, [arm.label for arm in FLIP])
    return Results([table], {"curves": curves(one, "crl", [one.curve, "heldout/ntk_rank"])})


# Does r_e(K) fall before success does? Lagged correlations and a one-step prediction under the sign flip.

LEAD_TITLE = "Does r_e(K) run ahead of success? Sign flip, HumanoidBench, CRL"
LAGS = range(-20, 21)


def lead_results(found: Found) -> Results:
    pair = _series(found)
    if pair is None:
        return Results()
    correlations = lagged_correlations(*pair, LAGS)
    best, prediction = best_lag(correlations), predict_one_step(*pair)
    nothing = MeanStd(float("nan"))
    ours: dict[str, Cell] = {
        "lead-lag: best lag": nothing if best is None else str(best),
        "lead-lag: Pearson at the best lag": nothing if best is None else MeanStd(correlations[best]),
        "one-step regression: standardised coefficient": MeanStd(prediction.coefficient) if prediction else nothing,
        "one-step regression: p(beta <= 0)": MeanStd(prediction.not_positive) if prediction else nothing,
    }
    theirs: dict[str, Cell] = {name: paper_cell(QUOTED[name]) for name in ours} | {"lead-lag: best lag": "10"}
    rows: list[list[Cell]] = [[name, value, theirs[name]] for name, value in ours.items()]
    note = (
        f"{plural(len(pair[0].step), 'evaluation')}, means over {plural(len(found.runs(NEGATIVE.label)), 'run')}. "
        "Correlation of success with r_e(K) that many evaluations before. Regression of success on success and r_e(K) "
        f"one evaluation before and a linear trend; moving-block bootstrap, blocks of {BLOCK}. A dash: a series does "
        "not vary, or is too short."
    )
    table = Table("lead-lag", LEAD_TITLE, ("", "ours", "paper"), rows, note)
    return Results([table], {"lead-lag": _lag_figure(correlations)})


def _series(found: Found) -> tuple[Series, Series] | None:
    """Success and r_e(K) at the evaluations that have both, means over runs."""
    runs = found.runs(NEGATIVE.label)
    score, rank = (band(runs, metric) for metric in (found.comparison.curve, "heldout/ntk_rank"))
    if score is None or rank is None:
        return None
    both = np.intersect1d(score.step, rank.step)
    return (
        Series("success", both, score.mean[np.isin(score.step, both)]),
        Series("r_e(K)", both, rank.mean[np.isin(rank.step, both)]),
    )


def _lag_figure(correlations: dict[int, float]) -> Any:
    from matplotlib import pyplot

    from sphere.report.figures import COLOURS

    figure, axis = pyplot.subplots(figsize=(4.6, 3.0), layout="constrained")
    axis.bar(list(correlations), [0 if np.isnan(v) else v for v in correlations.values()], color=COLOURS[0])
    axis.axvline(0, color="0.5", linewidth=0.8, linestyle=":")
    axis.set(xlabel="lag in evaluations (right: r_e(K) taken earlier)", ylabel="correlation with success")
    return figure


EXPERIMENTS = {
    "rho-sweep": Experiment(
        SWEEP_TITLE,
        "fig:humanoidbench-sphere-rho-sweep",
        (
            *(Arm(label, "sphere", rho=rho) for label, rho in SWEEP.items()),
            Arm(ON_METAWORLD, "sphere", preset="metaworld-crl", rho=1e-3),
        ),
        sweep_results,
    ),
    "sign-flip": Experiment(FLIP_TITLE, f"{FLIP_SOURCE} and fig:negative-intervention-curves", FLIP, flip_results),
    "lead-lag": Experiment(LEAD_TITLE, "fig:negative-intervention-leadlag", (NEGATIVE,), lead_results),
}
