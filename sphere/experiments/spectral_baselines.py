"""Other methods against the loss of plasticity: spectral normalisation and regularisation, ReDo."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_rows

METHODS = {
    "Top-K MoE": "none",
    "Spectral Normalization": "spectral-norm",
    "ReDo": "redo",
    "Spectral Regularization": "spectral-reg",
    "SPHERE": "sphere",
}

experiment = success_rows(
    "Spectral and plasticity baselines, HumanoidBench, CRL",
    "tab:spectral-plasticity-baselines",
    lambda: [cell(label, "humanoidbench-crl", method) for label, method in METHODS.items()],
)
