"""What a comparison shows, as plain values: the same numbers for tables, figures and the page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sphere.report import paper, scores
from sphere.report.bootstrap import Interval, improvement, interval, ratio
from sphere.report.run import Loaded, Run
from sphere.report.select import Success, final_scores, own_episodes, own_scores, segment_scores

ORDER = (
    *("PPO", "PPO(10x)", "Top-K MoE", "Dense-MoE", "DS-MoE", "SoftMoE", "Expert-choice routing", "LN"),
    *("PW", "C-CHAIN", "CBP", "ReDo", "Spectral Normalization", "Spectral Regularization", "Load balancing", "SPHERE"),
)
FIXED = {"Top-K MoE": 0, "SPHERE": 1}
FIRST_DASH = (0, 0, 0, 0, 1, 2, 3, 1)
"""By colour; 0 is a solid line."""
BASELINES = ("Top-K MoE", "PPO")
PROTOCOLS = ("rl", "crl")


@dataclass(frozen=True)
class Comparison:
    """Runs on the same tasks for the same number of steps: methods under one or both protocols."""

    suite: str
    tasks: tuple[str, ...]
    steps_per_task: int
    runs: tuple[Run, ...]
    methods: tuple[str, ...]
    """In the paper's order; a method that it does not have comes after the one whose name it begins with."""
    success: Success = "at-end"
    whole: tuple[str, ...] | None = None
    """All tasks, where `tasks` are only those that have been finished."""

    def group(self, method: str, protocol: str) -> list[Run]:
        return [run for run in self.runs if (run.method, run.protocol) == (method, protocol)]

    @property
    def groups(self) -> list[tuple[str, str, list[Run]]]:
        """Every (method, protocol) that has runs."""
        every = [(m, p, self.group(m, p)) for m in self.methods for p in PROTOCOLS]
        return [(m, p, runs) for m, p, runs in every if runs]

    def colour(self, method: str) -> int:
        """Its place among eight colours: always the same for the two methods that every report is about."""
        others = [name for name in self.methods if name not in FIXED]
        return FIXED[method] if method in FIXED else 2 + others.index(method) % 6

    def dash(self, method: str) -> int:
        """Its place among four line styles: where colours begin anew, methods of one colour have different ones."""
        others = [name for name in self.methods if name not in FIXED]
        again = 0 if method in FIXED else others.index(method) // 6
        return (FIRST_DASH[self.colour(method)] + again) % 4

    @property
    def protocols(self) -> list[str]:
        return [protocol for protocol in PROTOCOLS if any(run.protocol == protocol for run in self.runs)]


def comparisons(loaded: Loaded, success: Success = "at-end") -> list[Comparison]:
    """Runs by their tasks and the length of these, larger comparisons first."""
    alike: dict[tuple[tuple[str, ...], int], list[Run]] = {}
    for run in loaded.runs:
        alike.setdefault((run.tasks, int(run.config["steps_per_task"])), []).append(run)
    found = []
    for (tasks, steps), runs in alike.items():
        methods = tuple(sorted({run.method for run in runs}, key=_place))
        found.append(Comparison(runs[0].suite, tasks, steps, tuple(runs), methods, success))
    return sorted(found, key=lambda one: -len(one.runs))


def _place(method: str) -> tuple[int, str]:
    begins = [
        index for index, name in enumerate(ORDER) if method == name or method.startswith((name + " ", name + "("))
    ]
    return (max(begins) if begins else len(ORDER), method)


def short(task: str) -> str:
    return task.split("/", 1)[-1]


def baseline(comparison: Comparison) -> str | None:
    """What others are measured against: Top-K MoE if it is there."""
    return next((name for name in BASELINES if name in comparison.methods), None)


# Success


@dataclass(frozen=True)
class Average:
    """One method under one protocol: success right after each task's own training, averaged over tasks."""

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
        own, going = own_scores(runs, comparison.tasks, comparison.success)
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
                std=scores.mean_std(own)[1],
                task_std=scores.mean_of_task_deviations(own),
                iqm=interval(own, scores.iqm_of, independent_tasks=apart),
                iqr=scores.iqr(own),
                paper=paper_average(comparison, protocol, method),
            )
        )
    return found


def paper_on_task(comparison: Comparison, protocol: str, method: str, task: str) -> paper.Printed | None:
    """What the paper prints for a task; in a sequence, where that begins as the paper's up to this task."""
    known, tasks = paper.tasks(comparison.suite), [short(one) for one in comparison.tasks]
    so_many = tasks.index(task) + 1
    if protocol == "crl" and tasks[:so_many] != known[:so_many]:
        return None
    return paper.success(comparison.suite, protocol, method, task)


def paper_average(comparison: Comparison, protocol: str, method: str) -> paper.Printed | None:
    """The paper's average, where it is of these tasks; of some of its tasks, the mean of what it prints for them. In a
    sequence a task depends on those before it, so there only the first tasks of the whole, in its order, count as some."""
    known, tasks = paper.tasks(comparison.suite), {short(task) for task in comparison.tasks}
    whole = [short(task) for task in comparison.whole or comparison.tasks]
    if not tasks.issubset(known) or (protocol == "crl" and whole != known):
        return None
    if tasks == set(known):
        return paper.success(comparison.suite, protocol, method)
    printed = [paper.success(comparison.suite, protocol, method, short(task)) for task in comparison.tasks]
    means = [one.mean for one in printed if one is not None]
    return paper.Printed(float(np.mean(means))) if len(means) == len(printed) else None


