"""Tables of a page of results: narrow enough for the site's column, with the paper's numbers."""

import dataclasses
import math
import textwrap
from collections.abc import Sequence

from sphere.experiments.experiment import Experiment, Found
from sphere.experiments.paper_items import labels
from sphere.report import paper
from sphere.report.comparison_tables import paper_cell, with_bounds
from sphere.report.summary import averages
from sphere.report.tables import Cell, Table, empty

MOST_COLUMNS = 7
"""Three methods, ours beside the paper's: what the site shows without scrolling on a laptop."""


def markdown(table: Table, width: int) -> str:
    """As a section's part: title, table, note. Text is wrapped, rows are not."""
    lines = table.markdown().splitlines()
    kept = [
        line if line.startswith("|") else textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in lines
    ]
    return "\n".join([*kept, ""])


def narrow(table: Table) -> list[Table]:
    """A wide table in parts. Each has the first column; ours and the paper's stay together."""
    if len(table.columns) <= MOST_COLUMNS:
        return [table]
    groups: list[list[int]] = []
    for place, column in enumerate(table.columns[1:], 1):
        if column.startswith("paper") and groups:
            groups[-1].append(place)
        else:
            groups.append([place])
    parts: list[list[int]] = []
    for group in groups:
        if parts and len(parts[-1]) + len(group) < MOST_COLUMNS:
            parts[-1] += group
        else:
            parts.append(list(group))
    found = []
    for number, part in enumerate(parts):
        places = [0, *part]
        rows = [[row[place] for place in places] for row in table.rows]
        known = [row for row in rows if any(not empty(cell) for cell in row[1:])]
        first = number == 0
        found.append(
            dataclasses.replace(
                table,
                title=table.title if first else f"{table.title}, continued",
                columns=tuple(table.columns[place] for place in places),
                rows=known,
                note=table.note if number == len(parts) - 1 else "",
            )
        )
    return found


def level_table(found: Found) -> Table:
    """Averages with their intervals, and whether these hold the paper's number."""
    rows: list[list[Cell]] = []
    several = len(found.comparisons) > 1
    for comparison in found.comparisons:
        for one in averages(comparison):
            label = f"{one.method}, {one.protocol.upper()}" + (f", {comparison.suite}" if several else "")
            inside = "–"
            if one.paper is not None and not math.isnan(one.mean.low):
                inside = "inside" if one.mean.low <= one.paper.mean <= one.mean.high else "outside"
            rows.append([label, with_bounds(one.mean), paper_cell(one.paper), inside])
    word = found.comparison.words.word
    return Table(
        "levels",
        f"Average {word}",
        ("", "mean, 95% interval", "paper", "paper's mean"),
        rows,
        f"Average over tasks of the {word} right after each task's own training. Inside: our interval contains the "
        "paper's mean. The paper's ± of an average is the mean of the tasks' deviations, which says little about how "
        "certain the average is.",
    )


def paper_tables(name: str, experiment: Experiment) -> list[Table]:
    """What the paper prints, where there are no runs of ours."""
    found = []
    suite, _, kind = name.rpartition("-")
    if (suite, kind) in paper.SUCCESS:
        found.append(_by_task(suite, kind))
    if kind in ("bars", "archs"):
        found += [_averages(suite, protocol, experiment.labels) for protocol in ("rl", "crl")]
    for label in labels(experiment.source):
        if label in paper.TABLES:
            found.append(_printed(label))
    return found


def _by_task(suite: str, protocol: str) -> Table:
    table = paper.SUCCESS[suite, protocol]
    rows: list[list[Cell]] = [
        [task, *(paper_cell(table[method][task]) for method in table)] for task in (*paper.tasks(suite), "average")
    ]
    return Table("paper", f"The paper's {suite}, {protocol.upper()}", ("task", *table), rows)


def _averages(suite: str, protocol: str, methods: Sequence[str]) -> Table:
    rows: list[list[Cell]] = [[name, paper_cell(paper.success(suite, protocol, name))] for name in methods]
    return Table("paper", f"The paper's averages, {suite}, {protocol.upper()}", ("", "success"), rows)


def _printed(label: str) -> Table:
    table = paper.TABLES[label]
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    rows: list[list[Cell]] = [
        [row, *(paper_cell(cells.get(column)) for column in columns)] for row, cells in table.items()
    ]
    return Table("paper", f"The paper's {label}", ("", *columns), rows)
