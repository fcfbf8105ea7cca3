"""The tables of a comparison, with the paper's number beside ours where it has one."""

import math

import numpy as np

from sphere.report import paper
from sphere.report.comparison import Comparison, last_values, metrics
from sphere.report.names import SECOND, score_of, short
from sphere.report.predictors import RESAMPLES, Association, early_predictors
from sphere.report.statistics import Interval, deviation
from sphere.report.summary import (
    OnTask,
    against_baseline,
    averages,
    continual,
    finished_part,
    on_task,
    on_tasks,
    paper_average,
    paper_on_task,
    tenths,
)
from sphere.report.tables import Cell, MeanStd, Table, digits

MOST_NAMED = 10
"""Tasks that a note lists by name."""


def with_bounds(interval: Interval) -> str:
    if math.isnan(interval.low):
        return digits(interval.value)
    return f"{digits(interval.value)} [{digits(interval.low)}, {digits(interval.high)}]"


def paper_cell(number: paper.Printed | None) -> MeanStd | None:
    return None if number is None else MeanStd(number.mean, None if math.isnan(number.std) else number.std)


def per_task_table(comparison: Comparison, protocol: str) -> Table:
    """The score on each task right after its own training, ours and the paper's."""
    methods = [m for m, p, _ in comparison.groups if p == protocol]
    part = finished_part(comparison, protocol)
    average = {one.method: one for one in averages(part or comparison) if one.protocol == protocol}
    columns, blocks = ["task"], []
    for method in methods:
        runs = comparison.group(method, protocol)
        ours = [_measured(on_task(runs, task)) for task in comparison.tasks]
        ours.append(MeanStd(average[method].mean.value, average[method].std) if method in average else None)
        names = [short(task) for task in comparison.tasks]
        theirs: list[Cell] = [paper_cell(paper_on_task(comparison, protocol, method, name)) for name in names]
        theirs.append(paper_cell(paper_average(part or comparison, protocol, method)))
        columns.append(method)
        blocks.append(ours)
        if any(cell is not None for cell in theirs):
            columns.append("paper")
            blocks.append(theirs)
    average_of = f"average of the first {len(part.tasks)}" if part else "average"
    labels: list[Cell] = [*(short(task) for task in comparison.tasks), average_of]
    source = paper.SOURCES.get((comparison.suite, protocol))
    word = comparison.words.word
    return Table(
        f"{comparison.suite}-{protocol}-tasks",
        f"{word.capitalize()} by task, {comparison.suite}, {protocol.upper()}",
        tuple(columns),
        [list(row) for row in zip(labels, *blocks, strict=True)],
        f"Mean and standard deviation over runs of the {word} right after each task's own training."
        + (f" The paper's: {source}." if source and "paper" in columns else ""),
    )


def _measured(one: OnTask | None) -> Cell:
    return None if one is None else MeanStd(one.mean, one.std)


def tenths_table(comparison: Comparison, protocol: str) -> Table:
    """In the place of a table by task where there are too many of them to be read."""
    methods = [m for m, p, _ in comparison.groups if p == protocol]
    rows: list[list[Cell]] = [
        [words, *(_measured(on_tasks(comparison.group(method, protocol), tasks)) for method in methods)]
        for words, tasks in [*tenths(comparison), ("average", comparison.tasks)]
    ]
    word = comparison.words.word
    return Table(
        f"{comparison.suite}-{protocol}-tenths",
        f"{word.capitalize()} by tenths of the sequence, {comparison.suite}, {protocol.upper()}",
        ("tasks", *methods),
        rows,
        f"Mean and standard deviation over runs of the {word} right after each task's own training, averaged over "
        f"the tasks of a row; of the runs that have finished these. Task by task: "
        f"tables/{comparison.suite}-{protocol}-tasks.csv.",
    )


