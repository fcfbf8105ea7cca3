"""Scores by run, task and episode, and the statistics of them; definitions and sources in docs/report.md.

Every statistic takes `Scores`, never an array, so there is no axis to confuse. Episodes are averaged inside their run and
task when scores are made: a run is one sample, however many episodes it was evaluated on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Episodes = Sequence[float] | np.ndarray
Records = Mapping[tuple[str, int], Mapping[str, Episodes]]
"""(run, seed) -> task -> a number per episode."""
Numbers = np.ndarray | np.floating
"""A statistic of one table, or of each in a stack."""


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


def _checked(run: str, tasks: Mapping[str, Episodes], wanted: tuple[str, ...]) -> dict[str, np.ndarray]:
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


# Aggregates. Each also works on a stack [..., run, task], which is how the bootstrap calls it.


def mean_of(table: np.ndarray) -> Numbers:
    return table.mean(axis=(-2, -1))


def iqm_of(table: np.ndarray) -> Numbers:
    return _trimmed_mean(table.mean(axis=-1))


def pooled_iqm_of(table: np.ndarray) -> Numbers:
    return _trimmed_mean(table.reshape(*table.shape[:-2], -1))


def _trimmed_mean(values: np.ndarray) -> Numbers:
    """Mean of what is left when a quarter, rounded down, is cut from both ends (scipy's trim_mean)."""
    count = values.shape[-1]
    cut = count // 4
    return np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)


def mean_std(scores: Scores) -> tuple[float, float]:
    """Mean over runs of their averages over tasks, and the population standard deviation over runs.

    Population, because the paper's tables are: one success in five seeds is printed there as 0.20 +- 0.40. NaN for one run.
    """
    return float(scores.by_run().mean()), deviation(scores.by_run())


def deviation(values: np.ndarray) -> float:
    """Population standard deviation; of one value NaN, not 0: it says nothing about the next one."""
    return float(np.std(values)) if len(values) > 1 else float("nan")


def mean_of_task_deviations(scores: Scores) -> float:
    """What the paper prints behind +- of an average: the mean over tasks of the deviations over runs."""
    return float(np.mean([deviation(column) for column in scores.table.T]))


def iqm(scores: Scores, over: Literal["runs", "runs and tasks"] = "runs") -> float:
    """Interquartile mean, of the runs' averages (as in the paper) or of all runs on all tasks (as in rliable)."""
    return float(iqm_of(scores.table) if over == "runs" else pooled_iqm_of(scores.table))


def iqr(scores: Scores) -> float:
    """75th minus 25th percentile of the runs' averages; of one run NaN."""
    if len(scores.runs) == 1:
        return float("nan")
    low, high = np.percentile(scores.by_run(), [25, 75])
    return float(high - low)


def pairs_won(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[task, our run, their run]: 1 where ours is better, a half where they are equal."""
    first, second = ours.T[:, :, None], theirs.T[:, None, :]
    return (first > second) + 0.5 * (first == second)


def probability_of_improvement(ours: Scores, theirs: Scores) -> float:
    """That a run of ours is better than one of theirs on a task drawn at random; ties count half."""
    return float(pairs_won(ours.table, same_tasks(ours, theirs)).mean())


# Continual World


def average_performance(final: Scores) -> float:
    """Mean over tasks of the success of the final policy."""
    return mean_std(final)[0]


def forgetting(own: Scores, final: Scores) -> dict[str, float]:
    """Of each task: success right after its own training minus success at the end, mean over runs."""
    if set(own.runs) != set(final.runs):
        apart = sorted(set(own.runs) ^ set(final.runs))
        raise ValueError(f"run {', '.join(apart)} has only one of the two evaluations; forgetting needs both")
    order = [final.runs.index(run) for run in own.runs]
    lost = own.table - same_tasks(own, final)[order]
    return dict(zip(own.tasks, lost.mean(axis=0).tolist(), strict=True))


def forward_transfer(segment: Scores, reference: Scores) -> dict[str, float]:
    """Of each task (AUC - AUC_ref) / (1 - AUC_ref), AUC the mean success over the task's own segment.

    The reference's AUC is the mean over its runs (tasks trained alone). Tasks with AUC_ref = 1 are left out: nothing can
    be better than that.
    """
    ours, alone = segment.table.mean(axis=0), same_tasks(segment, reference).mean(axis=0)
    return {
        task: float((a - b) / (1 - b)) for task, a, b in zip(segment.tasks, ours, alone, strict=True) if b < 1 - 1e-12
    }