def so_far(comparison: Comparison, protocol: str) -> Comparison | None:
    """A protocol's runs on the tasks that all of them have finished, while none has finished all. One task is no average."""
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


def on_task(comparison: Comparison, runs: Sequence[Run], task: str) -> OnTask | None:
    """Over the runs that have finished the task; None if none has."""
    means = [found.mean() for run in runs if (found := own_episodes(run, task, comparison.success)).size]
    return OnTask(float(np.mean(means)), scores.deviation(np.array(means)), len(means)) if means else None


@dataclass(frozen=True)
class Against:
    """A method against the baseline under one protocol."""

    method: str
    other: str
    protocol: str
    ratio: Interval
    improvement: Interval
    paper_ratio: float | None


def against(comparison: Comparison) -> list[Against]:
    other = baseline(comparison)
    found = []
    for method, protocol, runs in comparison.groups:
        theirs = own_scores(comparison.group(other or "", protocol), comparison.tasks, comparison.success).scores
        ours = own_scores(runs, comparison.tasks, comparison.success).scores
        if other is None or method == other or ours is None or theirs is None:
            continue
        apart = protocol == "rl"
        printed = [paper_average(comparison, protocol, name) for name in (method, other)]
        known = printed[0].mean / printed[1].mean if printed[0] and printed[1] and printed[1].mean else None
        found.append(
            Against(
                method,
                other,
                protocol,
                ratio(ours, theirs, independent_tasks=apart),
                improvement(ours, theirs, independent_tasks=apart),
                known,
            )
        )
    return found


@dataclass(frozen=True)
class Continual:
    """Continual World's three numbers of one method; NaN where the records do not have what a number needs."""

    method: str
    runs: int
    performance: float
    forgetting: float
    transfer: float
    left_out: tuple[str, ...]
    """Tasks without a forward transfer: trained alone they are solved from the first evaluation on."""


def continual(comparison: Comparison) -> list[Continual]:
    found = []
    for method in comparison.methods:
        runs = comparison.group(method, "crl")
        final = final_scores(runs, comparison.tasks, comparison.success).scores
        if final is None:
            continue
        done = [run for run in runs if run.name in final.runs]
        own = own_scores(done, comparison.tasks, comparison.success).scores
        lost = scores.forgetting(own, final) if own and set(own.runs) == set(final.runs) else {}
        segment = segment_scores(done, comparison.tasks, comparison.success).scores
        alone = segment_scores(comparison.group(method, "rl"), comparison.tasks, comparison.success).scores
        gained = scores.forward_transfer(segment, alone) if segment and alone else {}
        found.append(
            Continual(
                method,
                len(final.runs),
                scores.average_performance(final),
                _mean(lost),
                _mean(gained),
                tuple(task for task in comparison.tasks if alone and segment and task not in gained),
            )
        )
    return found


def _mean(values: dict[str, float]) -> float:
    return float(np.mean(list(values.values()))) if values else float("nan")


# Over training


@dataclass(frozen=True)
class Band:
    """A metric over training: mean over runs, and the lowest and highest run, at the steps that runs share."""

    step: np.ndarray
    task: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: tuple[tuple[str, np.ndarray], ...]
    """Each run's values at these steps; NaN where it has none."""


def band(runs: Sequence[Run], metric: str) -> Band | None:
    """None if no run has a finite value of the metric."""
    steps = sorted({(int(s), int(t)) for run in runs for s, t in zip(run.curve.step, run.curve.task, strict=True)})
    place = {step: index for index, (step, _) in enumerate(steps)}
    table = np.full((len(runs), len(steps)), np.nan)
    for row, run in enumerate(runs):
        if metric in run.curve.values:
            table[row, [place[int(step)] for step in run.curve.step]] = run.curve.values[metric]
    table[~np.isfinite(table)] = np.nan
    kept = np.isfinite(table).any(axis=0)
    if not kept.any():
        return None
    table, where = table[:, kept], np.array(steps)[kept]
    return Band(
        where[:, 0],
        where[:, 1],
        np.nanmean(table, axis=0),
        np.nanmin(table, axis=0),
        np.nanmax(table, axis=0),
        tuple((run.name, row) for run, row in zip(runs, table, strict=True)),
    )


def at_last(runs: Sequence[Run], metric: str) -> list[float]:
    """The metric at the last evaluation, of the runs that have come so far and have a number there."""
    begun = [run for run in runs if run.curve.step.size]
    last = max((int(run.curve.step[-1]) for run in begun), default=0)
    there = [run.curve.values for run in begun if run.curve.step[-1] == last]
    return [float(values[metric][-1]) for values in there if metric in values and np.isfinite(values[metric][-1])]


def metrics(runs: Sequence[Run]) -> list[str]:
    """All metrics with a finite value in some run, loads of single experts aside."""
    names = {name for run in runs for name, values in run.curve.values.items() if np.isfinite(values).any()}
    return sorted(name for name in names if "/load/" not in name)
