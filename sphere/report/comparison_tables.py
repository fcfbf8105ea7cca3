"""The tables of a comparison, with the paper's number beside ours where it has one."""

import math

import numpy as np

from sphere.report import paper
from sphere.report.bootstrap import Interval
from sphere.report.lead_lag import RESAMPLES, Association, foretold
from sphere.report.scores import deviation
from sphere.report.summary import (
    Comparison,
    against,
    at_last,
    averages,
    continual,
    metrics,
    on_task,
    paper_average,
    paper_on_task,
    short,
    so_far,
)
from sphere.report.tables import Cell, Measured, Table, digits


def spoken(interval: Interval) -> str:
    if math.isnan(interval.low):
        return digits(interval.value)
    return f"{digits(interval.value)} [{digits(interval.low)}, {digits(interval.high)}]"


def printed(number: paper.Printed | None) -> Measured | None:
    return None if number is None else Measured(number.mean, None if math.isnan(number.std) else number.std)


def per_task_table(comparison: Comparison, protocol: str) -> Table:
    """Success on each task right after its own training, ours and the paper's."""
    methods = [m for m, p, _ in comparison.groups if p == protocol]
    part = so_far(comparison, protocol)
    average = {one.method: one for one in averages(part or comparison) if one.protocol == protocol}
    columns, blocks = ["task"], []
    for method in methods:
        runs = comparison.group(method, protocol)
        found = [on_task(comparison, runs, task) for task in comparison.tasks]
        ours: list[Cell] = [None if one is None else Measured(one.mean, one.std) for one in found]
        ours.append(Measured(average[method].mean.value, average[method].std) if method in average else None)
        names = [short(task) for task in comparison.tasks]
        theirs: list[Cell] = [printed(paper_on_task(comparison, protocol, method, name)) for name in names]
        theirs.append(printed(paper_average(part or comparison, protocol, method)))
        columns.append(method)
        blocks.append(ours)
        if any(cell is not None for cell in theirs):
            columns.append("paper")
            blocks.append(theirs)
    average_of = f"average of the first {len(part.tasks)}" if part else "average"
    labels: list[Cell] = [*(short(task) for task in comparison.tasks), average_of]
    label = paper.SOURCES.get((comparison.suite, protocol))
    return Table(
        f"{comparison.suite}-{protocol}-tasks",
        f"Success by task, {comparison.suite}, {protocol.upper()}",
        tuple(columns),
        [list(row) for row in zip(labels, *blocks, strict=True)],
        "Mean and standard deviation over runs of the success right after each task's own training."
        + (f" The paper's: {label}." if label and "paper" in columns else ""),
    )


def average_table(comparison: Comparison) -> Table:
    rows: list[list[Cell]] = [
        [
            one.method,
            one.protocol.upper(),
            str(one.runs),
            Measured(one.mean.value, one.std),
            spoken(one.mean),
            spoken(one.iqm),
            Measured(one.iqr),
            Measured(one.task_std),
            printed(one.paper),
        ]
        for one in averages(comparison)
    ]
    columns: tuple[str, ...] = (
        "method",
        "protocol",
        "runs",
        "success",
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
        f"Average success, {comparison.suite}",
        columns,
        rows,
        "Over runs that have finished all tasks. Mean task std is what the paper prints behind ± of an average.",
    )


