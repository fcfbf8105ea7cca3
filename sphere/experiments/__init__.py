"""One file per table or figure of the paper: which runs it needs, and how it follows from their records.

A file's name with - for _ is the experiment's name. It holds `experiment`, a `sphere.study.experiment.Experiment`; nothing
else is needed for `sphere experiment` to know it.
"""

import importlib
import pkgutil

from sphere.mistakes import nearest
from sphere.study.experiment import Experiment

NAMES = sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Experiment:
    if name not in NAMES:
        raise nearest("experiment", name, NAMES)
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").experiment
