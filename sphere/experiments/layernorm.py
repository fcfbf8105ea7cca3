"""SPHERE alone and together with LayerNorm."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_columns

METHODS = {"SPHERE only": "sphere", "SPHERE with LN": "sphere+layernorm"}

experiment = success_columns(
    "SPHERE and LayerNorm, HumanoidBench, CRL",
    "tab:ln-interaction",
    lambda row, column: cell(column, "humanoidbench-crl", METHODS[column]),
    rows=("HumanoidBench CRL with PPO",),
)
