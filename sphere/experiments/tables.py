"""Tables and figures that several experiments share; the paper's number stands beside ours."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sphere.experiments.cells import Cell as Setting
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.report import paper
from sphere.report.comparison_tables import paper_cell
from sphere.report.run import Run
from sphere.report.scores import Scores
from sphere.report.statistics import deviation, mean_std
from sphere.report.tables import Cell, Measured, Table


def success(scores: Scores | None) -> Measured | None:
    return None if scores is None else Measured(*mean_std(scores))


def value_at(runs: Sequence[Run], metric: str, place: int) -> Measured | None:
    """Of one evaluation of each run (0: the first): mean and deviation over the runs that have a number there."""
    found = [float(run.curve.values[metric][place]) for run in runs if len(run.curve.values.get(metric, ()))]
    known = np.array([value for value in found if np.isfinite(value)])
    return Measured(float(np.mean(known)), deviation(known)) if known.size else None


def last_value(runs: Sequence[Run], metric: str) -> Measured | None:
    """At the end of training: of the runs that have come to it."""
    return value_at([run for run in runs if run.finished], metric, -1)


Rows = Mapping[str, Mapping[str, Cell]]
"""Row -> column -> our number."""


def beside_paper(name: str, title: str, source: str, rows: Rows, note: str = "") -> Table:
    """Our numbers, each column followed by the paper's of the same row and column in its table `source`."""
    theirs = paper.TABLES.get(source, {})
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    head = [word for column in columns for word in (column, "paper" if len(columns) == 1 else f"paper, {column}")]
    body: list[list[Cell]] = []
    for row, cells in rows.items():
        line: list[Cell] = [row]
        for column in columns:
            line += [cells.get(column), paper_cell(theirs.get(row, {}).get(column))]
        body.append(line)
    return Table(name, title, ("", *head), body, " ".join([note, f"The paper's: {source}."]).strip())


AVERAGE = (
    "Mean and standard deviation over runs of the success right after each task's own training, averaged over tasks."
)


def success_table(
    found: Found, name: str, title: str, source: str, rows: Sequence[str], column: str = "success"
) -> Table:
    """A row per label: average success under CRL."""
    ours: Rows = {row: {column: success(found.scores(row))} for row in rows}
    return beside_paper(name, title, source, ours, AVERAGE)


def success_rows(title: str, source: str, cells: Callable[[], Sequence[Setting]]) -> Experiment:
    """A table with a row per cell, in the paper under the same name."""

    def results(found: Found) -> Results:
        labels = [cell.label for cell in cells()]
        return Results([success_table(found, "success", title, source, labels)], _bars(found))

    return Experiment(title, source, cells, results)


def success_columns(
    title: str, source: str, cell: Callable[[str, str], Setting], rows: Sequence[str] | None = None
) -> Experiment:
    """A table whose rows and columns are those of the paper's; `cell` says what stands where."""
    grid = {row: tuple(paper.TABLES[source][row]) for row in rows or paper.TABLES[source]}

    def results(found: Found) -> Results:
        ours: Rows = {
            row: {column: success(found.scores(cell(row, column).label)) for column in columns}
            for row, columns in grid.items()
        }
        return Results([beside_paper("success", title, source, ours, AVERAGE)], _bars(found))

    return Experiment(
        title, source, lambda: [cell(row, column) for row, some in grid.items() for column in some], results
    )


def _bars(found: Found) -> dict[str, Any]:
    from sphere.report.figures import score_bars

    return {"success-bars": score_bars(found.comparison)}


# Figures


def scatter(
    points: Mapping[str, tuple[np.ndarray, np.ndarray]],
    across: str,
    up: str,
    *,
    logarithmic: bool = False,
    diagonal: bool = False,
) -> Any:
    """A cloud per label, with its correlation in the legend."""
    from matplotlib import pyplot

    from sphere.report.figures import COLOURS

    figure, axis = pyplot.subplots(figsize=(4.2, 3.6), layout="constrained")
    for index, (label, (x, y)) in enumerate(points.items()):
        value = pearson(*(np.log(v) for v in (x, y)) if logarithmic else (x, y))
        axis.plot(
            x, y, "o", markersize=3, alpha=0.6, color=COLOURS[index % len(COLOURS)], label=f"{label}: r = {value:.3f}"
        )
    if logarithmic:
        axis.set(xscale="log", yscale="log")
    if diagonal:
        low, high = (edge([v for x, y in points.values() for v in (*x, *y)]) for edge in (min, max))
        axis.plot([low, high], [low, high], color="0.5", linewidth=0.8, linestyle="--")
    axis.set(xlabel=across, ylabel=up)
    axis.legend(fontsize=7)
    return figure


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """NaN where one side does not vary: nothing can be said."""
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def correlation_table(
    name: str, title: str, points: Mapping[str, tuple[np.ndarray, np.ndarray]], quoted: str, note: str
) -> Table:
    """One correlation per label, beside the one that the paper's text gives."""
    rows: list[list[Cell]] = [
        [label, str(len(x)), Measured(pearson(x, y)), paper_cell(paper.QUOTED[quoted])]
        for label, (x, y) in points.items()
    ]
    return Table(name, title, ("", "points", "Pearson", "paper"), rows, note)
