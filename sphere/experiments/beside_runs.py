"""What stands beside a table of results: repeats, records that are not counted, networks, and what beginnings tell."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sphere.experiments.arms import PAIR
from sphere.experiments.claim import Claim
from sphere.experiments.experiment import Experiment, Found
from sphere.experiments.matching import Archive, differences, in_words
from sphere.experiments.verdicts import decide
from sphere.report import paper
from sphere.report.comparison_tables import with_bounds
from sphere.report.names import short
from sphere.report.predictors import early_predictors
from sphere.report.run import Run
from sphere.report.scores import Scores, own_episodes
from sphere.report.statistics import deviation, ratio
from sphere.report.tables import Cell, MeanStd, Table, digits
from sphere.storage.reader import RunContents
from sphere.training.progress import plural

NETWORKS = {
    "heldout/ntk_rank": "r_e(K), held-out states",
    "online/ntk_rank": "r_e(K), states of the last rollout",
    "standardised/ntk_rank": "r_e(K), held-out states, standardised",
    "online/feature_norm": "Norm of the features, states of the last rollout",
    "online/saturation": "Share of action components cut off",
    "online/dormant_ratio": "Share of dormant units, states of the last rollout",
}


def networks_tables(found: Found) -> list[Table]:
    """Each metric at the end of each task: mean and deviation over runs."""
    one = found.comparison
    made = []
    for metric, title in NETWORKS.items():
        rows: list[list[Cell]] = []
        for index, task in enumerate(one.tasks):
            rows.append([short(task), *(_at_end(one.group(method, "crl"), metric, index) for method in one.methods)])
        made.append(Table("networks", title, ("task", *one.methods), rows))
    return made


def _at_end(runs: Sequence[Run], metric: str, index: int) -> MeanStd | None:
    values = []
    for run in runs:
        place = np.flatnonzero(run.curve.step == run.task_steps * (index + 1))
        if metric in run.curve.values and place.size:
            values.append(run.curve.values[metric][place[0]])
    known = np.array([value for value in values if np.isfinite(value)])
    return MeanStd(float(np.mean(known)), deviation(known)) if known.size else None


SINCE = 3
"""The question was put when the first three tasks of MetaWorld had been trained."""


def predictors_lines(found: Found) -> list[str]:
    """r_e(K) at a task's first evaluation with what was reached at its end, for the pair."""
    one = found.comparison
    runs = tuple(run for run in one.runs if run.method in PAIR)
    pair = dataclasses.replace(one, runs=runs, methods=tuple(name for name in one.methods if name in PAIR))
    places = {"online/ntk_rank": "rollout", "heldout/ntk_rank": "held-out", "standardised/ntk_rank": "standardised"}
    known = {predictor.metric: predictor for predictor in early_predictors(pair, since=SINCE)}
    lines: list[str] = []
    for metric, place in places.items():
        for name in ("return", "success"):
            predictor = known.get(metric)
            told = predictor and (predictor.second if name == "return" else predictor.score)
            if told:
                asked = " This is the question that was fixed beforehand." if not lines else ""
                lines.append(
                    f"{place} states, {name}: rank correlation {digits(told.correlation)}, p {told.p:.3f}, "
                    f"{told.pairs} pairs.{asked}"
                )
    if not lines:
        return []
    head = (
        "Does r_e(K) at a task's first evaluation predict how the task ends? The main question, r_e(K) on rollout "
        f"states against the return, was fixed before the tasks from {short(one.tasks[SINCE])} on were trained. Only "
        "these tasks are used. Ranks are within each method (Top-K MoE and SPHERE) and task; runs of one seed are "
        "permuted together."
    )
    return ["## Does an early rank predict the end?", "", head, "", *(f"- {line}" for line in lines), ""]


# Repeats


