"""Tables that several experiments share; the paper's number stands beside ours."""

from collections.abc import Mapping, Sequence

import numpy as np

from sphere.experiments.experiment import Found
from sphere.report import paper
from sphere.report.comparison_tables import paper_cell
from sphere.report.run import Run
from sphere.report.scores import Scores
from sphere.report.statistics import deviation, mean_std
from sphere.report.tables import Cell, MeanStd, Table

AVERAGE = (
    "Mean and standard deviation over runs of the success right after each task's own training, averaged over tasks."
)

Rows = Mapping[str, Mapping[str, Cell]]
"""Row -> column -> our number."""


def beside_paper(
    name: str, title: str, source: str, rows: Rows, note: str = "", words: Mapping[str, str] | None = None
) -> Table:
    """Our numbers, each column followed by the paper's of the same row and column in its table `source`, if that has
    any. `words`: what columns are called, where not by the paper's name."""
    theirs = paper.TABLES.get(source, {})
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    printed = [column for column in columns if any(column in theirs.get(row, {}) for row in rows)]
    called = {column: (words or {}).get(column, column) for column in columns}
    head: list[str] = []
    body: list[list[Cell]] = [[row] for row in rows]
    for column in columns:
        head.append(called[column])
        for line, cells in zip(body, rows.values(), strict=True):
            line.append(cells.get(column))
        if column in printed:
            head.append("paper" if len(columns) == 1 else f"paper, {called[column]}")
            for line, row in zip(body, rows, strict=True):
                line.append(paper_cell(theirs.get(row, {}).get(column)))
    return Table(name, title, ("", *head), body, " ".join([note, f"The paper's: {source}."]).strip())


def success_table(found: Found, name: str, title: str, source: str, labels: Sequence[str]) -> Table:
    """A row per label: average success under CRL."""
    ours: Rows = {label: {"success": success(found.scores(label))} for label in labels}
    return beside_paper(name, title, source, ours, AVERAGE)


def success(scores: Scores | None) -> MeanStd | None:
    return None if scores is None else MeanStd(*mean_std(scores))


def value_at(runs: Sequence[Run], metric: str, place: int) -> MeanStd | None:
    """Of one evaluation of each run (0: the first): mean and deviation over the runs that have a number there."""
    found = [float(run.curve.values[metric][place]) for run in runs if len(run.curve.values.get(metric, ()))]
    known = np.array([value for value in found if np.isfinite(value)])
    return MeanStd(float(np.mean(known)), deviation(known)) if known.size else None


def last_value(runs: Sequence[Run], metric: str) -> MeanStd | None:
    """At the end of training, of the runs that have finished."""
    return value_at([run for run in runs if run.finished], metric, -1)
