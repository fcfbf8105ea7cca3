"""ReLU against tanh, with and without SPHERE."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_columns

ACTIVATIONS = {"ReLU": "relu", "Tanh": "tanh"}
METHODS = {"Top-K MoE": "none", "SPHERE": "sphere"}

experiment = success_columns(
    "Activation, HumanoidBench, CRL",
    "tab:humanoidbench-robustness",
    lambda row, column: cell(
        f"{column}, {row}", "humanoidbench-crl", METHODS[column], net={"activation": ACTIVATIONS[row]}
    ),
)
