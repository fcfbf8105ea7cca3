"""From directories to the runs of a report: named, each counted once, and tasks that were trained apart put together.

Tasks trained from scratch do not depend on each other and may be trained anywhere, at any time: finished runs of one
method and one seed on different tasks are one run in a report. Whatever is broken or foreign is named in a note.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sphere.report import paper
from sphere.report.idle import identical_runs, idle_methods
from sphere.report.names import tell_apart, visits
from sphere.report.run import Loaded, Run
from sphere.report.scores import own_episodes
from sphere.storage.provenance import RESUMED, amended
from sphere.storage.reader import Curve, EpisodeTable, RunContents, find_runs, read_run

Reader = Callable[[Path, list[str]], RunContents]


def load(paths: Iterable[Path], score: str | None = None, read: Reader = read_run) -> Loaded:
    """All runs at and below some paths, in the order of their names. `score`: a column of outcomes; else the
    record's. `read`: for records that were read before."""
    notes: list[str] = []
    runs: list[Run] = []
    wanted = [Path(path) for path in paths]
    for path in find_runs(wanted, notes):
        try:
            runs.append(_run(read(path, notes), notes))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            notes.append(f"{path} was skipped: {reason}")
    if not runs:
        told = "; ".join(notes) or "name a directory that sphere train wrote, or one above it"
        raise ValueError(f"no run found in {', '.join(map(str, wanted)) or 'nothing'}: {told}")
    if score is not None:
        runs = _scored_by(runs, score, notes)
    notes += identical_runs(runs)
    whole = join_pieces(_without_copies(_named(runs), notes), notes)
    return Loaded(tuple(sorted(whole, key=_order)), tuple(notes))


def _run(found: RunContents, notes: list[str]) -> Run:
    notes += idle_methods(found)
    return Run(
        path=found.path,
        name=found.path.name,
        method=found.config["label"],
        seed=found.config["seed"],
        tasks=visits(found.config["settings"]["tasks"]),
        score=found.config["score"],
        config=found.config,
        environment=found.environment,
        steps=found.steps,
        curve=found.curve,
        episodes=found.episodes,
    )


def _scored_by(runs: list[Run], score: str, notes: list[str]) -> list[Run]:
    """Runs by a column that the user names; one without it is left out."""
    known = dict.fromkeys(name for run in runs for name in run.episodes.columns)
    if score not in known:
        raise ValueError(f"no run has a score {score!r}; there are {', '.join(known)}")
    for run in runs:
        if score not in run.episodes.columns:
            notes.append(f"{run.path} was skipped: it has no {score}, only {', '.join(run.episodes.columns)}")
    return [replace(run, score=score) for run in runs if score in run.episodes.columns]


def _order(run: Run) -> tuple[str, str, int, str]:
    return run.protocol, run.method, run.seed, run.name


def _named(runs: list[Run]) -> list[Run]:
    """With methods and names; names are what tells paths apart. Methods of a suite are told apart among themselves."""
    methods: dict[int, str] = {}
    for suite in {run.suite for run in runs}:
        own = [run for run in runs if run.suite == suite]
        methods |= dict(zip(map(id, own), tell_apart([run.config for run in own]), strict=True))
    full = [run.path.resolve() for run in runs]
    common = Path(os.path.commonpath(full)) if len(full) > 1 else full[0].parent
    named = [
        replace(run, method=methods[id(run)], name=str(path.relative_to(common)))
        for run, path in zip(runs, full, strict=True)
    ]
    return sorted(named, key=_order)


def _without_copies(runs: list[Run], notes: list[str]) -> list[Run]:
    """A run that was copied, or trained twice with the same seed, is one sample and not two: the longest."""
    seen: dict[tuple, Run] = {}
    for run in runs:
        key = (run.tasks, run.steps_per_task, run.protocol, run.method, run.seed, run.score)
        if key not in seen:
            seen[key] = run
            continue
        kept, other = (run, seen[key]) if run.steps > seen[key].steps else (seen[key], run)
        seen[key] = kept
        notes.append(f"{other.path} has the settings and the seed ({run.seed}) of {kept.path}; they were counted once")
    return list(seen.values())


# Tasks trained apart

Places = Sequence[tuple[Run, int]]
"""For each task of the whole: the piece that has it, and the number it has there."""


def join_pieces(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Pieces put together, everything else as it is. What is left of pieces that overlap is noted.

    Only where it makes runs comparable: to the tasks of a whole run, or to those that all others have by now. Otherwise
    whoever is ahead would leave the comparison with the others.
    """
    pieces: dict[tuple[Any, ...], dict[tuple[str, int], list[Run]]] = {}
    rest = []
    for run in runs:
        if run.protocol == "rl" and run.finished and all(own_episodes(run, task).size for task in run.tasks):
            series = pieces.setdefault((run.suite, run.score, run.task_steps, run.steps_per_task), {})
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
                rest.append(_whole(chosen, orders.setdefault(_tasks(chosen), _task_order(chosen))))
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


def _task_order(pieces: Sequence[Run]) -> tuple[str, ...]:
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
        config={**first.config, "settings": {**first.settings, "tasks": list(order)}},
        environment=_environment(places),
        steps=first.task_steps * len(order),
        curve=_curve(places),
        episodes=_episodes(places),
    )


def _rows(part: Curve | EpisodeTable, number: int) -> np.ndarray:
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


def _episodes(places: Places) -> EpisodeTable:
    names = [name for name in places[0][0].episodes.columns if all(name in one.episodes.columns for one, _ in places)]
    parts = []
    for index, (piece, number) in enumerate(places):
        found, rows = piece.episodes, _rows(piece.episodes, number)
        parts.append(
            EpisodeTable(
                found.step[rows] + (index - number) * piece.task_steps,
                np.full(len(rows), index),
                found.kind[rows],
                {name: found.columns[name][rows] for name in names},
            )
        )
    step, task, kind = (np.concatenate([getattr(part, name) for part in parts]) for name in ("step", "task", "kind"))
    return EpisodeTable(
        step, task, kind, {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
    )


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
