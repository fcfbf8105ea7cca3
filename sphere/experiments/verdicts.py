"""From a claim of the paper and our runs to a verdict, by one rule that the overview of the results prints."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from sphere.experiments.claim import Claim, Side
from sphere.experiments.experiment import Found
from sphere.experiments.runtime import hours_per_task
from sphere.report.paper import Printed
from sphere.report.run import Run
from sphere.report.scores import Scores, final_scores
from sphere.report.statistics import Interval, Numbers, interval, ratio
from sphere.report.tables import digits

REPRODUCED, DIRECTION, UNDECIDED = "reproduced", "direction only", "undecided"
NOT_REPRODUCED, PART, NOT_RUN = "not reproduced", "part", "not run"
VERDICTS = (REPRODUCED, DIRECTION, UNDECIDED, NOT_REPRODUCED, PART, NOT_RUN)

ALIKE = 0.01
"""A ratio in the paper this near to 1 is a claim of no difference."""
MARGIN = 1.25
"""A claim of no difference is reproduced if the interval lies between 1 / MARGIN and MARGIN."""

RULE = f"""
- **{NOT_RUN}**: a side of the claim has no finished run with the paper's settings and number of steps.
- **{PART}**: both sides have such runs, but fewer than the paper.
- Otherwise the 95% interval of our effect decides. The effect is the ratio of the two averages, unless said otherwise.
    - **{REPRODUCED}**: the interval excludes "no effect" and contains the paper's number. Where the paper prints no
      number, the whole interval is on the side that the paper claims.
    - **{DIRECTION}**: the whole interval is on the paper's side of "no effect", but does not contain its number.
    - **{UNDECIDED}**: the interval contains both "no effect" and the paper's number, so our runs cannot decide.
      Also where it contains "no effect" and the paper prints no number, or where there is only one run.
    - **{NOT_REPRODUCED}**: the interval contains "no effect" but not the paper's number, or is on the other side.
- Where the paper claims no difference: **{REPRODUCED}** if the interval contains 1 and lies within {1 / MARGIN:g} to
  {MARGIN:g}, **{UNDECIDED}** if it contains 1 and is wider, **{NOT_REPRODUCED}** if it excludes 1.
