"""Experts that choose their states, with and without SPHERE."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_rows

experiment = success_rows(
    "Expert-choice routing, HumanoidBench, CRL",
    "tab:expert-choice-routing",
    lambda: [
        cell("Expert-choice routing", "humanoidbench-crl", "none", "expert-choice"),
        cell("Expert-choice routing + SPHERE", "humanoidbench-crl", "sphere", "expert-choice"),
    ],
)
