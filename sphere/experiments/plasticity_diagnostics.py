"""Dormant units, feature norm and gradient norm, with and without SPHERE."""

from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.method_tables import PAIR, methods
from sphere.experiments.tables import beside_paper, last_value
from sphere.report.figures import curves

SOURCE = "tab:plasticity-diagnostics"
METRICS = {
    "Dormant ratio": "heldout/dormant_ratio",
    "Feature L2 norm": "heldout/feature_norm",
    "Gradient L2 norm": "heldout/gradient_norm",
}
TITLE = "Plasticity diagnostics beyond r_e(K), HumanoidBench, CRL"
NOTE = (
    "On held-out states at the last evaluation. The paper does not define its two norms (docs/diagnostics.md says what ours "
    "are): compare methods with each other, not with it."
)


def results(found: Found) -> Results:
    rows = {row: {label: last_value(found.runs(label), metric) for label in PAIR} for row, metric in METRICS.items()}
    figure = curves(found.comparison, "crl", list(METRICS.values()), columns=3)
    return Results([beside_paper("plasticity-diagnostics", TITLE, SOURCE, rows, NOTE)], {"diagnostics": figure})


experiment = Experiment(TITLE, SOURCE, lambda: methods("humanoidbench-crl", PAIR), results)
