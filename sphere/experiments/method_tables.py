"""The paper's methods by the names of its tables, and the two experiments that both suites share."""

from collections.abc import Callable, Sequence

from sphere.experiments.cells import Cell, cell
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.tables import last_value, value_at
from sphere.report.comparison_tables import against_table, average_table, per_task_table
from sphere.report.figures import curves, score_bars
from sphere.report.tables import Cell as Entry
from sphere.report.tables import Table

NOTE = "Mean and standard deviation over runs that have finished."

METHODS: dict[str, tuple[str, str]] = {
    "PPO": ("none", "ppo"),
    "PPO(10x)": ("none", "ppo-10x"),
    "Top-K MoE": ("none", "top-k"),
    "LN": ("layernorm", "top-k"),
    "Dense-MoE": ("none", "dense-moe"),
    "DS-MoE": ("none", "ds-moe"),
    "SPHERE": ("sphere", "top-k"),
    "PW": ("parseval", "top-k"),
    "C-CHAIN": ("c-chain", "top-k"),
    "CBP": ("cbp", "top-k"),
}
"""Label -> method and actor, by their names on the command line."""

ARCHITECTURES = ("PPO", "Top-K MoE", "Dense-MoE", "DS-MoE")
METAWORLD = tuple(name for name in METHODS if name not in ("Dense-MoE", "DS-MoE"))
"""Those of the paper's MetaWorld tables."""
HUMANOIDBENCH = tuple(METHODS)
PAIR = ("Top-K MoE", "SPHERE")


def methods(preset: str, labels: Sequence[str]) -> list[Cell]:
    return [cell(label, preset, *METHODS[label]) for label in labels]


def per_task(suite: str, protocol: str, labels: Sequence[str], source: str) -> Experiment:
    """All methods of a suite under one protocol, task by task."""

    def results(found: Found) -> Results:
        one = found.comparison
        tables = [per_task_table(one, protocol), average_table(one), against_table(one)]
        figures = {
            "success-bars": score_bars(one),
            "learning-curves": curves(one, protocol, one.score_curves),
        }
        return Results([table for table in tables if table.rows], figures)

    spoken = {"crl": "one agent through all tasks", "rl": "every task from scratch"}[protocol]
    title = f"Success by task, all methods, {suite}, {protocol.upper()} ({spoken})"
    return Experiment(title, source, lambda: methods(f"{suite}-{protocol}", labels), results)


def both_protocols(suite: str, labels: Sequence[str], source: str, what: str) -> Experiment:
    """Average success under RL beside CRL."""

    def cells() -> list[Cell]:
        return [one for protocol in ("rl", "crl") for one in methods(f"{suite}-{protocol}", labels)]

    def results(found: Found) -> Results:
        return Results([average_table(found.comparison)], {"success-bars": score_bars(found.comparison)})

    return Experiment(f"RL against CRL, {what}, {suite}", source, cells, results)


def over_training(title: str, source: str, cells: Callable[[], Sequence[Cell]], metrics: Sequence[str]) -> Experiment:
    """Curves of some metrics under CRL, and a table of where they begin and end."""

    def results(found: Found) -> Results:
        rows: list[list[Entry]] = [
            [label, metric, value_at(found.finished(label), metric, 0), last_value(found.runs(label), metric)]
            for metric in metrics
            for label in found.comparison.methods
        ]
        table = Table("over-training", title, ("", "metric", "first evaluation", "last evaluation"), rows, NOTE)
        return Results([table], {"curves": curves(found.comparison, "crl", metrics)})

    return Experiment(title, source, cells, results)
