"""Looking at a fleet from its directory: `sphere show` and `sphere eval`."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from sphere import envs
from sphere.errors import unknown
from sphere.storage import run_directory
from sphere.training.fleet import Fleet
from sphere.training.progress import plural
from sphere.training.settings import FleetConfig, run_name


def _differences(settings: Any, default: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value, usual = getattr(settings, field.name), getattr(default, field.name)
        if dataclasses.is_dataclass(value) and type(value) is type(usual):
            found |= _differences(value, usual, f"{prefix}{field.name}.")
        elif value != usual:
            found[prefix + field.name] = value
    return found


def show_text(config: FleetConfig, directory: Path) -> str:
    counts = plural(len(config.runs), "run"), config.protocol, plural(len(config.tasks), "task")
    lines = [f"{directory}: {', '.join(counts)}", ""]
    for name, value in _differences(config, FleetConfig()).items():
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
        lines.append(f"  {name:<28} {shown}")
    lines += ["", f"{'run':<18} {'step':>12}  {'task':<24} {'success':>8} {'return':>10} {'r_e(K)':>8}"]
    for run in config.runs:
        path = directory / run_name(*run)
        try:
            events = run_directory.read_events(path)
        except (OSError, ValueError) as error:
            lines.append(f"{run_name(*run):<18} unreadable: {error}")
            continue
        last = next((event for event in reversed(events) if "evaluation/success_at_end" in event), None)
        if last is None:
            lines.append(f"{run_name(*run):<18} {events[-1]['step'] if events else 0:>12,}  not evaluated yet")
            continue
        lines.append(
            f"{run_name(*run):<18} {last['step']:>12,}  {last['task']:<24} {last['evaluation/success_at_end']:>8.2f} "
            f"{last['evaluation/return']:>10.2f} {last.get('heldout/ntk_rank', float('nan')):>8.2f}"
        )
    return "\n".join(lines)


def evaluate_table(config: FleetConfig, directory: Path, episodes: int, tasks: tuple[str, ...]) -> str:
    suite = config.tasks[0].split("/")[0]
    wanted = [task if "/" in task else f"{suite}/{task}" for task in tasks]
    known = [f"{suite}/{task}" for task in envs.tasks(suite)]
    if strange := [task for task in wanted if task not in known]:
        raise unknown("task", strange[0], known)
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, episodes=episodes))
    fleet = Fleet(config, directory)
    try:
        fleet.resume()
        names = [run_name(*run) for run in config.runs]
        told = plural(episodes, "deterministic episode")
        lines = [f"{told}, after {fleet.steps:,} steps; success at end (any step)", ""]
        if config.protocol == "rl":
            lines.insert(
                1, f"every task from scratch: these are the policies of {fleet.task}, those of others are gone"
            )
        wanted = wanted or (list(config.tasks) if config.protocol == "crl" else [fleet.task])
        lines.append(f"{'task':<28}" + "".join(f"{name:>18}" for name in names))
        for task in wanted:
            found = fleet.evaluate(task)
            cells = []
            for run in range(len(names)):
                mine = found.run == run
                cells.append(f"{np.mean(found.success_at_end[mine]):.2f} ({np.mean(found.success_once[mine]):.2f})")
            lines.append(f"{task:<28}" + "".join(f"{cell:>18}" for cell in cells))
        return "\n".join(lines)
    finally:
        fleet.close()
