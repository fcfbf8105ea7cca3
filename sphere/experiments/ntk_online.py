"""r_e(K) on states of the last rollout over HumanoidBench, with and without SPHERE."""

from sphere.experiments.method_tables import PAIR, methods, over_training

experiment = over_training(
    "r_e(K) on states of the last rollout over training, humanoidbench, CRL",
    "fig:entk-onlinestates",
    lambda: methods("humanoidbench-crl", PAIR),
    ("online/ntk_rank",),
)
