"""`sphere demo`: two methods, two seeds each, through two MetaWorld tasks on the real simulator, minutes on two cores.

A small Top-2 mixture of four experts learns one task after another and never starts over; half of the fleet has the
SPHERE penalty. Networks, episodes and step counts are far below the paper's, so this shows that the machinery works and
that the agents learn, not that one method is better. The table is computed from the records, for better or worse.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from sphere.presets import preset
from sphere.storage import run_directory
from sphere.training.loop import train
from sphere.training.settings import FleetConfig, Run

METHODS = {0.0: "Top-K", 0.1: "SPHERE"}

DEMO = preset("metaworld-demo")

Series = dict[float, list[list[dict]]]
"""rho -> run -> its evaluations in order."""


def evaluations(config: FleetConfig, directory: Path) -> Series:
    def events(run: Run) -> list[dict]:
        return [e for e in run_directory.read_events(directory / run.name) if "evaluation/success_at_end" in e]

    return {rho: [events(run) for run in config.runs if run.numbers["rho"] == rho] for rho in config.rho}


def table(config: FleetConfig, series: Series) -> str:
    """Success at the end of each task's own training and the first and last r_e(K), means over seeds."""
    names = [task.split("/")[1] for task in config.tasks]
    lines = [f"{'':<8}{'':<3}" + "".join(f"{name:>20}" for name in names) + f"{'r_e(K), first -> last':>26}"]
    for rho, runs in series.items():
        cells = []
        for index in range(len(names)):
            own = [[e["evaluation/success_at_end"] for e in run if e["task_index"] == index] for run in runs]
            first, last = (np.mean([values[i] for values in own]) for i in (0, -1))
            cells.append(f"{first:.2f} -> {last:.2f}")
        ranks = [np.mean([run[i]["heldout/ntk_rank"] for run in runs]) for i in (0, -1)]
        lines.append(
            f"{METHODS[rho]:<8}{'':<3}"
            + "".join(f"{cell:>20}" for cell in cells)
            + f"{f'{ranks[0]:.2f} -> {ranks[1]:.2f}':>26}"
        )
    return "\n".join(lines)


def figure(config: FleetConfig, series: Series, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    # Okabe and Ito's palette: told apart by colour-blind readers too
    colours = dict(zip(config.rho, ("#0072B2", "#D55E00"), strict=True))
    drawing, axes = pyplot.subplots(2, 1, figsize=(8, 5.5), sharex=True, layout="constrained")
    shown = {"evaluation/success_at_end": "success", "heldout/ntk_rank": "$r_e(K)$, held-out states"}
    for axis, (name, ylabel) in zip(axes, shown.items(), strict=True):
        for rho, runs in series.items():
            for index in range(len(config.tasks)):  # a line ends with its task
                own = [[event for event in run if event["task_index"] == index] for run in runs]
                steps = np.array([event["step"] for event in own[0]]) / 1e3
                values = np.array([[event[name] for event in run] for run in own])
                for one in values:
                    axis.plot(steps, one, color=colours[rho], alpha=0.3, linewidth=1)
                label = METHODS[rho] if index == 0 else None
                axis.plot(steps, values.mean(axis=0), color=colours[rho], linewidth=2, label=label)
        length = config.task_steps / 1e3
        for index, task in enumerate(config.tasks):
            axis.axvline(index * length, color="0.8", linewidth=1, zorder=0)
            if axis is axes[0]:
                axis.text((index + 0.5) * length, 1.06, task.split("/")[1], ha="center")
        axis.set_ylabel(ylabel)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(-0.03, 1.03)
    axes[0].legend(frameon=False, loc="lower right")
    axes[1].set_xlabel("environment steps per run, thousands (thin: single seeds)")
    drawing.savefig(path, dpi=150)
    pyplot.close(drawing)


def free_place(wanted: Path) -> Path:
    """An earlier demo stays: the next one goes beside it."""
    number, out = 1, wanted
    while out.exists():
        number += 1
        out = wanted.with_name(f"{wanted.name}-{number}")
    return out


@dataclass(frozen=True)
class Demo:
    """Four small agents, with and without the penalty, through two MetaWorld tasks: minutes on two cores."""

    out: Path | None = None
    """Default: runs/demo, or the first of runs/demo-2, runs/demo-3, ... that is free."""


def demo(arguments: list[str]) -> None:
    options = tyro.cli(Demo, prog="sphere demo", args=arguments)
    out = options.out or free_place(Path("runs/demo"))
    runs, tasks = len(DEMO.runs), ", ".join(task.split("/")[1] for task in DEMO.tasks)
    print(f"{runs} runs (Top-K and SPHERE, {len(DEMO.seeds)} seeds each), one fleet, through {tasks}")
    print(f"{DEMO.steps_per_task:,} steps of MetaWorld per task and run; a few minutes on two cores\n", flush=True)
    started = time.monotonic()
    train(DEMO, out)
    elapsed = time.monotonic() - started
    series = evaluations(DEMO, out)
    steps = runs * len(DEMO.tasks) * DEMO.task_steps
    print("\nsuccess on each task, first evaluation -> end of its training (means over seeds)\n")
    print(table(DEMO, series))
    figure(DEMO, series, out / "demo.png")
    print(f"\n{steps:,} steps in {elapsed:.0f} s: {steps / elapsed:,.0f} per second, compiling and evaluation included")
    print(f"figure: {out / 'demo.png'}   records: sphere show {out}")
