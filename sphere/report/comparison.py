"""Runs that may be compared with one another, and what their records show over training, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sphere.report import paper
from sphere.report.names import SECOND, ScoreName, score_of
from sphere.report.run import Loaded, Run
from sphere.report.scores import own_episodes
from sphere.storage.reader import KINDS

FIRST_DASH = (0, 0, 0, 0, 1, 2, 3, 1)
"""By colour; 0 is a solid line."""
FIXED = {paper.BASELINES[0]: 0, paper.PROPOSED: 1}
"""Colours that are the same in every report."""
PROTOCOLS = ("rl", "crl")
STEPS = {"environments": "environment steps of a run", "stream": "training examples of a run"}
"""By the kind of source."""
MOST_TASKS = 30
"""With more tasks than this, tables by task show tenths of the sequence, and charts number the tasks."""


@dataclass(frozen=True)
class Comparison:
    """Runs with one score on the same tasks for the same number of steps: methods under one or both protocols."""

    suite: str
    tasks: tuple[str, ...]
    steps_per_task: int
    score: str
    runs: tuple[Run, ...]
    methods: tuple[str, ...]
    """In the paper's order; a method that it does not have comes after the one whose name it begins with."""
    whole: tuple[str, ...] | None = None
    """All tasks, where `tasks` are only those that have been finished."""

    def group(self, method: str, protocol: str) -> list[Run]:
        return [run for run in self.runs if (run.method, run.protocol) == (method, protocol)]

    @property
    def groups(self) -> list[tuple[str, str, list[Run]]]:
        """Every (method, protocol) that has runs."""
        every = [(m, p, self.group(m, p)) for m in self.methods for p in PROTOCOLS]
        return [(m, p, runs) for m, p, runs in every if runs]

    @property
    def protocols(self) -> list[str]:
        return [protocol for protocol in PROTOCOLS if any(run.protocol == protocol for run in self.runs)]

    @property
    def words(self) -> ScoreName:
        """What the score is called and whether it has bounds."""
        return score_of(self.score)

    @property
    def curve(self) -> str:
        """The metric that is the score over training."""
        return f"evaluation/{self.score}"

    @property
    def score_curves(self) -> list[str]:
        """The score over training, and what is shown beside it."""
        return list(dict.fromkeys([self.curve, f"evaluation/{SECOND}"]))

    @property
    def step_unit(self) -> str:
        """What is counted along the charts."""
        return STEPS.get(self.runs[0].config["source"], "steps of a run")

    @property
    def baseline(self) -> str | None:
        """The method that others are measured against."""
        return next((name for name in paper.BASELINES if name in self.methods), None)

    @property
    def many_tasks(self) -> bool:
        return len(self.tasks) > MOST_TASKS

    def colour(self, method: str) -> int:
        """Its place among eight colours: always the same for the two methods that every report is about."""
        others = [name for name in self.methods if name not in FIXED]
        return FIXED[method] if method in FIXED else 2 + others.index(method) % 6

    def dash(self, method: str) -> int:
        """Its place among four line styles: where colours repeat, methods of one colour have different ones."""
        others = [name for name in self.methods if name not in FIXED]
        again = 0 if method in FIXED else others.index(method) // 6
        return (FIRST_DASH[self.colour(method)] + again) % 4


def comparisons(loaded: Loaded) -> list[Comparison]:
    """Runs by suite, tasks, length of these and score; larger comparisons first."""
    alike: dict[tuple[str, tuple[str, ...], int, str], list[Run]] = {}
    for run in loaded.runs:
        alike.setdefault((run.suite, run.tasks, run.steps_per_task, run.score), []).append(run)
    found = [
        Comparison(*key, tuple(runs), tuple(sorted({run.method for run in runs}, key=_order)))
        for key, runs in alike.items()
    ]
    return sorted(found, key=lambda one: -len(one.runs))


def _order(method: str) -> tuple[int, str]:
    names = paper.ORDER
    begins = [i for i, name in enumerate(names) if method == name or method.startswith((name + " ", name + "("))]
    return (max(begins) if begins else len(names), method)


# Over training


@dataclass(frozen=True)
class Band:
    """A number over training: mean over runs, and the lowest and highest run, at the steps that runs share."""

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
    return _band(runs, np.array(steps).reshape(-1, 2), table)


def task_band(comparison: Comparison, runs: Sequence[Run]) -> Band | None:
    """The score right after each task's own training, by the number of the task from 1 on."""
    table = np.full((len(runs), len(comparison.tasks)), np.nan)
    for row, run in zip(table, runs, strict=True):
        for index, task in enumerate(comparison.tasks):
            if (found := own_episodes(run, task)).size:
                row[index] = found.mean()
    places = np.arange(len(comparison.tasks))
    return _band(runs, np.stack([places + 1, places], axis=1), table)


