"""r_e(K) on held-out states over HumanoidBench, one agent through all tasks, per architecture and with SPHERE."""

from sphere.experiments.method_tables import ARCHITECTURES, methods, over_training

LABELS = (*ARCHITECTURES, "SPHERE")

experiment = over_training(
    "r_e(K) on held-out states over training, humanoidbench, CRL",
    "fig:humanoidbench-entk-erank-archs",
    lambda: methods("humanoidbench-crl", LABELS),
    ("heldout/ntk_rank",),
)
