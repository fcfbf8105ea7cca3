"""Numbers in hand-written notes. A note names a number and does not have it: `{{METRIC | WHEN | RECORDS}}`.

METRIC is a name in metrics.jsonl; RECORDS a path below the results, `*` allowed; WHEN one of `first`, `last`,
`lowest`, `highest`, `end of TASK`, `before STEP` (the last one that is earlier) and `after STEP`. Of several runs it is
the mean; with `each` before the metric, all of them in their order. The line may be broken at its spaces.
"""

import math
import re
from functools import lru_cache
from pathlib import Path

import numpy as np

from sphere.errors import unknown
from sphere.report.names import short
from sphere.report.tables import digits
from sphere.storage.run_directory import read_events

FACT = re.compile(r"\{\{([^{}]+)\}\}")
HUGE = 1e6
WHEN = ("first", "last", "lowest", "highest", "end of", "before", "after")


def filled(text: str, root: Path) -> str:
    """A note with its numbers, from the records below `root`."""
    return FACT.sub(lambda match: fact(match[1], root), text)


def fact(words: str, root: Path) -> str:
    parts = [" ".join(part.split()) for part in words.split("|")]
    if len(parts) != 3:
        raise ValueError(f"{{{{{words}}}}} has {len(parts)} parts; wanted METRIC | WHEN | RECORDS")
    metric, when, where = parts
    paths = sorted(path.parent for path in root.glob(f"{where}/metrics.jsonl"))
    if not paths:
        raise ValueError(f"{{{{{words}}}}}: there are no records at {root / where}")
    values = [value(path, metric.removeprefix("each "), when) for path in paths]
    if metric.startswith("each "):
        return " ".join(f"{one:.1f}" for one in values)
    mean = float(np.mean(values))
    return digits(mean) if abs(mean) < HUGE else f"{mean:.0e}"


def value(path: Path, metric: str, when: str) -> float:
    """Of one run."""
    series = [(step, task, number) for step, task, number in _series(path, metric) if math.isfinite(number)]
    word = next((word for word in WHEN if when == word or when.startswith(f"{word} ")), None)
    if word is None:
        raise unknown("time", when, WHEN)
    rest = when.removeprefix(word).strip()
    if word == "end of":
        series = [one for one in series if one[1] == rest]
    elif word == "before":
        series = [one for one in series if one[0] < int(rest)]
    elif word == "after":
        series = [one for one in series if one[0] > int(rest)]
    if not series:
        raise ValueError(f"{path} has no {metric} at {when!r}")
    numbers = [number for _, _, number in series]
    if word in ("lowest", "highest"):
        return min(numbers) if word == "lowest" else max(numbers)
    return numbers[0] if word in ("first", "after") else numbers[-1]


@lru_cache(maxsize=256)
def _events(path: Path) -> tuple[dict, ...]:
    return tuple(read_events(path))


def _series(path: Path, metric: str) -> list[tuple[int, str, float]]:
    return [(one["step"], short(one["task"]), float(one[metric])) for one in _events(path) if metric in one]
