"""The main comparisons with ten seeds, by robust statistics."""

from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.method_tables import PAIR, methods
from sphere.experiments.tables import AVERAGE, beside_paper, success
from sphere.report.comparison_tables import against_table
from sphere.report.scores import Scores
from sphere.report.statistics import iqm, iqr
from sphere.report.tables import Cell, Measured

SOURCE = "tab:robust-10seed-stats"
TITLE = "Ten seeds, robust statistics, CRL"
SUITES = {"HumanoidBench": "humanoidbench", "MetaWorld": "metaworld"}


def numbers(scores: Scores | None) -> dict[str, Cell]:
    if scores is None:
        return {}
    return {"mean": success(scores), "IQM": Measured(iqm(scores)), "IQR": Measured(iqr(scores))}


def results(found: Found) -> Results:
    rows: dict[str, dict[str, Cell]] = {}
    for spoken, suite in SUITES.items():
        for label in PAIR:
            rows[f"{spoken} CRL, {label}"] = numbers(found.scores(label, suite=suite))
    table = beside_paper("ten-seeds", TITLE, SOURCE, rows, AVERAGE)
    return Results([table, *(against_table(one) for one in found.comparisons)])


experiment = Experiment(
    TITLE,
    SOURCE,
    lambda: [cell for suite in SUITES.values() for cell in methods(f"{suite}-crl", PAIR)],
    results,
    seeds=10,
)
