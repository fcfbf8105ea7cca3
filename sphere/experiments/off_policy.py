"""SPHERE beyond PPO's actor: TD3 with a Top-K critic on MetaWorld under CRL, and the longer chain of tasks."""

from typing import Any

from sphere.experiments.arms import Arm
from sphere.experiments.beside_paper import AVERAGE, beside_paper, success, success_table
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.report.scores import final_scores

TD3: dict[str, Any] = {"actor": "ppo", "preset": "metaworld-crl-td3"}
"""A dense actor; the critics are the preset's."""


def critic(found: Found) -> Results:
    labels = ["Top-K MoE critic (TD3)", "Regularized MoE critic (TD3)"]
    return Results([success_table(found, "success", TITLES["td3-critic"], "tab:metaworld-td3-ablation", labels)], {})


def layernorm(found: Found) -> Results:
    """The paper has SPHERE with and without LN; the critic without SPHERE stands below."""
    ours = {
        "MetaWorld CRL with TD3": {
            "SPHERE only": success(found.scores("SPHERE (TD3)")),
            "SPHERE with LN": success(found.scores("SPHERE + LN (TD3)")),
        },
        "The same without SPHERE": {
            "SPHERE only": success(found.scores("Top-K MoE critic (TD3)")),
            "SPHERE with LN": success(found.scores("LN (TD3)")),
        },
    }
    return Results([beside_paper("success", TITLES["td3-layernorm"], "tab:ln-interaction", ours, AVERAGE)], {})


def chain(found: Found) -> Results:
    row = {"Baseline": success(found.scores("Top-K MoE")), "SPHERE": success(found.scores("SPHERE"))}
    ours = {"Longer-horizon MetaWorld RL": row}
    return Results(
        [beside_paper("success", TITLES["longer-chain"], "tab:stationary-longer-horizon", ours, AVERAGE)], {}
    )


def stationary(found: Found) -> Results:
    """One data set for the whole of training, so the final policy is what counts, on all tasks."""
    columns = {"Baseline": "Top-K MoE critic (TD3+BC)", "SPHERE": "SPHERE (TD3+BC)"}
    row = {column: success(final_scores(found.runs(label)).scores) for column, label in columns.items()}
    note = "Mean and standard deviation over runs of the final policy's success, averaged over tasks."
    ours = {"Stationary TD3+BC control": row}
    return Results([beside_paper("success", TITLES["td3-bc"], "tab:stationary-longer-horizon", ours, note)], {})


TITLES = {
    "td3-critic": "TD3 with a Top-K critic, MetaWorld, CRL, one update per environment step",
    "td3-layernorm": "SPHERE and LayerNorm in the critic of TD3, MetaWorld, CRL, one update per environment step",
    "td3-bc": "TD3+BC with a Top-K critic on recorded data of MetaWorld's ten tasks, 200,000 updates",
    "longer-chain": "Continual World's ten tasks twice, PPO, CRL",
}

EXPERIMENTS = {
    "td3-critic": Experiment(
        TITLES["td3-critic"],
        "tab:metaworld-td3-ablation",
        (Arm("Top-K MoE critic (TD3)", **TD3), Arm("Regularized MoE critic (TD3)", "sphere", **TD3)),
        critic,
    ),
    "td3-layernorm": Experiment(
        TITLES["td3-layernorm"],
        "tab:ln-interaction",
        (
            Arm("Top-K MoE critic (TD3)", **TD3),
            Arm("SPHERE (TD3)", "sphere", **TD3),
            Arm("LN (TD3)", "layernorm", **TD3),
            Arm("SPHERE + LN (TD3)", "sphere+layernorm", **TD3),
        ),
        layernorm,
    ),
    "td3-bc": Experiment(
        TITLES["td3-bc"],
        "tab:stationary-longer-horizon",
        (
            Arm("Top-K MoE critic (TD3+BC)", actor="ppo", preset="metaworld-td3-bc"),
            Arm("SPHERE (TD3+BC)", "sphere", actor="ppo", preset="metaworld-td3-bc"),
        ),
        stationary,
    ),
    "longer-chain": Experiment(
        TITLES["longer-chain"],
        "tab:stationary-longer-horizon",
        (Arm("Top-K MoE", preset="metaworld-cw20"), Arm("SPHERE", "sphere", preset="metaworld-cw20")),
        chain,
    ),
}
