"""SPHERE on dense networks, which are mixtures of one expert."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_columns

ACTORS = {"PPO": "ppo", "PPO(10x)": "ppo-10x"}
METHODS = {"w/o SPHERE": "none", "w/ SPHERE": "sphere"}

experiment = success_columns(
    "Dense backbones, HumanoidBench, CRL",
    "tab:humanoidbench-mlp-sphere",
    lambda row, column: cell(f"{row}, {column}", "humanoidbench-crl", METHODS[column], ACTORS[row]),
)
