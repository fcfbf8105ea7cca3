"""r_e(K) on held-out states and on those of the last rollout over MetaWorld, per architecture and with SPHERE."""

from sphere.experiments.method_tables import ARCHITECTURES, methods, over_training

experiment = over_training(
    "r_e(K) over training, held-out and rollout states, metaworld, CRL",
    "fig:humanoidbench-entk-erank-archs and fig:entk-onlinestates, for MetaWorld",
    lambda: methods("metaworld-crl", (*ARCHITECTURES, "SPHERE")),
    ("heldout/ntk_rank", "online/ntk_rank"),
)
