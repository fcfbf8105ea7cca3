"""Hours per task against the number of experts, with and without SPHERE."""

import dataclasses

import numpy as np

from sphere.experiments.cells import Cell, cell
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.tables import beside_paper
from sphere.report.run import Run
from sphere.report.tables import Measured
from sphere.storage import run_directory

SOURCE = "tab:humanoidbench-runtime"
EXPERTS = (10, 20, 40, 80, 160, 1000)
METHODS = {"Top-K MoE": "none", "SPHERE": "sphere"}
ADAPTIVE = 40
"""With more experts than this the paper adds the penalty as it is, without a coefficient by gradient norm."""
TITLE = "Hours per task against the number of experts, HumanoidBench"


def cells() -> list[Cell]:
    found = []
    for method, name in METHODS.items():
        for experts in EXPERTS:
            plain = {"penalty": {"coefficient": "fixed"}, "rho": 1.0} if name == "sphere" and experts > ADAPTIVE else {}
            one = cell(f"{method}, E={experts}", "humanoidbench-crl", name, net={"experts": experts}, **plain)
            found.append(Cell(one.label, dataclasses.replace(one.config, tasks=one.config.tasks[:1])))
    return found


def hours_per_task(run: Run) -> float:
    """The median time between two iterations, times the iterations of a task: compiling, evaluations and pauses left out."""
    events = [
        event for event in run_directory.read_events(run.path) if any(name.startswith("train/") for name in event)
    ]
    seconds = np.diff([event["wall"] for event in events])
    steps = np.diff([event["step"] for event in events])
    if not len(seconds):
        return float("nan")
    return float(np.median(seconds) / steps[0] * run.task_steps / 3600)


def results(found: Found) -> Results:
    rows = {
        method: {
            f"E={experts}": Measured(float(np.mean(times)))
            for experts in EXPERTS
            if (times := [hours_per_task(run) for run in found.runs(f"{method}, E={experts}")])
        }
        for method in METHODS
    }
    device = {(run.environment.get("device") or {}).get("kind", "unknown") for run in found.loaded.runs}
    note = f"Ours on {', '.join(sorted(map(str, device)))}, one run at a time, without evaluations; the paper's on one A100."
    return Results([beside_paper("runtime", TITLE, SOURCE, rows, note)])


experiment = Experiment(TITLE, SOURCE, cells, results, seeds=1, together=False)
