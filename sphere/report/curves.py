"""All curves as one CSV file: a row for each evaluation of each run, a column for each metric."""

import csv
import io
from collections.abc import Sequence

import numpy as np

from sphere.report.comparison import metrics
from sphere.report.names import short
from sphere.report.run import Run
from sphere.report.tables import safe

COLUMNS = ("suite", "protocol", "method", "run", "seed", "step", "task_number", "task")


def curves_csv(runs: Sequence[Run]) -> str:
    """Metrics by their names in the records; a cell is empty where a run does not have one. Records are of float32, so
    nine digits hold all there is."""
    names = metrics(runs)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, *names])
    for run in runs:
        who = [safe(run.suite), run.protocol, safe(run.method), safe(run.name), run.seed]
        for row, (step, task) in enumerate(zip(run.curve.step.tolist(), run.curve.task.tolist(), strict=True)):
            values = [run.curve.values[name][row] if name in run.curve.values else np.nan for name in names]
            cells = ["" if np.isnan(value) else f"{value:.9g}" for value in values]
            writer.writerow([*who, step, task + 1, safe(short(run.tasks[task])), *cells])
    return out.getvalue()
