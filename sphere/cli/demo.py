"""`make demo`: two methods, two seeds each, through two MetaWorld tasks on the real simulator, in minutes on two cores.

A small Top-2 mixture of four experts learns one task after another and never starts anew; half of the fleet has the SPHERE
penalty. Networks, episodes and step counts are far below the paper's, so this shows that the machinery works and that the
agents learn, not that one method is better. The table is computed from the records, for better or worse.
"""

import argparse
import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from sphere.presets import preset
from sphere.storage import run_directory
from sphere.training.loop import Interrupted, train
from sphere.training.settings import HOW, FleetConfig, rebuild, run_name

METHODS = {0.0: "Top-K", 0.1: "SPHERE"}

DEMO = preset("metaworld-demo")

Series = dict[float, list[list[dict]]]
"""rho -> run -> its evaluations in order."""


def evaluations(config: FleetConfig, directory: Path) -> Series:
    def events(seed: int, rho: float) -> list[dict]:
        return [
            e for e in run_directory.read_events(directory / run_name(seed, rho)) if "evaluation/success_at_end" in e
        ]

    return {rho: [events(seed, rho) for seed in config.seeds] for rho in config.rho}


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
        length = config.iterations_per_task * config.iteration_steps / 1e3
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


def make_room(out: Path) -> None:
    """An earlier demo goes; whatever else is there stays, also a demo that is running."""
    if not out.exists() or all(path.name == "lock" for path in out.iterdir()):
        return
    if not (out / "fleet.json").exists():
        raise FileExistsError(f"{out} holds something else; choose another --out")
    with run_directory.lock_directory(out):
        try:
            there = rebuild(FleetConfig, json.loads((out / "fleet.json").read_text()))
        except (ValueError, TypeError, AttributeError):
            there = None
        same = {name: getattr(DEMO, name) for name in HOW}
        if not isinstance(there, FleetConfig) or dataclasses.replace(there, **same) != DEMO:
            raise FileExistsError(f"{out} holds another fleet; remove it, or choose another --out")
        shutil.rmtree(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="an earlier demo there is replaced")
    out = parser.parse_args().out
    try:
        make_room(out)
    except (RuntimeError, OSError) as error:
        sys.exit(str(error))
    runs, tasks = len(DEMO.runs), ", ".join(task.split("/")[1] for task in DEMO.tasks)
    print(f"{runs} runs (Top-K and SPHERE, {len(DEMO.seeds)} seeds each), one fleet, through {tasks}")
    print(f"{DEMO.steps_per_task:,} steps of MetaWorld per task and run; a few minutes on two cores\n", flush=True)
    started = time.monotonic()
    try:
        train(DEMO, out)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)  # as all that Ctrl-C ends
    elapsed = time.monotonic() - started
    series = evaluations(DEMO, out)
    steps = runs * len(DEMO.tasks) * DEMO.iterations_per_task * DEMO.iteration_steps
    print("\nsuccess on each task, first evaluation -> end of its training (means over seeds)\n")
    print(table(DEMO, series))
    figure(DEMO, series, out / "demo.png")
    print(f"\n{steps:,} steps in {elapsed:.0f} s: {steps / elapsed:,.0f} per second, compiling and evaluation included")
    print(f"figure: {out / 'demo.png'}   records: sphere show {out}")


if __name__ == "__main__":
    main()
