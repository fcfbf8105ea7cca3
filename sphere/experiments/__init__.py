"""The tables and figures of the paper: which runs each of them needs, and how it follows from their records.

Experiments of one kind share a module. Each module has `EXPERIMENTS`, a dictionary from the name on the command line to
an `Experiment`; those that differ in a row are rows of one dictionary.
"""

import importlib
from functools import cache

from sphere.errors import unknown
from sphere.experiments.experiment import Experiment

MODULES = (
    *("ablations", "by_method", "correlations", "features", "off_policy", "over_training", "pixels", "rho"),
    *("runtime", "streams"),
)


@cache
def registry() -> dict[str, Experiment]:
    """All experiments by name, in alphabetical order. Their modules are imported by the first call."""
    found = [importlib.import_module(f"{__name__}.{module}").EXPERIMENTS for module in MODULES]
    return dict(sorted(item for experiments in found for item in experiments.items()))


def find(name: str) -> Experiment:
    if name not in registry():
        raise unknown("experiment", name, registry())
    return registry()[name]
