"""Do experts become different from one another? Overlap of their features, geometry of the gate, and load."""

from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.method_tables import PAIR, methods
from sphere.experiments.tables import beside_paper, last_value

SOURCE = "tab:humanoidbench-specialization"
METRICS = (
    *("overlap", "orthogonality", "silhouette", "knn_jaccard"),
    *("max_violation", "active_ratio", "routing_entropy"),
)
TITLE = "Specialisation of experts on the last task, HumanoidBench, CRL"
NOTE = (
    "Mean and standard deviation over runs, at the last evaluation, on states of the last rollout (the policy's own, with its "
    "noise); the paper's are 512 states of its deterministic policy on Run."
)


def results(found: Found) -> Results:
    rows = {label: {name: last_value(found.runs(label), f"online/{name}") for name in METRICS} for label in PAIR}
    return Results([beside_paper("specialisation", TITLE, SOURCE, rows, NOTE)])


experiment = Experiment(TITLE, SOURCE, lambda: methods("humanoidbench-crl", PAIR), results)
