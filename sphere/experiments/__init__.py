"""One file per table or figure of the paper: which runs it needs, and how it follows from their records.

A file's name with - for _ is the experiment's name. It holds `experiment`, an `Experiment`.
"""

import importlib
import pkgutil

from sphere.errors import unknown
from sphere.experiments.experiment import Experiment

SHARED = ("cells", "experiment", "method_tables", "networks", "output", "tables")
NAMES = sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__) if module.name not in SHARED)


def find(name: str) -> Experiment:
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").experiment
