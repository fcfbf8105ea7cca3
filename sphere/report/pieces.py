"""Tasks trained from scratch do not depend on each other and may be trained anywhere, at any time: finished runs of one method
and one seed on different tasks are one run in a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from sphere.report import paper
from sphere.report.run import Curve, Episodes, Run
from sphere.report.select import own_episodes
from sphere.storage.provenance import RESUMED, amended

Places = Sequence[tuple[Run, int]]
"""For each task of the whole: the piece that has it, and the number it has there."""


def joined(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Pieces put together, everything else as it is. What is left of pieces that overlap is noted.

    Only where it makes runs comparable: to the tasks of a whole run, or to those that all others have by now. Otherwise
    whoever is ahead would leave the comparison with the others.
    """
    pieces: dict[tuple[Any, ...], dict[tuple[str, int], list[Run]]] = {}
    rest = []
    for run in runs:
        if run.protocol == "rl" and run.finished and all(own_episodes(run, task).size for task in run.tasks):
            series = pieces.setdefault((run.suite, run.task_steps, run.config["steps_per_task"]), {})
            rest += _add(series.setdefault((run.method, run.seed), []), run, notes)
        else:
            rest.append(run)
    orders = {frozenset(run.tasks): run.tasks for run in sorted(runs, key=lambda run: run.protocol, reverse=True)}
    for series in pieces.values():
        complete = {key for key, own in series.items() if len(own) > 1 and _tasks(own) in orders}
        common = _common([own for key, own in series.items() if key not in complete])
        for key, own in series.items():
            tasks = _tasks(own) if key in complete else common
            chosen = [run for run in own if tasks.issuperset(run.tasks)]
            if len(chosen) > 1:
                own = [run for run in own if not tasks.issuperset(run.tasks)]
                rest.append(_whole(chosen, orders.setdefault(_tasks(chosen), _order(chosen))))
            rest += own
    return rest


def _tasks(pieces: Iterable[Run]) -> frozenset[str]:
    return frozenset(task for run in pieces for task in run.tasks)


def _common(series: Sequence[Sequence[Run]]) -> frozenset[str]:
    """Tasks that all have; where pieces are put together, each of them belongs to it as a whole or not at all."""
    common = frozenset.intersection(*map(_tasks, series)) if series else frozenset()
    pieces = [run for own in series if len(own) > 1 for run in own]
    while torn := common & _tasks(run for run in pieces if not common.issuperset(run.tasks)):
        common -= torn
    return common


def _order(pieces: Sequence[Run]) -> tuple[str, ...]:
    """That of the paper's tables, if it has these tasks."""
    suite, tasks = pieces[0].suite, [task for run in pieces for task in run.tasks]
    known = [f"{suite}/{task}" for task in paper.tasks(suite)]
    return tuple(sorted(tasks, key=known.index) if set(known).issuperset(tasks) else tasks)


def _add(own: list[Run], run: Run, notes: list[str]) -> list[Run]:
    """Among the pieces of one method and seed; back comes one that has a task of theirs."""
    known = [task for piece in own for task in piece.tasks]
    again = [task for task in run.tasks if task in known]
    if not again:
        own.append(run)
        return []
    notes.append(f"{run.name} has {', '.join(again)} as other runs of its method and seed have; it stays by itself")
    return [run]


def _whole(pieces: list[Run], order: tuple[str, ...]) -> Run:
    places = [(piece, piece.tasks.index(task)) for task in order for piece in pieces if task in piece.tasks]
    first = pieces[0]
    return replace(
        first,
        name=f"{first.name} and {len(pieces) - 1} more",
        tasks=order,
        config={**first.config, "tasks": list(order)},
        environment=_environment(places),
        steps=first.task_steps * len(order),
        curve=_curve(places),
        episodes=_episodes(places),
    )


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
        now = now or dict.fromkeys(found)  # lost: not known, rather than as before
        found = amended(found, index * piece.task_steps, now)
        for at in sorted(at for at in changes if begin < at < end):
            now |= changes[at]
            found = amended(found, index * piece.task_steps + at - begin, now)
    return found


def _changes(environment: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """By step; whatever else somebody wrote there is passed over."""
    noted = environment.get(RESUMED)
    items = noted.items() if isinstance(noted, Mapping) else ()
    return {
        int(at): {name: value for name, value in change.items() if name != RESUMED}
        for at, change in items
        if at.isdecimal() and len(at) < 19 and isinstance(change, Mapping)
    }