def repeat_lines(claim: Claim, counted: Found, repeated: Found | None) -> list[str]:
    """The main claim again, with runs that have the settings and seeds of those that count but are other runs: they
    were made by another version or on another machine. On the tasks that all have finished."""
    if repeated is None:
        return []
    groups = [[found.runs(side.label, side.protocol) for side in claim.sides] for found in (counted, repeated)]
    every = [run for group in groups for runs in group for run in runs]
    if not all(len(runs) > 1 for group in groups for runs in group):
        return []
    tasks = [
        task for task in every[0].tasks if all(task in run.tasks and own_episodes(run, task).size for run in every)
    ]
    if len(tasks) < 2:
        return []
    both = [[*groups[0][place], *groups[1][place]] for place in range(2)]
    rows, last = [], None
    for name, sides in (("counted above", groups[0]), ("repeats", groups[1]), ("both, by seed", both)):
        scores = [_by_seed(runs, tasks) for runs in sides]
        last = ratio(scores[0], scores[1])
        means = [digits(float(one.by_run().mean())) for one in scores]
        rows.append(f"| {name} | {' | '.join(means)} | {with_bounds(last).replace('[', '(').replace(']', ')')} |")
    suite, protocol = every[0].suite, claim.sides[0].protocol
    printed = [
        np.mean([paper.SUCCESS[suite, protocol][side.label][short(task)].mean for task in tasks])
        for side in claim.sides
    ]
    theirs = float(printed[0] / printed[1])
    assert last is not None
    verdict, reason = decide(last, theirs, claim.nothing)
    labels = [side.label for side in claim.sides]
    return [
        "## Repeats",
        "",
        f"There are {plural(sum(len(runs) for runs in groups[1]), 'more run')} with these settings and seeds, made by "
        "another version or on another machine. Different rounding made them different runs, so they are a second "
        "sample. To leave them out would be a choice made after seeing the results. On the "
        f"{len(tasks)} tasks that all have finished:",
        "",
        f"| | {labels[0]} | {labels[1]} | ratio |",
        "|---|---:|---:|---:|",
        *rows,
        "",
        f"The paper's ratio on these tasks is {digits(theirs)}. By the rule, both together: **{verdict}**. {reason}",
        "",
    ]


def _by_seed(runs: Sequence[Run], tasks: Sequence[str]) -> Scores:
    """Runs of one seed begin alike, so they are one sample: their mean."""
    seeds: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        seeds[run.seed].append(run)
    return Scores.of(
        {
            (f"seed {seed}", seed): {
                task: [float(np.mean([own_episodes(run, task).mean() for run in some]))] for task in tasks
            }
            for seed, some in seeds.items()
        }
    )


# Records that are not counted


BESIDE = (
    "These are in `results/` too: repeats of counted runs, and runs with other settings, fewer tasks or fewer steps. "
    "The numbers are success at the end of each finished task, averaged over the seeds named."
)


def beside_lines(
    experiment: Experiment, records: Archive, beside: Sequence[Path], repeats: Sequence[Path]
) -> list[str]:
    """By directory: what is different, and success after each task that was finished."""
    groups: dict[tuple[str, str, str], list[Path]] = defaultdict(list)
    for path in [*beside, *repeats]:
        record = records.records[path]
        why = "a repeat" if path in repeats else in_words(differences(record, experiment)) or "fewer tasks"
        groups[records.short(path.parent), record.config["label"], why].append(path)
    lines = []
    for (folder, label, why), paths in sorted(groups.items()):
        seeds = [str(records.records[path].config["seed"]) for path in paths]
        told = _successes([records.records[path] for path in paths])
        lines.append(f"`{folder}`: {label}, {why}; seed{'s' * (len(seeds) > 1)} {' '.join(seeds)}: {told}.")
    return lines


def _successes(found: Sequence[RunContents]) -> str:
    words = []
    tasks = max((record.config["settings"]["tasks"] for record in found), key=len)
    for index, task in enumerate(tasks):
        values = []
        for record in found:
            rows = record.episodes.rows.get((index, "evaluation"), np.array([], int))
            rows = rows[record.episodes.step[rows] == record.config["task_steps"] * (index + 1)]
            if rows.size:
                values.append(record.episodes.columns[record.config["score"]][rows].mean())
        if values:
            words.append(f"{short(task)} {digits(float(np.mean(values)))}")
    return ", ".join(words) or "no task finished"
