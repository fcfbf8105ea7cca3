"""`sphere demo`: two methods, two seeds each, through two MetaWorld tasks on the real simulator, minutes on two cores.

A small Top-2 mixture of four experts learns one task after another and never starts over; half of the fleet has the
SPHERE penalty. Networks, episodes and step counts are far below the paper's, so this shows that the machinery works and
that the agents learn, not that one method is better. The table is computed from the records, for better or worse.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from sphere.errors import UserError
from sphere.launch.jobs import Job, work
from sphere.presets import preset
from sphere.storage.fleet_directory import read_fleet
from sphere.storage.reader import Curve, read_run
from sphere.storage.validate import Unreadable
from sphere.training.loop import Interrupted
from sphere.training.progress import command
from sphere.training.settings import FleetConfig, RunSettings, from_json

METHODS = {0.0: "Top-K", 0.1: "SPHERE"}

DEMO = preset("metaworld-demo")

SUCCESS, RANK = "evaluation/success_at_end", "heldout/ntk_rank"

Series = dict[float, list[Curve]]
"""rho -> run -> its evaluations in order."""


def evaluations(config: FleetConfig, directory: Path, notes: list[str]) -> Series:
    """As the one reader of records takes them; notes say what is wrong with them."""

    def curve(run: RunSettings) -> Curve:
        try:
            found = read_run(directory / run.name, notes).curve
        except Unreadable as error:
            raise UserError(f"{directory / run.name} cannot be read: {error}") from None
        if set(range(len(config.tasks))) - set(found.task.tolist()) or not {SUCCESS, RANK} <= set(found.values):
            raise UserError(f"{directory / run.name} lacks evaluations of a finished demo; train another one")
        return found

    return {rho: [curve(run) for run in config.runs if run.numbers["rho"] == rho] for rho in config.rho}


def table(config: FleetConfig, series: Series) -> str:
    """Success at the end of each task's own training and the first and last r_e(K), means over seeds."""
    names = [task.split("/")[1] for task in config.tasks]
    lines = [f"{'':<8}{'':<3}" + "".join(f"{name:>20}" for name in names) + f"{'r_e(K), first -> last':>26}"]
    for rho, runs in series.items():
        cells = []
        for index in range(len(names)):
            own = [run.values[SUCCESS][run.task == index] for run in runs]
            first, last = (np.mean([values[i] for values in own]) for i in (0, -1))
            cells.append(f"{first:.2f} -> {last:.2f}")
        ranks = [np.mean([run.values[RANK][i] for run in runs]) for i in (0, -1)]
        lines.append(
            f"{METHODS[rho]:<8}{'':<3}"
            + "".join(f"{cell:>20}" for cell in cells)
            + f"{f'{ranks[0]:.2f} -> {ranks[1]:.2f}':>26}"
        )
    return "\n".join(lines)


TITLE = "SPHERE demo: one agent per seed learns two MetaWorld tasks, one after the other"
CAUTION = (
    "Bold: mean of two seeds; thin: single seeds. Small networks, {steps:,} steps per task: this shows that agents "
    "learn.\nIt does not show which method is better: that takes more seeds, tasks and steps (docs/results/index.md)."
)
PANELS = {
    SUCCESS: ("success on the task in training (higher is better)", "share of episodes"),
    RANK: (
        "$r_e(K)$: in how many directions an update can move the policy (higher: more plastic)",
        "directions",
    ),
}


def figure(config: FleetConfig, series: Series, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    # Okabe and Ito's palette: told apart by colour-blind readers too
    colours = dict(zip(config.rho, ("#0072B2", "#D55E00"), strict=True))
    drawing, axes = pyplot.subplots(2, 1, figsize=(8, 6.4), sharex=True, layout="constrained")
    for axis, (name, (title, unit)) in zip(axes, PANELS.items(), strict=True):
        for rho, runs in series.items():
            for index in range(len(config.tasks)):  # a line ends with its task
                steps = runs[0].step[runs[0].task == index] / 1e3
                values = np.array([run.values[name][run.task == index] for run in runs])
                for one in values:
                    axis.plot(steps, one, color=colours[rho], alpha=0.3, linewidth=1)
                label = METHODS[rho] if index == 0 else None
                axis.plot(steps, values.mean(axis=0), color=colours[rho], linewidth=2, label=label)
        axis.set_title(title, loc="left", fontsize=10, pad=22 if axis is axes[0] else 6)
        axis.set_ylabel(unit)
        axis.spines[["top", "right"]].set_visible(False)
        _tasks(axis, config, names=axis is axes[0])
    axes[0].set_ylim(-0.03, 1.03)
    axes[1].set_xlabel("environment steps per run, thousands")
    drawing.suptitle(TITLE, fontsize=12, x=0.01, ha="left")
    axes[0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1.01, 1.07), ncols=2, borderaxespad=0)
    drawing.supxlabel(CAUTION.format(steps=config.steps_per_task), fontsize=8.5, x=0.01, ha="left", color="0.3")
    drawing.savefig(path, dpi=150)
    pyplot.close(drawing)


