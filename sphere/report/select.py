"""Scores from runs: which episodes count for what. A run that has not got there yet is left out by name."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from sphere.report.run import KINDS, Run
from sphere.report.scores import Scores

Success = Literal["at-end", "once"]
"""Success at the last step of an episode, as the released code counts it, or at any step."""


class Selected(NamedTuple):
    scores: Scores | None
    """None if no run has all of it."""
    left_out: tuple[str, ...]
    """Runs that do not have all tasks yet."""


def own_scores(runs: Sequence[Run], tasks: Sequence[str] | None = None, success: Success = "at-end") -> Selected:
    """Success on each task right after its own training: what the paper's tables show."""
    return _collect(runs, tasks, lambda run, task: own_episodes(run, task, success))


def final_scores(runs: Sequence[Run], tasks: Sequence[str] | None = None, success: Success = "at-end") -> Selected:
    """Success of the final policy on each task."""
    return _collect(runs, tasks, lambda run, task: _episodes(run, task, "final", success, None))


def segment_scores(runs: Sequence[Run], tasks: Sequence[str] | None = None, success: Success = "at-end") -> Selected:
    """The mean success of each evaluation in a task's own segment, one entry each: their mean is Continual World's AUC."""

    def evaluations(run: Run, task: str) -> np.ndarray:
        index, steps = run.tasks.index(task), np.array([], np.int64)
        if run.steps >= run.task_steps * (index + 1):
            steps = run.curve.step[run.curve.task == index]
        means = [np.mean(_episodes(run, task, "evaluation", success, step)) for step in steps]
        return np.array(means, float)

    return _collect(runs, tasks, evaluations)


def own_episodes(run: Run, task: str, success: Success = "at-end") -> np.ndarray:
    """Of the evaluation at the end of the task's training; empty while it is not over."""
    end = run.task_steps * (run.tasks.index(task) + 1)
    return _episodes(run, task, "evaluation", success, end)


def after_task(run: Run, task: str, boundary: int, success: Success = "at-end") -> float:
    """Mean success on `task` when training on task number `boundary` was over; NaN if it was not evaluated then."""
    step = run.task_steps * (boundary + 1)
    kind = "final" if boundary == len(run.tasks) - 1 else "retention"
    found = _episodes(run, task, kind, success, step)
    if not found.size and run.tasks.index(task) == boundary:
        found = own_episodes(run, task, success)
    return float(found.mean()) if found.size else float("nan")


def _episodes(run: Run, task: str, kind: str, success: Success, step: int | np.integer | None) -> np.ndarray:
    episodes = run.episodes
    chosen = (episodes.task == run.tasks.index(task)) & (episodes.kind == KINDS.index(kind))
    if step is not None:
        chosen &= episodes.step == step
    return (episodes.success_at_end if success == "at-end" else episodes.success_once)[chosen]


def _collect(runs: Sequence[Run], tasks: Sequence[str] | None, episodes: Callable[[Run, str], np.ndarray]) -> Selected:
    wanted = tuple(tasks) if tasks is not None else runs[0].tasks if runs else ()
    records, left_out = {}, []
    for run in runs:
        found = {task: episodes(run, task) for task in wanted if task in run.tasks}
        if len(found) < len(wanted) or not all(values.size for values in found.values()):
            left_out.append(run.name)
        else:
            records[run.name, run.seed] = found
    return Selected(Scores.of(records) if records else None, tuple(left_out))
