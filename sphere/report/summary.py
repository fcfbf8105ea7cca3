"""What a comparison says about its score, as plain values: the same numbers for tables, figures and the page."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sphere.report import paper, statistics
from sphere.report.comparison import Comparison
from sphere.report.names import short
from sphere.report.run import Run
from sphere.report.scores import Scores, final_scores, own_episodes, own_scores, segment_scores
from sphere.report.statistics import Interval, improvement, interval, ratio


@dataclass(frozen=True)
class Average:
    """One method under one protocol: the score right after each task's own training, averaged over tasks."""

    method: str
    protocol: str
    runs: int
    """Finished ones; the numbers are of these."""
    going: tuple[str, ...]
    by_run: tuple[float, ...]
    mean: Interval
    std: float
    task_std: float
    iqm: Interval
    iqr: float
    paper: paper.Printed | None


def averages(comparison: Comparison) -> list[Average]:
    found = []
    for method, protocol, runs in comparison.groups:
        own, going = own_scores(runs, comparison.tasks)
        if own is None:
            continue
        apart = protocol == "rl"
        found.append(
            Average(
                method=method,
                protocol=protocol,
                runs=len(own.runs),
                going=going,
                by_run=tuple(own.by_run().tolist()),
                mean=interval(own, independent_tasks=apart),
                std=statistics.mean_std(own)[1],
                task_std=statistics.mean_of_task_deviations(own),
                iqm=interval(own, statistics.iqm_of, independent_tasks=apart),
                iqr=statistics.iqr(own),
                paper=paper_average(comparison, protocol, method),
            )
        )
    return found


def paper_on_task(comparison: Comparison, protocol: str, method: str, task: str) -> paper.Printed | None:
    """What the paper prints for a task; in a sequence, where that begins as the paper's up to this task."""
    known, tasks = paper.tasks(comparison.suite), [short(one) for one in comparison.tasks]
    count = tasks.index(task) + 1
    if comparison.words.word != paper.SCORE or (protocol == "crl" and tasks[:count] != known[:count]):
        return None
    return paper.success(comparison.suite, protocol, method, task)


def paper_average(comparison: Comparison, protocol: str, method: str) -> paper.Printed | None:
    """The paper's average, where it is of these tasks; of some of its tasks, the mean of what it prints for them.
    In a sequence a task depends on those before it, so there only the first tasks of the whole, in its order,
    count as some."""
    known, tasks = paper.tasks(comparison.suite), {short(task) for task in comparison.tasks}
    whole = [short(task) for task in comparison.whole or comparison.tasks]
    if comparison.words.word != paper.SCORE or not tasks.issubset(known) or (protocol == "crl" and whole != known):
        return None
    if tasks == set(known):
        return paper.success(comparison.suite, protocol, method)
    printed = [paper.success(comparison.suite, protocol, method, short(task)) for task in comparison.tasks]
    means = [one.mean for one in printed if one is not None]
    return paper.Printed(float(np.mean(means))) if len(means) == len(printed) else None


def finished_part(comparison: Comparison, protocol: str) -> Comparison | None:
    """A protocol's runs on the tasks that all of them have finished, while none has finished all. One task is no
    average."""
    runs = tuple(run for run in comparison.runs if run.protocol == protocol)
    done = tuple(task for task in comparison.tasks if all(own_episodes(run, task).size for run in runs))
    if len(done) < 2 or own_scores(runs, comparison.tasks).scores is not None:
        return None
    return replace(comparison, runs=runs, tasks=done, whole=comparison.tasks)


@dataclass(frozen=True)
class OnTask:
    mean: float
    std: float
    runs: int


def on_task(runs: Sequence[Run], task: str) -> OnTask | None:
    """Over the runs that have finished the task; None if none has."""
    return _over_runs([found.mean() for run in runs if (found := own_episodes(run, task)).size])


def _over_runs(means: Sequence[float]) -> OnTask | None:
    return OnTask(float(np.mean(means)), statistics.deviation(np.array(means)), len(means)) if means else None


def tenths(comparison: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    """The sequence in ten parts of nearly the same number of tasks: words, tasks."""
    edges = np.linspace(0, len(comparison.tasks), 11).round().astype(int).tolist()
    return [(f"tasks {a + 1} to {b}", comparison.tasks[a:b]) for a, b in itertools.pairwise(edges)]


def on_tasks(runs: Sequence[Run], tasks: tuple[str, ...]) -> OnTask | None:
    """Each run's average over some tasks, of the runs that have finished these."""
    found = own_scores(runs, tasks).scores
    return None if found is None else _over_runs(found.by_run().tolist())


@dataclass(frozen=True)
class Against:
    """A method against the baseline under one protocol."""

    method: str
    other: str
    protocol: str
    ratio: Interval
    """NaN where it would say nothing: of scores without bounds that are not all positive."""
    improvement: Interval
    paper_ratio: float | None


def against_baseline(comparison: Comparison) -> list[Against]:
    other = comparison.baseline
    found = []
    for method, protocol, runs in comparison.groups:
        theirs = own_scores(comparison.group(other or "", protocol), comparison.tasks).scores
        ours = own_scores(runs, comparison.tasks).scores
        if other is None or method == other or ours is None or theirs is None:
            continue
        apart = protocol == "rl"
        printed = [paper_average(comparison, protocol, name) for name in (method, other)]
        known = printed[0].mean / printed[1].mean if printed[0] and printed[1] and printed[1].mean else None
        better = improvement(ours, theirs, independent_tasks=apart)
        found.append(Against(method, other, protocol, _ratio(comparison, ours, theirs, apart), better, known))
    return found


def _ratio(comparison: Comparison, ours: Scores, theirs: Scores, independent_tasks: bool) -> Interval:
    if not comparison.words.bounded and min(*ours.by_run(), *theirs.by_run()) <= 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    return ratio(ours, theirs, independent_tasks=independent_tasks)


@dataclass(frozen=True)
class Continual:
    """Continual World's three numbers of one method; NaN where the records do not have what a number needs."""

    method: str
    runs: int
    performance: float
    forgetting: float
    transfer: float
    """NaN also where the score has no bounds: what is gained is measured by what there is to gain, 1 - AUC."""
    left_out: tuple[str, ...]
    """Tasks without a forward transfer: trained alone they are solved from the first evaluation on."""


def continual(comparison: Comparison) -> list[Continual]:
    found = []
    for method in comparison.methods:
        runs = comparison.group(method, "crl")
        final = final_scores(runs, comparison.tasks).scores
        if final is None:
            continue
        done = [run for run in runs if run.name in final.runs]
        own = own_scores(done, comparison.tasks).scores
        lost = statistics.forgetting(own, final) if own and set(own.runs) == set(final.runs) else {}
        segment = segment_scores(done, comparison.tasks).scores if comparison.words.bounded else None
        alone = segment_scores(comparison.group(method, "rl"), comparison.tasks).scores if segment else None
        gained = statistics.forward_transfer(segment, alone) if segment and alone else {}
        found.append(
            Continual(
                method,
                len(final.runs),
                statistics.average_performance(final),
                _mean(lost),
                _mean(gained),
                tuple(task for task in comparison.tasks if alone and segment and task not in gained),
            )
        )
    return found


def _mean(values: dict[str, float]) -> float:
    return float(np.mean(list(values.values()))) if values else float("nan")
