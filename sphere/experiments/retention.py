"""What the final policy still can: all tasks of the sequence at its end."""

from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.method_tables import PAIR, methods
from sphere.experiments.tables import beside_paper, success
from sphere.report.comparison_tables import continual_table
from sphere.report.scores import final_scores

SOURCE = "tab:humanoidbench-crl5-avg-success"
TITLE = "Success of the final policy on all tasks, HumanoidBench, CRL"


def results(found: Found) -> Results:
    rows = {label: {"final success": success(final_scores(found.runs(label)).scores)} for label in PAIR}
    note = "Mean and standard deviation over runs of the final policy's success, averaged over tasks."
    return Results([beside_paper("retention", TITLE, SOURCE, rows, note), continual_table(found.comparison)])


experiment = Experiment(TITLE, SOURCE, lambda: methods("humanoidbench-crl", PAIR), results)
