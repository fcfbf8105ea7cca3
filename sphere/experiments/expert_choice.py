"""Experts that choose their states, with and without SPHERE."""

from sphere.study.cells import cell
from sphere.study.shown import success_rows

experiment = success_rows(
    "Expert-choice routing, HumanoidBench, CRL",
    "tab:expert-choice-routing",
    lambda: [
        cell("Expert-choice routing", "humanoidbench-crl", "none", "expert-choice"),
        cell("Expert-choice routing + SPHERE", "humanoidbench-crl", "sphere", "expert-choice"),
    ],
)
