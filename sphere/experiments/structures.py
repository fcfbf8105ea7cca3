"""Other mixtures, with and without SPHERE."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_columns

ACTORS = {"Dense-MoE": "dense-moe", "DS-MoE": "ds-moe", "SoftMoE": "soft-moe"}
METHODS = {"w/o SPHERE": "none", "w/ SPHERE": "sphere"}

experiment = success_columns(
    "MoE structures, HumanoidBench, CRL",
    "tab:humanoidbench-structure-agnostic",
    lambda row, column: cell(f"{row}, {column}", "humanoidbench-crl", METHODS[column], ACTORS[row]),
)