def _band(runs: Sequence[Run], places: np.ndarray, table: np.ndarray) -> Band | None:
    table[~np.isfinite(table)] = np.nan
    kept = np.isfinite(table).any(axis=0)
    if not kept.any():
        return None
    table, where = table[:, kept], places[kept]
    return Band(
        where[:, 0],
        where[:, 1],
        np.nanmean(table, axis=0),
        np.nanmin(table, axis=0),
        np.nanmax(table, axis=0),
        tuple((run.name, row) for run, row in zip(runs, table, strict=True)),
    )


def last_values(runs: Sequence[Run], metric: str) -> list[float]:
    """The metric at the last evaluation, of the runs that have come so far and have a number there."""
    begun = [run for run in runs if run.curve.step.size]
    last = max((int(run.curve.step[-1]) for run in begun), default=0)
    there = [run.curve.values for run in begun if run.curve.step[-1] == last]
    return [float(values[metric][-1]) for values in there if metric in values and np.isfinite(values[metric][-1])]


def metrics(runs: Sequence[Run]) -> list[str]:
    """All metrics with a finite value in some run, loads of single experts aside."""
    names = {name for run in runs for name, values in run.curve.values.items() if np.isfinite(values).any()}
    return sorted(name for name in names if "/load/" not in name)


@dataclass(frozen=True)
class ExpertLoad:
    """Share of selections that each expert takes, over training: [expert, evaluation]."""

    step: np.ndarray
    share: np.ndarray
    runs: int


def load_map(runs: Sequence[Run], place: str = "heldout") -> ExpertLoad | None:
    """Mean at every evaluation over the runs that have come so far. Experts of different runs have nothing to do
    with each other, so they are sorted by load first."""
    names = {name for run in runs for name in run.curve.values if name.startswith(f"{place}/load/")}
    experts = sorted(int(name.rsplit("/", 1)[1]) for name in names)
    known = [run for run in runs if experts and all(f"{place}/load/{e}" in run.curve.values for e in experts)]
    step = np.unique(np.concatenate([run.curve.step for run in known])) if known else np.array([], np.int64)
    if not step.size:
        return None
    share = np.full((len(known), len(experts), step.size), np.nan)
    for one, run in zip(share, known, strict=True):
        own = np.stack([run.curve.values[f"{place}/load/{e}"] for e in experts])
        one[:, np.searchsorted(step, run.curve.step)] = -np.sort(-own, axis=0) if len(known) > 1 else own
    seen = np.isfinite(share).all(axis=1).any(axis=0)
    return ExpertLoad(step[seen], np.nanmean(share[:, :, seen], axis=0), len(known)) if seen.any() else None


def retention(comparison: Comparison, runs: Sequence[Run]) -> np.ndarray | None:
    """Mean score [after task, on task] over runs; NaN where nothing was evaluated; None if only the diagonal is
    known."""
    count = len(comparison.tasks)
    tables = np.array([_after_tasks(run, count) for run in runs]).reshape(-1, count, count)
    known = np.isfinite(tables).any(axis=0)
    if not (known & ~np.eye(count, dtype=bool)).any():
        return None
    mean = np.full((count, count), np.nan)
    mean[known] = np.nanmean(tables[:, known], axis=0)
    return mean


def _after_tasks(run: Run, count: int) -> np.ndarray:
    """[boundary, task]: mean score when training on a task was over; the task's own evaluation where there is no
    other."""
    episodes, scores = run.episodes, run.episodes.columns[run.score]
    boundary, rest = np.divmod(episodes.step, run.task_steps)
    at_end = (rest == 0) & (boundary >= 1) & (boundary <= count)
    last = boundary == len(run.tasks)
    reviews = np.where(last, episodes.kind == KINDS.index("final"), episodes.kind == KINDS.index("retention"))
    own = (episodes.kind == KINDS.index("evaluation")) & (boundary - 1 == episodes.task)
    table = np.full(count * count, np.nan)
    for chosen in (at_end & own, at_end & reviews):  # the review of a task replaces its own evaluation
        cell = (boundary[chosen] - 1) * count + episodes.task[chosen]
        number = np.bincount(cell, minlength=count * count)
        total = np.bincount(cell, scores[chosen], minlength=count * count)
        table[number > 0] = total[number > 0] / number[number > 0]
    return table.reshape(count, count)
