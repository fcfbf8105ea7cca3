"""What a reader would stumble over in the charts: lines that lie on one another, runs without a success."""

import itertools
from collections.abc import Sequence

import numpy as np

from sphere.report.comparison import Comparison
from sphere.report.run import Run
from sphere.training.progress import plural

MOST_NAMED = 3


def remarks(comparison: Comparison) -> list[str]:
    several = len(comparison.protocols) > 1
    found = []
    for protocol in comparison.protocols:
        where = f" under {protocol.upper()}" if several else ""
        groups = {m: runs for m, p, runs in comparison.groups if p == protocol}
        found += same_methods(groups, comparison.curve, where)
        for method, runs in groups.items():
            found += same_runs(method, runs, where)
            if comparison.words.bounded:
                found += without_score(method, runs, comparison.curve, comparison.words.word, where)
    return found


def same(one: Run, other: Run, names: Sequence[str] | None = None) -> bool:
    """Whether two runs have the same numbers at every evaluation that both have; `names`: only these."""
    count = min(one.curve.step.size, other.curve.step.size)
    if not count or not np.array_equal(one.curve.step[:count], other.curve.step[:count]):
        return False
    shared = [n for n in names or one.curve.values if n in one.curve.values and n in other.curve.values]
    return bool(shared) and all(
        np.array_equal(one.curve.values[n][:count], other.curve.values[n][:count], equal_nan=True) for n in shared
    )


def same_methods(groups: dict[str, list[Run]], score: str, where: str) -> list[str]:
    """Methods whose lines cannot be told apart."""
    found = []
    for (first, ours), (second, theirs) in itertools.combinations(groups.items(), 2):
        seeds = {run.seed: run for run in theirs}
        pairs = [(run, seeds[run.seed]) for run in ours if run.seed in seeds]
        if not pairs or len(pairs) < max(len(ours), len(theirs)):
            continue
        if all(same(*pair) for pair in pairs):
            found.append(
                f"{first} and {second} have the same numbers at every evaluation{where}: one line lies on the other, "
                "and whatever tells these methods apart has changed nothing so far."
            )
        elif all(same(*pair, names=[score]) for pair in pairs) and _succeeds(ours, score):
            found.append(
                f"{first} and {second} have the same score at every evaluation{where}: one line hides the other."
            )
    return found


def _succeeds(runs: Sequence[Run], score: str) -> bool:
    return any(np.nan_to_num(run.curve.values.get(score, np.zeros(1))).any() for run in runs)


def same_runs(method: str, runs: Sequence[Run], where: str) -> list[str]:
    """Runs of one method that differ in their seed and in nothing else should not have the same numbers."""
    pairs = [pair for pair in itertools.combinations(runs, 2) if same(*pair)]
    names = list(dict.fromkeys(run.name for pair in pairs for run in pair))
    if not names:
        return []
    shown = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
    return [f"Runs of {method}{where} have the same numbers ({shown}): copies count as one run, not as several."]


def without_score(method: str, runs: Sequence[Run], score: str, word: str, where: str) -> list[str]:
    """Runs whose score has been 0 at every evaluation: they may have learned nothing, or not enough to be counted."""
    begun = [run for run in runs if score in run.curve.values and run.curve.step.size]
    none = [run for run in begun if not np.nan_to_num(run.curve.values[score]).any()]
    if not none:
        return []
    had = f"had no {word} at any evaluation{'' if all(run.finished for run in none) else ' yet'}"
    if len(none) == len(runs):
        return [f"{method}{where} has {had}: by this score it has learned nothing."]
    return [
        f"{len(none)} of {plural(len(runs), 'run')} of {method}{where} {'has' if len(none) == 1 else 'have'} {had}."
    ]