def average_table(comparison: Comparison) -> Table:
    rows: list[list[Cell]] = [
        [
            one.method,
            one.protocol.upper(),
            str(one.runs),
            MeanStd(one.mean.value, one.std),
            with_bounds(one.mean),
            with_bounds(one.iqm),
            MeanStd(one.iqr),
            MeanStd(one.task_std),
            paper_cell(one.paper),
        ]
        for one in averages(comparison)
    ]
    columns: tuple[str, ...] = (
        "method",
        "protocol",
        "runs",
        comparison.words.word,
        "mean, 95% interval",
        "IQM, 95% interval",
        "IQR",
        "mean task std",
        "paper",
    )
    if all(row[-1] is None for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(
        f"{comparison.suite}-averages",
        f"Average {comparison.words.word}, {comparison.suite}",
        columns,
        rows,
        "Over runs that have finished all tasks. Mean task std is what the paper prints behind ± of an average.",
    )


def against_table(comparison: Comparison) -> Table:
    found = against_baseline(comparison)
    columns: tuple[str, ...] = (
        "method",
        "protocol",
        "ratio of averages",
        "probability of improvement",
        "paper's ratio",
    )
    rows: list[list[Cell]] = [
        [
            one.method,
            one.protocol.upper(),
            with_bounds(one.ratio),
            with_bounds(one.improvement),
            None if one.paper_ratio is None else MeanStd(one.paper_ratio),
        ]
        for one in found
    ]
    if all(row[-1] is None for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    title = f"Against {found[0].other if found else 'the baseline'}, {comparison.suite}"
    several = any(not math.isnan(one.ratio.low) for one in found)
    note = "With 95% bootstrap intervals over runs." if several else "One run of a method has no interval."
    if any(math.isnan(one.ratio.value) for one in found) and not comparison.words.bounded:
        note += f" There is no ratio where a run's average {comparison.words.word} is not positive."
    return Table(f"{comparison.suite}-against", title, columns, rows, note)


def finished_part_table(comparison: Comparison, protocol: str) -> Table:
    """Averages and ratios of what all runs have finished; without rows where there are true ones, or nothing yet."""
    part = finished_part(comparison, protocol)
    ratios = {one.method: one for one in against_baseline(part)} if part else {}
    rows: list[list[Cell]] = []
    for one in averages(part) if part else []:
        versus = ratios.get(one.method)
        rows.append(
            [one.method, str(one.runs), MeanStd(one.mean.value, one.std), with_bounds(one.mean), paper_cell(one.paper)]
        )
        rows[-1] += [with_bounds(versus.ratio), with_bounds(versus.improvement)] if versus else [None, None]
        rows[-1].append(MeanStd(versus.paper_ratio) if versus and versus.paper_ratio is not None else None)
    columns = ["method", "runs", comparison.words.word, "mean, 95% interval", "paper"]
    columns += ["ratio of averages", "probability of improvement", "paper's ratio"]
    kept = [i for i in range(len(columns)) if i < 4 or any(row[i] is not None for row in rows)]
    count = f"the first {len(part.tasks)} of {len(comparison.tasks)} tasks" if part else "no tasks"
    return Table(
        f"{comparison.suite}-{protocol}-finished-part",
        f"Average {comparison.words.word}, {comparison.suite}, {protocol.upper()}, over {count}",
        tuple(columns[i] for i in kept),
        [[row[i] for i in kept] for row in rows],
        "All runs have finished these, none has finished all. Intervals: bootstrap over runs. The paper's: means of "
        "its rows.",
    )


def continual_table(comparison: Comparison) -> Table:
    found = continual(comparison)
    left = sorted({short(task) for one in found for task in one.left_out})
    named = ", ".join(left) if len(left) <= MOST_NAMED else f"{len(left)} tasks"
    note = "Average performance is the final policy's, forgetting what it has lost since each task's own training. "
    known = any(math.isfinite(one.transfer) for one in found)
    note += f"Forward transfer {'is against' if known else 'needs runs of'} the same method under RL."
    if left:
        note += f" Without {named}: solved from the first evaluation on when trained alone."
    if not comparison.words.bounded:
        note = f"Forward transfer is defined for scores of at most 1 only; {comparison.words.word} has no such bound."
    return Table(
        f"{comparison.suite}-continual",
        f"Continual World's metrics, {comparison.suite}, CRL",
        ("method", "runs", "average performance", "forgetting", "forward transfer"),
        [
            [one.method, str(one.runs), MeanStd(one.performance), MeanStd(one.forgetting), MeanStd(one.transfer)]
            for one in found
        ],
        note,
    )


def diagnostics_table(comparison: Comparison, protocol: str) -> Table:
    """Held-out diagnostics at the last evaluation, mean and deviation over runs."""
    methods = [m for m, p, _ in comparison.groups if p == protocol]
    runs = [run for run in comparison.runs if run.protocol == protocol]
    rows: list[list[Cell]] = []
    for name in [name for name in metrics(runs) if name.startswith("heldout/")]:
        row: list[Cell] = [name.split("/", 1)[1]]
        for method in methods:
            last = last_values(comparison.group(method, protocol), name)
            row.append(MeanStd(float(np.mean(last)), deviation(np.array(last))) if last else None)
        rows.append(row)
    return Table(
        f"{comparison.suite}-{protocol}-diagnostics",
        f"Diagnostics at the last evaluation, {comparison.suite}, {protocol.upper()}",
        ("held-out states", *methods),
        rows,
        "Mean and standard deviation over runs. Definitions: docs/diagnostics.md.",
    )


def predictors_table(comparison: Comparison) -> Table:
    found = early_predictors(comparison)
    names = [comparison.words.word, *([score_of(SECOND).word] if comparison.score != SECOND else [])]
    ends = [[one.score, one.second][: len(names)] for one in found]
    count = sum(end is not None for both in ends for end in both)

    def cells(one: Association | None) -> list[Cell]:
        return [None, None, None] if one is None else [MeanStd(one.correlation), f"{one.p:.3f}", str(one.pairs)]

    return Table(
        f"{comparison.suite}-crl-predictors",
        f"Diagnostics at a task's first evaluation and what was reached at its end, {comparison.suite}, CRL",
        ("diagnostic", *(head for name in names for head in (name, f"p ({name})", f"pairs ({name})"))),
        [[one.metric, *(cell for end in both for cell in cells(end))] for one, both in zip(found, ends, strict=True)],
        "Rank correlations within each method and task, from the second task on, over runs that have finished the "
        "same tasks; tasks on which all runs of a method begin or end alike, or whose first evaluations differ, are "
        f"left out. p: share of {RESAMPLES:,} permutations of runs (by seed, where methods have the same seeds) with "
        f"a correlation as strong. Of {count} correlations one in twenty has p below 0.05 by chance.",
    )


def tables(comparison: Comparison) -> list[Table]:
    """All that have rows."""
    every = [average_table(comparison)]
    by_task = [tenths_table, per_task_table] if comparison.many_tasks else [per_task_table]
    for make in (finished_part_table, *by_task):
        every += [make(comparison, protocol) for protocol in comparison.protocols]
    every += [against_table(comparison), continual_table(comparison)]
    every += [diagnostics_table(comparison, protocol) for protocol in comparison.protocols]
    every += [predictors_table(comparison)]
    return [table for table in every if table.rows]