""".strip()

CAVEATS = (
    "There is no correction for multiple comparisons: each claim has its own 95% interval, so of many false claims "
    "about one in twenty would look true. With few runs the intervals are a little too narrow (`docs/report.md`).",
    "The paper's number is taken as printed, without an interval of its own. So 'direction only' need not contradict "
    "the paper: both numbers are uncertain.",
    "Whether the paper's own difference is significant is Welch's t test (0.05) on the means and deviations that it "
    "prints. For averages the printed deviation is the mean of the tasks' deviations, which is never smaller than the "
    "deviation of the average, so the test may be too strict.",
)
"""What the rule does not say."""


@dataclass(frozen=True)
class Judged:
    claim: Claim
    verdict: str
    reason: str
    runs: tuple[int, ...]
    """Finished runs of each side."""
    effect: Interval | None = None
    means: tuple[float, ...] = ()


def judge(claim: Claim, found: Found | None, seeds: int) -> Judged:
    """`seeds`: how many runs of each side the paper has."""
    sides = [scores_of(found, side) if found else None for side in claim.sides]
    runs = tuple(len(one.runs) if one else 0 for one in sides)
    known = [one for one in sides if one is not None]
    if len(known) < len(sides):
        missing = dict.fromkeys(side.words for side, count in zip(claim.sides, runs, strict=True) if not count)
        return Judged(claim, NOT_RUN, f"No finished run of {' and of '.join(missing)}.", runs)
    effect = effect_of(claim, known)
    means = tuple(float(one.by_run().mean()) for one in known)
    if min(runs) < seeds:
        reason = f"The paper has {seeds} runs of each side, we have {min(runs)}."
        return Judged(claim, PART, reason, runs, effect, means)
    return Judged(claim, *decide(effect, claim.paper, claim.nothing, claim.below), runs, effect, means)


def decide(effect: Interval, paper: float | None, nothing: float, below: bool = False) -> tuple[str, str]:
    """Verdict and reason. `below`: what the paper claims where it prints no number."""
    if math.isnan(effect.low) or math.isnan(effect.high):
        return UNDECIDED, "A single run has no interval."
    no_effect = '"no effect"' if nothing == 0 else '"no difference"'
    holds_nothing = effect.low <= nothing <= effect.high
    if paper is not None and nothing == 1 and abs(paper - 1) < ALIKE:
        return _alike(effect, holds_nothing)
    claimed_below = below if paper is None else paper < nothing
    if paper is None:
        if holds_nothing:
            return UNDECIDED, f"The interval contains {no_effect}."
        if (effect.high < nothing) == claimed_below:
            return REPRODUCED, "The whole interval is on the side that the paper claims; the paper prints no number."
        return NOT_REPRODUCED, "The whole interval is on the other side than the paper claims."
    holds_paper = effect.low <= paper <= effect.high
    if holds_nothing and holds_paper:
        return UNDECIDED, f"The interval contains both {no_effect} and the paper's number."
    if holds_nothing:
        return NOT_REPRODUCED, f"The interval contains {no_effect} and excludes the paper's number."
    if (effect.high < nothing) != claimed_below:
        return NOT_REPRODUCED, "The whole interval is on the other side than the paper's number."
    if holds_paper:
        return REPRODUCED, f"The interval excludes {no_effect} and contains the paper's number."
    size = "larger" if abs(effect.value - nothing) > abs(paper - nothing) else "smaller"
    return DIRECTION, f"The interval excludes {no_effect}, but the paper's number too: our effect is {size}."


def _alike(effect: Interval, holds_nothing: bool) -> tuple[str, str]:
    if not holds_nothing:
        return NOT_REPRODUCED, "The paper claims no difference, and the interval excludes it."
    if effect.low >= 1 / MARGIN and effect.high <= MARGIN:
        return REPRODUCED, "The paper claims no difference, and the interval contains nothing far from it."
    return UNDECIDED, "The paper claims no difference; the interval contains it, and large differences too."


def scores_of(found: Found, side: Side) -> Scores | None:
    """The runs of a side, each with its number or its numbers by task."""
    runs = found.runs(side.label, side.protocol, side.suite)
    if side.number == "success":
        return found.scores(side.label, side.protocol, side.suite)
    if side.number == "final success":
        return final_scores(runs).scores
    values = {(run.name, run.seed): _number(run, side.number) for run in runs if run.finished}
    known = {key: {side.number: [value]} for key, value in values.items() if math.isfinite(value)}
    return Scores.of(known) if known else None


def _number(run: Run, number: str) -> float:
    """hours, or a metric at the first or last evaluation, or its mean over all: "last heldout/ntk_rank"."""
    if number == "hours":
        return hours_per_task(run)
    when, metric = number.split(" ", 1)
    values = run.curve.values.get(metric, np.array([]))
    if not len(values):
        return math.nan
    return float(np.nanmean(values) if when == "mean" else values[0 if when == "first" else -1])


def effect_of(claim: Claim, sides: list[Scores]) -> Interval:
    if len(sides) == 4:
        return _gap_closed(sides)
    first, second = claim.sides
    same_runs = (first.label, first.protocol) == (second.label, second.protocol)
    if first.number != second.number:  # a metric at two times; ratio compares the same names
        sides = [sides[0], Scores(sides[1].runs, sides[1].seeds, sides[0].tasks, sides[1].table, sides[1].episodes)]
    apart = {first.protocol, second.protocol} == {"rl"}
    return ratio(sides[0], sides[1], paired=same_runs, independent_tasks=apart)


def gap_closed(averages: np.ndarray) -> Numbers:
    """1 - (gap of the second pair) / (gap of the first), of [..., (first RL, first CRL, second RL, second CRL)]."""
    first, second = averages[..., 0] - averages[..., 1], averages[..., 2] - averages[..., 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.round(1 - second / first, 12) + 0.0  # equal gaps leave a last digit, or a minus


def _gap_closed(sides: list[Scores]) -> Interval:
    """Runs of one seed are drawn together: the four averages of a seed are one row."""
    seeds = [seed for seed in sides[0].seeds if all(seed in side.seeds for side in sides)]
    rows = {
        (f"seed {seed}", seed): {
            str(place): [float(side.by_run()[side.seeds.index(seed)])] for place, side in enumerate(sides)
        }
        for seed in seeds
    }
    return interval(Scores.of(rows), lambda table: gap_closed(table.mean(axis=-2)))


def printed_apart(first: Printed, second: Printed, seeds: int) -> bool | None:
    """Whether the paper's two numbers, by what it prints behind +-, are told apart by that many seeds (Welch's t test,
    0.05). None where it prints no deviation."""
    if math.isnan(first.std) or math.isnan(second.std) or seeds < 2:
        return None
    parts = np.array([first.std, second.std]) ** 2 / (seeds - 1)  # population deviations are printed
    if not parts.any():
        return first.mean != second.mean
    freedom = parts.sum() ** 2 / (parts**2 / (seeds - 1)).sum()
    return bool(abs(first.mean - second.mean) > stats.t.ppf(0.975, freedom) * np.sqrt(parts.sum()))


def in_words(judged: Judged) -> str:
    """Effect, interval and the paper's number."""
    if judged.effect is None:
        return ""
    name = "The gap is closed by" if len(judged.claim.sides) == 4 else "Ratio"
    words = f"{name} {digits(judged.effect.value)}"
    if not math.isnan(judged.effect.low):
        words += f" (95%: {digits(judged.effect.low)} to {digits(judged.effect.high)})"
    if judged.claim.paper is not None:
        words += f", in the paper {digits(judged.claim.paper)}"
    return words + "."
