"""Four, ten and sixteen experts, two of them per state, with and without SPHERE."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_columns

METHODS = {"Top-K MoE": "none", "SPHERE": "sphere"}

experiment = success_columns(
    "Number of experts, HumanoidBench, CRL",
    "tab:expert-count-sweep",
    lambda row, column: cell(f"{column}, E={row}", "humanoidbench-crl", METHODS[column], net={"experts": int(row)}),
)
