"""SPHERE's design: the target scale, weighting, what is regularised, and forms with the gradient Gram."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_rows

VARIANTS = {
    "Fixed alpha=1": {"variant": "fixed-scale", "target_scale": 1.0},
    "Fixed alpha=2": {"variant": "fixed-scale", "target_scale": 2.0},
    "Fixed alpha=5": {"variant": "fixed-scale", "target_scale": 5.0},
    "Unweighted feature Gram": {"variant": "unweighted"},
    "Joint feature Gram across layers": {"variant": "joint-layers"},
    "Gate-only regularization": {"variant": "gate"},
    "Layer-mixture entropy term": {"variant": "layer-entropy"},
    "On A_last and G_last": {"variant": "feature+gradient"},
    "On A_last kron G_last": {"variant": "kronecker"},
    "On A_last * G_last": {"variant": "khatri-rao"},
}

experiment = success_rows(
    "SPHERE's design, HumanoidBench, CRL",
    "tab:sphere-design-ablations-extra",
    lambda: [
        cell("w/o SPHERE", "humanoidbench-crl"),
        cell("w/ SPHERE", "humanoidbench-crl", "sphere"),
        *(cell(label, "humanoidbench-crl", "sphere", penalty=changes) for label, changes in VARIANTS.items()),
    ],
)
