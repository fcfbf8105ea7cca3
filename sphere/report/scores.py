"""Scores by run and task, and which episodes of a run they are made of.

Every statistic takes `Scores`, never an array, so there is no axis to confuse. Episodes are averaged inside their run
and task when scores are made: a run is one sample, however many episodes it was evaluated on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sphere.report.run import Run

Outcomes = Sequence[float] | np.ndarray
"""A number per episode."""
Records = Mapping[tuple[str, int], Mapping[str, Outcomes]]
"""(run, seed) -> task -> outcomes."""


@dataclass(frozen=True)
class Scores:
    """One method's runs on the same tasks. Made by `Scores.of`, which checks the labels."""

    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    table: np.ndarray
    """Means over episodes, [run, task]; read-only."""
    episodes: np.ndarray
    """How many episodes each mean is of."""

    @classmethod
    def of(cls, records: Records) -> "Scores":
        """Runs may come in any order and with different numbers of episodes, but all on the same tasks."""
        if not records:
            raise ValueError("no runs to score; give (run, seed) -> task -> episodes")
        keys = sorted(records, key=lambda key: (key[1], key[0]))
        names = [name for name, _ in keys]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} came twice; a run counts once")
        tasks = tuple(next(iter(records.values())))
        if not tasks:
            raise ValueError(f"{names[0]} has no tasks; give task -> episodes for every run")
        rows, counts = [], []
        for key in keys:
            row = _checked(key[0], records[key], tasks)
            rows.append([np.mean(row[task]) for task in tasks])
            counts.append([len(row[task]) for task in tasks])
        table, episodes = np.array(rows, float), np.array(counts, int)
        table.flags.writeable = episodes.flags.writeable = False
        return cls(tuple(names), tuple(seed for _, seed in keys), tasks, table, episodes)

    def by_run(self) -> np.ndarray:
        """Each run's average over tasks, in the order of `runs`."""
        return self.table.mean(axis=1)

    def of_task(self, task: str) -> np.ndarray:
        """Each run's score on one task, in the order of `runs`."""
        if task not in self.tasks:
            raise ValueError(f"no scores of {task}; there are {', '.join(self.tasks)}")
        return self.table[:, self.tasks.index(task)]


def _checked(run: str, tasks: Mapping[str, Outcomes], wanted: tuple[str, ...]) -> dict[str, np.ndarray]:
    missing, more = [t for t in wanted if t not in tasks], [t for t in tasks if t not in wanted]
    if missing or more:
        what = [f"has no {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(more)} too"] * bool(more)
        raise ValueError(f"{run} {' and '.join(what)}; score runs on the same tasks, or leave this one out")
    found = {}
    for task in wanted:
        values = np.asarray(tasks[task], float)
        if values.ndim != 1:
            raise ValueError(
                f"episodes of {run}, {task} have shape {values.shape}; wanted one row, a number per episode"
            )
        if not values.size:
            raise ValueError(f"{run} has no episodes of {task}; evaluate it, or leave it out")
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{run}, {task}: episode {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite")
        found[task] = values
    return found


def same_tasks(ours: Scores, theirs: Scores) -> np.ndarray:
    """`theirs` with its tasks in our order; refused where the tasks differ."""
    if set(ours.tasks) != set(theirs.tasks):
        apart = sorted(set(ours.tasks) ^ set(theirs.tasks))
        raise ValueError(f"only one side has {', '.join(apart)}; compare methods on the same tasks")
    return theirs.table[:, [theirs.tasks.index(task) for task in ours.tasks]]


# From runs


NOTHING = np.array([], np.int64)


class Selected(NamedTuple):
    scores: Scores | None
    """None if no run has all of it."""
    left_out: tuple[str, ...]
    """Runs that do not have all tasks yet."""


def own_scores(runs: Sequence[Run], tasks: Sequence[str] | None = None) -> Selected:
    """The score on each task right after its own training: what the paper's tables show."""
    return _collect(runs, tasks, own_episodes)


def final_scores(runs: Sequence[Run], tasks: Sequence[str] | None = None) -> Selected:
    """The score of the final policy on each task."""
    return _collect(runs, tasks, lambda run, task: _episodes(run, task, "final", None))


def segment_scores(runs: Sequence[Run], tasks: Sequence[str] | None = None) -> Selected:
    """The mean score of each evaluation in a task's own segment, one entry each: their mean is Continual World's
    AUC."""

    def evaluations(run: Run, task: str) -> np.ndarray:
        index, steps = run.tasks.index(task), np.array([], np.int64)
        if run.steps >= run.task_steps * (index + 1):
            steps = run.curve.step[run.curve.task == index]
        means = [np.mean(_episodes(run, task, "evaluation", step)) for step in steps]
        return np.array(means, float)

    return _collect(runs, tasks, evaluations)


def own_episodes(run: Run, task: str) -> np.ndarray:
    """Of the evaluation at the end of the task's training; empty while it is not over."""
    return _episodes(run, task, "evaluation", run.task_steps * (run.tasks.index(task) + 1))


def _episodes(run: Run, task: str, kind: str, step: int | np.integer | None) -> np.ndarray:
    """Their scores. A task of a run is a visit: its name stands for one place in the sequence."""
    episodes = run.episodes
    chosen = episodes.rows.get((run.tasks.index(task), kind), NOTHING)
    if step is not None:
        chosen = chosen[episodes.step[chosen] == step]
    return episodes.columns[run.score][chosen]


def _collect(runs: Sequence[Run], tasks: Sequence[str] | None, episodes: Callable[[Run, str], np.ndarray]) -> Selected:
    """Runs that have all of the tasks, with a finite score in each."""
    wanted = tuple(tasks) if tasks is not None else runs[0].tasks if runs else ()
    records, left_out = {}, []
    for run in runs:
        found = {task: episodes(run, task) for task in wanted if task in run.tasks}
        known = [values.size and np.isfinite(values).all() for values in found.values()]
        if len(found) < len(wanted) or not all(known):
            left_out.append(run.name)
        else:
            records[run.name, run.seed] = found
    return Selected(Scores.of(records) if records else None, tuple(left_out))
