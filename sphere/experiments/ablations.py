"""Average success on HumanoidBench under CRL when one thing is changed. Each experiment is one table of the paper."""

from collections.abc import Mapping
from typing import Any

from sphere.experiments.arms import Arm
from sphere.experiments.beside_paper import AVERAGE, beside_paper, success, success_table
from sphere.experiments.experiment import Experiment, Found, Results

SPHERE = {"w/o SPHERE": "none", "w/ SPHERE": "sphere"}
PAIR = {"Top-K MoE": "none", "SPHERE": "sphere"}


def by_row(title: str, source: str, *arms: Arm) -> Experiment:
    """A table with a row per arm, in the paper under the same name."""

    def results(found: Found) -> Results:
        labels = [arm.label for arm in arms]
        return Results([success_table(found, "success", title, source, labels)], _bars(found))

    return Experiment(title, source, arms, results)


def by_row_and_column(
    title: str, source: str, rows: Mapping[str, Mapping[str, Any]], columns: Mapping[str, str], label: str
) -> Experiment:
    """A table whose rows and columns are those of the paper's. Rows change an arm, columns name its method."""
    arms = {
        (row, column): Arm(label.format(row=row, column=column), method, **changes)
        for row, changes in rows.items()
        for column, method in columns.items()
    }

    def results(found: Found) -> Results:
        ours = {row: {column: success(found.scores(arms[row, column].label)) for column in columns} for row in rows}
        return Results([beside_paper("success", title, source, ours, AVERAGE)], _bars(found))

    return Experiment(title, source, tuple(arms.values()), results)


def _bars(found: Found) -> dict[str, Any]:
    from sphere.report.figures import score_bars

    return {"success-bars": score_bars(found.comparison)}


def variant(label: str, name: str, **changes: Any) -> Arm:
    """SPHERE with another penalty."""
    return Arm(label, "sphere", penalty={"variant": name, **changes})


EXPERIMENTS = {
    "sphere-ablation": by_row(
        "SPHERE's placement and instantiation, HumanoidBench, CRL",
        "tab:humanoidbench-sphere-ablation",
        Arm("w/o SPHERE"),
        Arm("w/ SPHERE", "sphere"),
        variant("All hidden expert layers", "all-layers"),
        variant("Per-expert loss sum", "per-expert"),
        variant("G_last Regularization", "gradient"),
    ),
    "design-ablations": by_row(
        "SPHERE's design, HumanoidBench, CRL",
        "tab:sphere-design-ablations-extra",
        Arm("w/o SPHERE"),
        Arm("w/ SPHERE", "sphere"),
        variant("Fixed alpha=1", "fixed-scale", target_scale=1.0),
        variant("Fixed alpha=2", "fixed-scale", target_scale=2.0),
        variant("Fixed alpha=5", "fixed-scale", target_scale=5.0),
        variant("Unweighted feature Gram", "unweighted"),
        variant("Joint feature Gram across layers", "joint-layers"),
        variant("Gate-only regularization", "gate"),
        variant("Layer-mixture entropy term", "layer-entropy"),
        variant("On A_last and G_last", "feature+gradient"),
        variant("On A_last kron G_last", "kronecker"),
        variant("On A_last * G_last", "khatri-rao"),
    ),
    "placement": by_row(
        "Placement on actor and critic, HumanoidBench, CRL",
        "tab:actor-critic-placement",
        Arm("Actor only", "sphere", penalty={"placement": "actor"}),
        Arm("Critic only", "sphere", penalty={"placement": "critic"}),
        Arm("Actor and critic", "sphere", penalty={"placement": "both"}),
    ),
    "spectral-baselines": by_row(
        "Spectral and plasticity baselines, HumanoidBench, CRL",
        "tab:spectral-plasticity-baselines",
        Arm("Top-K MoE"),
        Arm("Spectral Normalization", "spectral-norm"),
        Arm("ReDo", "redo"),
        Arm("Spectral Regularization", "spectral-reg"),
        Arm("SPHERE", "sphere"),
    ),
    "expert-choice": by_row(
        "Expert-choice routing, HumanoidBench, CRL",
        "tab:expert-choice-routing",
        Arm("Expert-choice routing", actor="expert-choice"),
        Arm("Expert-choice routing + SPHERE", "sphere", "expert-choice"),
    ),
    "structures": by_row_and_column(
        "MoE structures, HumanoidBench, CRL",
        "tab:humanoidbench-structure-agnostic",
        {"Dense-MoE": {"actor": "dense-moe"}, "DS-MoE": {"actor": "ds-moe"}, "SoftMoE": {"actor": "soft-moe"}},
        SPHERE,
        "{row}, {column}",
    ),
    "dense-backbones": by_row_and_column(
        "Dense backbones, HumanoidBench, CRL",
        "tab:humanoidbench-mlp-sphere",
        {"PPO": {"actor": "ppo"}, "PPO(10x)": {"actor": "ppo-10x"}},
        SPHERE,
        "{row}, {column}",
    ),
    "activation": by_row_and_column(
        "Activation, HumanoidBench, CRL",
        "tab:humanoidbench-robustness",
        {"ReLU": {"net": {"activation": "relu"}}, "Tanh": {"net": {"activation": "tanh"}}},
        PAIR,
        "{column}, {row}",
    ),
    "expert-count": by_row_and_column(
        "Number of experts, HumanoidBench, CRL",
        "tab:expert-count-sweep",
        {str(experts): {"net": {"experts": experts}} for experts in (4, 10, 16)},
        PAIR,
        "{column}, E={row}",
    ),
    "layernorm": by_row_and_column(
        "SPHERE and LayerNorm, HumanoidBench, CRL",
        "tab:ln-interaction",
        {"HumanoidBench CRL with PPO": {}},
        {"SPHERE only": "sphere", "SPHERE with LN": "sphere+layernorm"},
        "{column}",
    ),
}
