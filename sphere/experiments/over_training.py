"""Metrics of networks over training on HumanoidBench and MetaWorld under CRL: curves, and values at the end."""

from sphere.experiments.arms import ARCHITECTURES, PAIR, Arm, methods
from sphere.experiments.beside_paper import beside_paper, last_value, success, value_at
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.report.tables import Cell, Table


def curve(title: str, source: str, arms: tuple[Arm, ...], *metrics: str) -> Experiment:
    """Curves of some metrics, and a table of their first and last values."""
    note = "Mean and standard deviation over runs that have finished."

    def results(found: Found) -> Results:
        from sphere.report.figures import curves

        rows: list[list[Cell]] = [
            [label, metric, value_at(found.finished(label), metric, 0), last_value(found.runs(label), metric)]
            for metric in metrics
            for label in found.comparison.methods
        ]
        table = Table("over-training", title, ("", "metric", "first evaluation", "last evaluation"), rows, note)
        return Results([table], {"curves": curves(found.comparison, "crl", metrics)})

    return Experiment(title, source, arms, results)


def load_balance() -> Experiment:
    """Does a loss that balances the experts' load keep r_e(K) up?"""
    title, source = "Load balancing against r_e(K), HumanoidBench, CRL", "tab:loadbalance-success-rek"
    arms = (Arm("Top-K MoE"), Arm("+ Load balancing", "load-balance"))

    def results(found: Found) -> Results:
        from sphere.report.figures import curves

        rows = {
            arm.label: {
                "success": success(found.scores(arm.label)),
                "r_e(K)": last_value(found.runs(arm.label), "heldout/ntk_rank"),
            }
            for arm in arms
        }
        note = "Average success, and r_e(K) on held-out states at the last evaluation."
        figure = curves(found.comparison, "crl", ["heldout/ntk_rank", "heldout/routing_entropy"])
        return Results([beside_paper("load-balance", title, source, rows, note)], {"ntk-rank": figure})

    return Experiment(title, f"{source} and fig:loadbalance-vs-topk-entk", arms, results)


def plasticity_diagnostics() -> Experiment:
    """Dormant units, feature norm and gradient norm, with and without SPHERE."""
    title, source = "Plasticity diagnostics beyond r_e(K), HumanoidBench, CRL", "tab:plasticity-diagnostics"
    metrics = {
        "Dormant ratio": "heldout/dormant_ratio",
        "Feature L2 norm": "heldout/feature_norm",
        "Gradient L2 norm": "heldout/gradient_norm",
    }
    note = (
        "On held-out states at the last evaluation. The paper does not define its two norms (docs/diagnostics.md says "
        "what ours are): compare methods with each other, not with it."
    )

    def results(found: Found) -> Results:
        from sphere.report.figures import curves

        rows = {
            row: {label: last_value(found.runs(label), metric) for label in PAIR} for row, metric in metrics.items()
        }
        figure = curves(found.comparison, "crl", list(metrics.values()), columns=3)
        return Results([beside_paper("plasticity-diagnostics", title, source, rows, note)], {"diagnostics": figure})

    return Experiment(title, source, methods(PAIR), results)


def specialisation() -> Experiment:
    """Do experts become different from one another? Overlap of their features, geometry of the gate, and load."""
    title = "Specialisation of experts on the last task, HumanoidBench, CRL"
    source = "tab:humanoidbench-specialization"
    metrics = (
        *("overlap", "orthogonality", "silhouette", "knn_jaccard"),
        *("max_violation", "active_ratio", "routing_entropy"),
    )
    note = (
        "Mean and standard deviation over runs, at the last evaluation, on states of the last rollout (the policy's "
        "own, with its noise); the paper's are 512 states of its deterministic policy on Run."
    )

    def results(found: Found) -> Results:
        rows = {label: {name: last_value(found.runs(label), f"online/{name}") for name in metrics} for label in PAIR}
        return Results([beside_paper("specialisation", title, source, rows, note)])

    return Experiment(title, source, methods(PAIR), results)


RANKED = (*ARCHITECTURES, "SPHERE")
EXPERIMENTS = {
    "ntk-heldout": curve(
        "r_e(K) on held-out states over training, HumanoidBench, CRL",
        "fig:humanoidbench-entk-erank-archs",
        methods(RANKED),
        "heldout/ntk_rank",
    ),
    "ntk-online": curve(
        "r_e(K) on states of the last rollout over training, HumanoidBench, CRL",
        "fig:entk-onlinestates",
        methods(PAIR),
        "online/ntk_rank",
    ),
    "metaworld-ntk": curve(
        "r_e(K) over training, held-out and rollout states, MetaWorld, CRL",
        "fig:humanoidbench-entk-erank-archs and fig:entk-onlinestates, for MetaWorld",
        methods(RANKED, "metaworld-crl"),
        "heldout/ntk_rank",
        "online/ntk_rank",
    ),
    "load-balance": load_balance(),
    "plasticity-diagnostics": plasticity_diagnostics(),
    "specialisation": specialisation(),
}
