"""The numbers behind the page's charts, as JSON: what hovering shows is what was computed, not what was drawn."""

import json
import math
from typing import Any

import numpy as np

from sphere.report.maps import load_map
from sphere.report.summary import Band, Comparison, averages, band, metrics, short

MOST_RUNS = 20
"""Runs of a method that are drawn one by one; with more of them, the band says it."""

NAMES = {
    "evaluation/success_at_end": "success at the end of an episode",
    "evaluation/success_once": "success at any step of an episode",
    "evaluation/return": "return",
    "ntk_rank": "r_e(K)",
    "feature_rank": "r_e(A_last)",
    "dormant_ratio": "dormant ratio",
    "feature_norm": "feature norm",
    "gradient_norm": "gradient norm",
    "saturation": "actions cut off",
    "overlap": "overlap",
    "orthogonality": "orthogonality",
    "silhouette": "silhouette",
    "knn_jaccard": "kNN Jaccard",
    "max_violation": "MaxVio",
    "active_ratio": "active experts",
    "routing_entropy": "routing entropy",
    "trace_weight_entropy": "trace-weight entropy",
}
ROUTER = ("routing_entropy", "active_ratio", "max_violation")


def spoken_metric(name: str) -> str:
    return NAMES.get(name) or NAMES.get(name.split("/", 1)[-1]) or name.split("/", 1)[-1].replace("_", " ")


def payload(comparison: Comparison) -> dict[str, Any]:
    return {
        "suite": comparison.suite,
        "tasks": [short(task) for task in comparison.tasks],
        "taskSteps": max(run.task_steps for run in comparison.runs),
        "methods": list(comparison.methods),
        "protocols": comparison.protocols,
        "bars": _bars(comparison),
        "curves": {protocol: _curves(comparison, protocol) for protocol in comparison.protocols},
        "loads": {protocol: _loads(comparison, protocol) for protocol in comparison.protocols},
    }


def _bars(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "method": comparison.methods.index(one.method),
            "colour": comparison.colour(one.method),
            "protocol": one.protocol,
            "mean": one.mean.value,
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
    return {
        name: [
            {
                "method": comparison.methods.index(m),
                "colour": comparison.colour(m),
                "dash": comparison.dash(m),
                **_series(one),
            }
            for m, one in bands
            if one is not None
        ]
        for name, bands in found.items()
    }


def _series(one: Band) -> dict[str, Any]:
    runs = one.runs if len(one.runs) <= MOST_RUNS else ()
    return {
        "step": one.step,
        "task": one.task,
        "mean": one.mean,
        "low": one.low,
        "high": one.high,
        "count": len(one.runs),
        "runs": [{"name": name, "values": values} for name, values in runs],
    }


def _loads(comparison: Comparison, protocol: str) -> list[dict[str, Any]]:
    """Per method the mean with experts in order of load, then single runs with experts as they are numbered."""
    found = []
    for method, p, runs in comparison.groups:
        if p != protocol:
            continue
        chosen = [(run.name, load_map([run])) for run in runs[:MOST_RUNS]]
        if (mean := load_map(runs)) is not None and mean.runs > 1:
            chosen.insert(0, (f"mean of {mean.runs} runs, experts by load", mean))
        views = [{"name": name, "step": one.step, "share": one.share} for name, one in chosen if one is not None]
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
