"""Hours per task against the number of experts, with and without SPHERE."""

import numpy as np

from sphere.experiments.arms import Arm
from sphere.experiments.beside_paper import beside_paper
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.report.run import Run
from sphere.report.tables import MeanStd
from sphere.storage import run_directory

TITLE = "Hours per task against the number of experts, HumanoidBench"
SOURCE = "tab:humanoidbench-runtime"
EXPERTS = (10, 20, 40, 80, 160, 1000)
METHODS = {"Top-K MoE": "none", "SPHERE": "sphere"}
ADAPTIVE = 40
"""With more experts than this the paper adds the penalty as it is, without a coefficient by gradient norm."""


def arm(label: str, method: str, experts: int) -> Arm:
    fixed = method == "sphere" and experts > ADAPTIVE
    return Arm(
        f"{label}, E={experts}",
        method,
        rho=1.0 if fixed else None,
        net={"experts": experts},
        penalty={"coefficient": "fixed"} if fixed else {},
        tasks=1,
    )


def hours_per_task(run: Run) -> float:
    """The median time of an iteration times the iterations of a task, without compiling, evaluations and pauses."""
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
        label: {
            f"E={experts}": MeanStd(float(np.mean(times)))
            for experts in EXPERTS
            if (times := [hours_per_task(run) for run in found.runs(f"{label}, E={experts}")])
        }
        for label in METHODS
    }
    devices = {(run.environment.get("device") or {}).get("kind", "unknown") for run in found.loaded.runs}
    ours = ", ".join(sorted(map(str, devices)))
    note = f"Ours on {ours}, one run at a time, without evaluations; the paper's on one A100."
    return Results([beside_paper("runtime", TITLE, SOURCE, rows, note)])


ARMS = tuple(arm(label, method, experts) for label, method in METHODS.items() for experts in EXPERTS)
EXPERIMENTS = {"runtime": Experiment(TITLE, SOURCE, ARMS, results, seeds=1, together=False)}