def _tasks(axis: Any, config: FleetConfig, names: bool) -> None:
    length = config.task_steps / 1e3
    for index, task in enumerate(config.tasks):
        axis.axvline(index * length, color="0.8", linewidth=1, zorder=0)
        if names:
            axis.text((index + 0.5) * length, 1.06, task.split("/")[1], ha="center", color="0.3", fontsize=9)


def is_demo(directory: Path) -> bool:
    """Whether the fleet in a directory is this one."""
    try:
        return from_json(read_fleet(directory)["settings"]) == DEMO
    except (OSError, ValueError, TypeError, LookupError):
        return False


def usable(out: Path) -> bool:
    """Nothing is there, or a demo, finished or not. A lock alone was left by one that was ended as it began."""
    return not out.exists() or is_demo(out) or (out.is_dir() and {path.name for path in out.iterdir()} <= {"lock"})


def place(wanted: Path) -> Path:
    """Where a demo goes: on with the one that is there; beside anything else."""
    number, out = 1, wanted
    while not usable(out):
        number += 1
        out = wanted.with_name(f"{wanted.name}-{number}")
    return out


def results(out: Path) -> str:
    """Table and figure of a finished demo, from its records."""
    notes: list[str] = []
    series = evaluations(DEMO, out, notes)
    for note in notes:
        print(f"sphere: {note}", file=sys.stderr)
    figure(DEMO, series, out / "demo.png")
    return "\n".join(
        [
            "\nsuccess on each task, first evaluation -> end of its training (means over seeds)\n",
            table(DEMO, series),
            "\nTwo seeds show that agents learn, not which method is better.",
            f"figure: {out / 'demo.png'}",
            f"page with all curves: {command('report', out, '-o', f'{out}-report')}",
        ]
    )


@dataclass(frozen=True)
class Demo:
    """Four small agents, with and without the penalty, through two MetaWorld tasks: minutes on two cores. Called again
    it continues where it was stopped, or shows what came out."""

    out: Path | None = None
    """Default: runs/demo; beside it (runs/demo-2, ...) if something else is there."""


def demo(arguments: list[str]) -> None:
    options = tyro.cli(Demo, prog="sphere demo", args=arguments)
    out = options.out or place(Path("runs/demo"))
    job = Job(DEMO, out)
    runs, tasks = len(DEMO.runs), ", ".join(task.split("/")[1] for task in DEMO.tasks)
    print(f"{runs} runs (Top-K and SPHERE, {len(DEMO.seeds)} seeds each), one fleet, through {tasks}")
    if not usable(out):
        raise UserError(f"{out} is not a demo; choose another --out")
    again = command("demo", *(["--out", options.out] if options.out else []))
    if job.finished:
        print(f"already finished, in {out}; to train another: {command('demo', '--out', f'{out}-again')}")
    else:
        begun = "" if job.state == "not started" else f" Continuing {out}, {job.state}."
        print(f"{DEMO.steps_per_task:,} steps of MetaWorld per task and run; a few minutes on two cores.{begun}\n")
        _train(job, again)
    print(results(out))


def _train(job: Job, again: str) -> None:
    fresh, started = job.state == "not started", time.monotonic()
    try:
        work(job)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped.at}; continue with: {again}") from None
    elapsed = time.monotonic() - started
    if fresh:
        speed = f"{job.steps / elapsed:,.0f} per second, compiling and evaluation included"
        print(f"\n{job.steps:,} steps in {elapsed:.0f} s: {speed}")
