"""Where SPHERE is applied and to what: all layers, each expert by itself, the gradient Gram instead of the feature Gram."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_rows

VARIANTS = {
    "All hidden expert layers": "all-layers",
    "Per-expert loss sum": "per-expert",
    "G_last Regularization": "gradient",
}

experiment = success_rows(
    "SPHERE's placement and instantiation, HumanoidBench, CRL",
    "tab:humanoidbench-sphere-ablation",
    lambda: [
        cell("w/o SPHERE", "humanoidbench-crl"),
        cell("w/ SPHERE", "humanoidbench-crl", "sphere"),
        *(cell(label, "humanoidbench-crl", "sphere", penalty={"variant": v}) for label, v in VARIANTS.items()),
    ],
)
