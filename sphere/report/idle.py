"""Methods that did nothing: a run that cannot be told from one without its method says nothing about it."""

from collections.abc import Sequence

import numpy as np

from sphere.report.run import Run
from sphere.storage.reader import RunContents

RESETTING = ("cbp", "redo")
"""Methods that give units new weights; train/replaced counts them."""
FELT = 0.2
"""Part of rho below which a penalty is not felt, as training warns."""


def idle_methods(found: RunContents) -> list[str]:
    """Sentences about a run whose method has reset no unit, or whose penalty was not felt."""
    notes = []
    replaced, felt, weight = (found.training[f"train/{name}"] for name in ("replaced", "felt", "coefficient"))
    idle = [name for name in found.config["method"].split("+") if name in RESETTING]
    if idle and replaced.size and not replaced.any():
        notes.append(f"{found.path}: {' and '.join(idle)} has reset no unit in any recorded iteration; it did nothing")
    rho = abs(float(found.config["numbers"].get("rho", 0.0)))
    if rho and felt.size == weight.size and weight.any():
        usual = float(np.nanmedian(felt))
        if usual < FELT * rho:
            notes.append(f"{found.path}: rho {rho:g} was felt as {usual:.2g} only; its penalty did next to nothing")
    return notes


def identical_runs(runs: Sequence[Run]) -> list[str]:
    """Sentences about runs of different methods whose evaluations are the same to the last digit, diagnostics
    included."""
    seen: dict[tuple, Run] = {}
    notes = []
    for run in runs:
        if not run.curve.step.size:
            continue
        numbers = tuple((name, array.tobytes()) for name, array in sorted(run.curve.values.items()))
        first = seen.setdefault((run.suite, run.protocol, run.seed, run.curve.step.tobytes(), numbers), run)
        if first.config["method"] != run.config["method"]:
            notes.append(
                f"{run.path} ({run.config['label']}) has the same numbers as {first.path} ({first.config['label']}): "
                "one of the two methods did nothing"
            )
    return notes
