"""Tasks trained from scratch do not depend on each other and may be trained anywhere, at any time: finished runs of one method
and one seed on different tasks are one run in a report."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from sphere.report.run import Curve, Episodes, Run
from sphere.runs.provenance import RESUMED, amended

Places = Sequence[tuple[Run, int]]
"""For each task of the whole: the piece that has it, and the number it has there."""


def joined(runs: Sequence[Run]) -> list[Run]:
    """Pieces put together; everything else as it is."""
    alike: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        alone = () if run.protocol == "rl" and run.finished else (run.path,)
        key = (run.protocol, run.method, run.seed, run.task_steps, run.config["steps_per_task"], *alone)
        alike.setdefault(key, []).append(run)
    orders = {frozenset(run.tasks): run.tasks for run in runs}
    return [whole for pieces in alike.values() for whole in _whole(pieces, orders)]


def _whole(pieces: list[Run], orders: Mapping[frozenset[str], tuple[str, ...]]) -> list[Run]:
    tasks = [task for piece in pieces for task in piece.tasks]
    if len(pieces) == 1 or len(set(tasks)) < len(tasks):
        return pieces
    # as a run that has them all: others are compared with it
    order = orders.get(frozenset(tasks), tuple(tasks))
    places = [(piece, piece.tasks.index(task)) for task in order for piece in pieces if task in piece.tasks]
    first = pieces[0]
    return [
        replace(
            first,
            name=f"{first.name} and {len(pieces) - 1} more",
            tasks=order,
            config={**first.config, "tasks": list(order)},
            environment=_environment(places),
            steps=first.task_steps * len(order),
            curve=_curve(places),
            episodes=_episodes(places),
        )
    ]


def _rows(part: Curve | Episodes, number: int) -> np.ndarray:
    return np.flatnonzero(part.task == number)


def _curve(places: Places) -> Curve:
    names = sorted({name for piece, _ in places for name in piece.curve.values})
    parts = []
    for index, (piece, number) in enumerate(places):
        curve, rows = piece.curve, _rows(piece.curve, number)
        unknown = np.full(len(curve.step), np.nan)
        parts.append(
            Curve(
                curve.step[rows] + (index - number) * piece.task_steps,
                np.full(len(rows), index),
                curve.wall[rows],
                {name: curve.values.get(name, unknown)[rows] for name in names},
            )
        )
    step, task, wall = (np.concatenate([getattr(part, name) for part in parts]) for name in ("step", "task", "wall"))
    return Curve(step, task, wall, {name: np.concatenate([part.values[name] for part in parts]) for name in names})


def _episodes(places: Places) -> Episodes:
    columns: dict[str, list[np.ndarray]] = {field.name: [] for field in fields(Episodes)}
    for index, (piece, number) in enumerate(places):
        rows = _rows(piece.episodes, number)
        part = {name: getattr(piece.episodes, name)[rows] for name in columns}
        part["step"] = part["step"] + (index - number) * piece.task_steps
        part["task"] = np.full(len(rows), index)
        for name, column in part.items():
            columns[name].append(column)
    return Episodes(**{name: np.concatenate(parts) for name, parts in columns.items()})


def _environment(places: Places) -> dict[str, Any]:
    """As of a run that was resumed elsewhere: what is different, by the step from which on it is."""
    found: dict[str, Any] = {}
    for index, (piece, number) in enumerate(places):
        begin, end = number * piece.task_steps, (number + 1) * piece.task_steps
        now = {name: value for name, value in piece.environment.items() if name != RESUMED}
        changes = _changes(piece.environment)
        for at in sorted(at for at in changes if at <= begin):
            now |= changes[at]
        found = amended(found, index * piece.task_steps, now)
        for at in sorted(at for at in changes if begin < at < end):
            now |= changes[at]
            found = amended(found, index * piece.task_steps + at - begin, now)
    return found


def _changes(environment: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """By step; whatever else somebody wrote there is passed over."""
    noted = environment.get(RESUMED)
    items = noted.items() if isinstance(noted, Mapping) else ()
    return {int(at): change for at, change in items if at.isdecimal() and isinstance(change, Mapping)}
