"""The numbers behind the page's charts, as JSON: what hovering shows is what was computed, not what was drawn."""

import json
import math
from typing import Any

import numpy as np

from sphere.report.comparison import MOST_TASKS, Band, Comparison, band, load_map, metrics, task_band
from sphere.report.names import short
from sphere.report.summary import averages
from sphere.report.tables import digits

MOST_RUNS = 20
"""Runs of a method that are drawn one by one; with more of them, the band says it."""
MOST_POINTS = 500
"""Of a line. A longer one is thinned: a chart has about a thousand pixels."""
MOST_COLUMNS = 200
"""Of a heat map: each is as many rectangles as there are experts."""


def chart_data(comparison: Comparison) -> dict[str, Any]:
    return {
        "suite": comparison.suite,
        "word": comparison.words.word,
        "bounded": comparison.words.bounded,
        "tasks": [short(task) for task in comparison.tasks],
        "manyTasks": comparison.many_tasks,
        "stepUnit": comparison.step_unit,
        "taskSteps": max(run.task_steps for run in comparison.runs),
        "methods": list(comparison.methods),
        "protocols": comparison.protocols,
        "bars": _bars(comparison),
        "curves": {protocol: _curves(comparison, protocol) for protocol in comparison.protocols},
        "byTask": {protocol: _by_task(comparison, protocol) for protocol in comparison.protocols},
        "loads": {protocol: _loads(comparison, protocol) for protocol in comparison.protocols},
    }


def _bars(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "method": comparison.methods.index(one.method),
            "colour": comparison.colour(one.method),
            "protocol": one.protocol,
            "mean": one.mean.value,
            "text": digits(one.mean.value),  # the page's script would round 0.125 another way
            "low": one.mean.low,
            "high": one.mean.high,
            "std": one.std,
            "runs": list(one.by_run),
            "paper": one.paper and one.paper.mean,
        }
        for one in averages(comparison)
    ]


def _curves(comparison: Comparison, protocol: str) -> dict[str, list[dict[str, Any]]]:
    groups = [(m, runs) for m, p, runs in comparison.groups if p == protocol]
    names = metrics([run for _, runs in groups for run in runs])
    found = {name: [(m, band(runs, name)) for m, runs in groups] for name in names}
    return {name: [_series(comparison, m, one) for m, one in bands if one is not None] for name, bands in found.items()}


def _by_task(comparison: Comparison, protocol: str) -> list[dict[str, Any]]:
    """The score at the end of every task, where there are too many tasks for a table."""
    if not comparison.many_tasks:
        return []
    groups = [(m, runs) for m, p, runs in comparison.groups if p == protocol]
    return [_series(comparison, m, one) for m, runs in groups if (one := task_band(comparison, runs))]


def _series(comparison: Comparison, method: str, one: Band) -> dict[str, Any]:
    runs = one.runs if len(one.runs) <= MOST_RUNS else ()
    kept = _shown(one)
    return {
        "method": comparison.methods.index(method),
        "colour": comparison.colour(method),
        "dash": comparison.dash(method),
        "step": one.step[kept],
        "task": one.task[kept],
        "mean": one.mean[kept],
        "low": one.low[kept],
        "high": one.high[kept],
        "count": len(one.runs),
        "runs": [{"name": name, "values": values[kept]} for name, values in runs],
    }


def _shown(one: Band) -> np.ndarray:
    """Points that are drawn. Of many tasks the last evaluation of each: a fixed stride would show some early and
    some late."""
    if len(one.step) <= MOST_POINTS:
        return np.arange(len(one.step))
    ends = np.flatnonzero(np.append(np.diff(one.task) != 0, True))
    points = ends if len(ends) > MOST_TASKS else np.arange(len(one.step))
    return points[thinned(len(points), MOST_POINTS)]


def thinned(length: int, most: int) -> np.ndarray:
    """Indices of at most so many of a line's points, evenly spaced; the last is always one of them."""
    if length <= most:
        return np.arange(length)
    return np.ceil(np.arange(1, most + 1) * length / most).astype(int) - 1


def _loads(comparison: Comparison, protocol: str) -> list[dict[str, Any]]:
    """Per method the mean with experts in order of load, then single runs with experts as they are numbered."""
    found = []
    for method, p, runs in comparison.groups:
        if p != protocol:
            continue
        chosen = [(run.name, load_map([run])) for run in runs[:MOST_RUNS]]
        if (mean := load_map(runs)) is not None and mean.runs > 1:
            chosen.insert(0, (f"mean of {mean.runs} runs, experts by load", mean))
        views = []
        for name, one in chosen:
            if one is not None:
                kept = thinned(len(one.step), MOST_COLUMNS)
                views.append({"name": name, "step": one.step[kept], "share": one.share[:, kept]})
        if views:
            found.append({"method": comparison.methods.index(method), "views": views})
    return found


def dump(value: Any) -> str:
    """JSON that may stand in a script element: nothing in a name can end it."""
    text = json.dumps(_plain(value), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
