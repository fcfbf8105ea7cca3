"""Success of the paper's methods: by task, RL against CRL, of the final policy, and over ten seeds."""

from collections.abc import Sequence

from sphere.experiments.arms import ARCHITECTURES, OF_SUITE, PAIR, methods
from sphere.experiments.beside_paper import AVERAGE, beside_paper, success
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.report import paper
from sphere.report.comparison_tables import against_table, average_table, continual_table, per_task_table
from sphere.report.scores import Scores, final_scores
from sphere.report.statistics import iqm, iqr
from sphere.report.tables import Cell, MeanStd

PROTOCOLS = {"crl": "one agent through all tasks", "rl": "every task from scratch"}


def per_task(suite: str, protocol: str, source: str) -> Experiment:
    """All methods of a suite under one protocol, task by task."""

    def results(found: Found) -> Results:
        from sphere.report.figures import curves, score_bars

        one = found.comparison
        tables = [per_task_table(one, protocol), average_table(one), against_table(one)]
        figures = {
            "success-bars": score_bars(one),
            "learning-curves": curves(one, protocol, [one.curve, "evaluation/return"]),
        }
        return Results([table for table in tables if table.rows], figures)

    title = f"Success by task, all methods, {paper.SUITES[suite]}, {protocol.upper()} ({PROTOCOLS[protocol]})"
    return Experiment(title, source, methods(OF_SUITE[suite], f"{suite}-{protocol}"), results)


def both_protocols(suite: str, labels: Sequence[str], what: str, source: str) -> Experiment:
    """Average success under RL beside CRL."""

    def results(found: Found) -> Results:
        from sphere.report.figures import score_bars

        return Results([average_table(found.comparison)], {"success-bars": score_bars(found.comparison)})

    arms = methods(labels, f"{suite}-rl") + methods(labels, f"{suite}-crl")
    return Experiment(f"RL against CRL, {what}, {paper.SUITES[suite]}", source, arms, results)


def retention() -> Experiment:
    """Success of the final policy on all tasks of the sequence."""
    title, source = "Success of the final policy on all tasks, HumanoidBench, CRL", "tab:humanoidbench-crl5-avg-success"
    note = "Mean and standard deviation over runs of the final policy's success, averaged over tasks."

    def results(found: Found) -> Results:
        rows = {label: {"final success": success(final_scores(found.runs(label)).scores)} for label in PAIR}
        return Results([beside_paper("retention", title, source, rows, note), continual_table(found.comparison)])

    return Experiment(title, source, methods(PAIR), results)


def ten_seeds() -> Experiment:
    """The main comparisons by robust statistics."""
    title, source = "Ten seeds, robust statistics, CRL", "tab:robust-10seed-stats"
    suites = {"HumanoidBench": "humanoidbench", "MetaWorld": "metaworld"}

    def numbers(scores: Scores | None) -> dict[str, Cell]:
        if scores is None:
            return {}
        return {"mean": success(scores), "IQM": MeanStd(iqm(scores)), "IQR": MeanStd(iqr(scores))}

    def results(found: Found) -> Results:
        rows = {
            f"{name} CRL, {label}": numbers(found.scores(label, suite=suite))
            for name, suite in suites.items()
            for label in PAIR
        }
        table = beside_paper("ten-seeds", title, source, rows, AVERAGE)
        return Results([table, *(against_table(one) for one in found.comparisons)])

    arms = tuple(arm for suite in suites.values() for arm in methods(PAIR, f"{suite}-crl"))
    return Experiment(title, source, arms, results, seeds=10)


ARCHITECTURES_FIGURE = "fig:humanoidbench-archs-rl-vs-crl-relu"

EXPERIMENTS = {
    "metaworld-crl": per_task("metaworld", "crl", "tab:metaworld-crl-per-task-full"),
    "metaworld-rl": per_task("metaworld", "rl", "tab:metaworld-per-task-full"),
    "humanoidbench-crl": per_task("humanoidbench", "crl", "tab:humanoidbench-crl-per-task-full-relu"),
    "humanoidbench-rl": per_task("humanoidbench", "rl", "tab:humanoidbench-per-task-full-relu"),
    "metaworld-bars": both_protocols(
        "metaworld", OF_SUITE["metaworld"], "all methods", "fig:metaworld-methods-success-bars"
    ),
    "humanoidbench-bars": both_protocols(
        "humanoidbench", OF_SUITE["humanoidbench"], "all methods", "fig:humanoidbench-methods-success-bars"
    ),
    "metaworld-archs": both_protocols(
        "metaworld", ARCHITECTURES, "per architecture", f"{ARCHITECTURES_FIGURE}, for MetaWorld"
    ),
    "humanoidbench-archs": both_protocols("humanoidbench", ARCHITECTURES, "per architecture", ARCHITECTURES_FIGURE),
    "retention": retention(),
    "ten-seeds": ten_seeds(),
}