def against_table(comparison: Comparison) -> Table:
    found = against(comparison)
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
            spoken(one.ratio),
            spoken(one.improvement),
            None if one.paper_ratio is None else Measured(one.paper_ratio),
        ]
        for one in found
    ]
    if all(row[-1] is None for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    title = f"Against {found[0].other if found else 'the baseline'}, {comparison.suite}"
    several = any(not math.isnan(one.ratio.low) for one in found)
    note = "With 95% bootstrap intervals over runs." if several else "One run of a method has no interval."
    return Table(f"{comparison.suite}-against", title, columns, rows, note)


def so_far_table(comparison: Comparison, protocol: str) -> Table:
    """Averages and ratios of what all runs have finished; without rows where there are true ones, or nothing yet."""
    part = so_far(comparison, protocol)
    ratios = {one.method: one for one in against(part)} if part else {}
    rows: list[list[Cell]] = []
    for one in averages(part) if part else []:
        versus = ratios.get(one.method)
        rows.append(
            [one.method, str(one.runs), Measured(one.mean.value, one.std), spoken(one.mean), printed(one.paper)]
        )
        rows[-1] += [spoken(versus.ratio), spoken(versus.improvement)] if versus else [None, None]
        rows[-1].append(Measured(versus.paper_ratio) if versus and versus.paper_ratio is not None else None)
    columns = ["method", "runs", "success", "mean, 95% interval", "paper"]
    columns += ["ratio of averages", "probability of improvement", "paper's ratio"]
    kept = [i for i in range(len(columns)) if i < 4 or any(row[i] is not None for row in rows)]
    count = f"the first {len(part.tasks)} of {len(comparison.tasks)} tasks" if part else "no tasks"
    return Table(
        f"{comparison.suite}-{protocol}-so-far",
        f"Average success, {comparison.suite}, {protocol.upper()}, over {count}",
        tuple(columns[i] for i in kept),
        [[row[i] for i in kept] for row in rows],
        "All runs have finished these, none has finished all. Intervals: bootstrap over runs. The paper's: means of its rows.",
    )


def continual_table(comparison: Comparison) -> Table:
    found = continual(comparison)
    left = sorted({short(task) for one in found for task in one.left_out})
    return Table(
        f"{comparison.suite}-continual",
        f"Continual World's metrics, {comparison.suite}, CRL",
        ("method", "runs", "average performance", "forgetting", "forward transfer"),
        [
            [one.method, str(one.runs), Measured(one.performance), Measured(one.forgetting), Measured(one.transfer)]
            for one in found
        ],
        "Forward transfer is against the same method under RL."
        + (f" Without {', '.join(left)}: solved from the first evaluation on when trained alone." if left else ""),
    )


def diagnostics_table(comparison: Comparison, protocol: str) -> Table:
    """Held-out diagnostics at the last evaluation, mean and deviation over runs."""
    methods = [m for m, p, _ in comparison.groups if p == protocol]
    runs = [run for run in comparison.runs if run.protocol == protocol]
    rows: list[list[Cell]] = []
    for name in [name for name in metrics(runs) if name.startswith("heldout/")]:
        row: list[Cell] = [name.split("/", 1)[1]]
        for method in methods:
            last = at_last(comparison.group(method, protocol), name)
            row.append(Measured(float(np.mean(last)), deviation(np.array(last))) if last else None)
        rows.append(row)
    return Table(
        f"{comparison.suite}-{protocol}-diagnostics",
        f"Diagnostics at the last evaluation, {comparison.suite}, {protocol.upper()}",
        ("held-out states", *methods),
        rows,
        "Mean and standard deviation over runs. Definitions: docs/diagnostics.md.",
    )


def foretold_table(comparison: Comparison) -> Table:
    found = foretold(comparison)
    count = sum(end is not None for one in found for end in (one.success, one.returns))

    def cells(one: Association | None) -> list[Cell]:
        return [None, None, None] if one is None else [Measured(one.correlation), f"{one.p:.3f}", str(one.pairs)]

    return Table(
        f"{comparison.suite}-crl-foretold",
        f"Diagnostics at a task's first evaluation and what was reached at its end, {comparison.suite}, CRL",
        ("diagnostic", "success", "p (success)", "pairs (success)", "return", "p (return)", "pairs (return)"),
        [[one.metric, *cells(one.success), *cells(one.returns)] for one in found],
        "Rank correlations within each method and task, from the second task on, over runs that have finished the same tasks; "
        "tasks on which all runs of a method begin or end alike, or whose first evaluations differ, are left out. "
        f"p: share of {RESAMPLES:,} permutations of runs (by seed, where methods have the same seeds) with a correlation as "
        f"strong. Of {count} correlations one in twenty has p below 0.05 by chance.",
    )


def tables(comparison: Comparison) -> list[Table]:
    """All that have rows."""
    every = [average_table(comparison)]
    every += [so_far_table(comparison, protocol) for protocol in comparison.protocols]
    every += [per_task_table(comparison, protocol) for protocol in comparison.protocols]
    every += [against_table(comparison), continual_table(comparison)]
    every += [diagnostics_table(comparison, protocol) for protocol in comparison.protocols]
    every += [foretold_table(comparison)]
    return [table for table in every if table.rows]
