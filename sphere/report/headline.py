"""What a comparison says first: a few sentences, and a card per method with its average."""

import math

from sphere.report import paper
from sphere.report.comparison import Comparison
from sphere.report.elements import EMPTY, Markup, element, joined
from sphere.report.names import ScoreName
from sphere.report.remarks import remarks
from sphere.report.summary import Against, against_baseline, averages, finished_part
from sphere.report.tables import MeanStd, digits
from sphere.training.progress import plural

MOST_CARDS = 8


def headline(comparison: Comparison) -> Markup:
    """What the comparison says in a few sentences; with what is missing, not without it."""
    runs, done = len(comparison.runs), sum(run.finished for run in comparison.runs)
    counts = [plural(len(comparison.methods), "method"), plural(len(comparison.tasks), "task"), plural(runs, "run")]
    counts[1] += f" of {comparison.steps_per_task:,} steps"
    text = ", ".join(counts) + (", all finished. " if done == runs else f", {done} of them finished. ")
    text += _versus(comparison, "Under")
    found = averages(comparison)
    if done == runs and not found:
        text += "They have no evaluations to compare. "
    elif not found and (part := finished_part(comparison, comparison.protocols[-1])):
        text += "No run has finished all tasks yet. "
        text += _versus(part, f"Over the first {len(part.tasks)}, under") or "What all have is averaged below. "
    elif not found:
        text += "No run has finished all tasks yet, so there is no average to compare; see the curves. "
    few = min((one.runs for one in found if one.protocol == comparison.protocols[-1]), default=5)
    if few == 1:
        text += "One run of a method says nothing about the next one."
    elif few < 5:
        # an interval cannot leave the range of the runs, and all n of them lie on one side of the median
        # once in 2^(n - 1)
        text += f"{few} runs of a method are few: such intervals miss the truth about one time in {2 ** (few - 1)}."
    notes = [element("li", one) for one in remarks(comparison)]
    return joined(element("p", text, class_="lead"), element("ul", *notes, class_="notes") if notes else EMPTY)


def _versus(comparison: Comparison, begin: str) -> str:
    versus = [one for one in against_baseline(comparison) if one.protocol == comparison.protocols[-1]]
    chosen = [one for one in versus if one.method.startswith(paper.PROPOSED)][:1] or versus[:2]
    return "".join(_against(one, begin, comparison.words) for one in chosen)


def _against(one: Against, begin: str, score: ScoreName) -> str:
    start, better = f"{begin} {one.protocol.upper()}, ", ""
    if not math.isnan(one.improvement.low):
        better = f"a run of {{}} is the better one with probability {digits(one.improvement.value)}. "
    if math.isnan(one.ratio.value) and not score.bounded:
        return start + better.format(one.method) if better else ""
    if not math.isfinite(one.ratio.value):
        return f"{start}{one.other} has no {score.word} to compare {one.method} with. "
    start += f"{one.method} reaches {digits(one.ratio.value)} times the {score.word} of {one.other}"
    if math.isnan(one.ratio.low):
        return f"{start}. "
    sure = f"(95%: {digits(one.ratio.low)} to {digits(one.ratio.high)})"
    return f"{start} {sure}; {better.format('it')}"


def cards(comparison: Comparison) -> Markup:
    """One per method and protocol, or with many methods of the continual protocol only: the average and how sure
    it is."""
    found, every = [], averages(comparison)
    for one in (
        every if len(every) <= MOST_CARDS else [one for one in every if one.protocol == comparison.protocols[-1]]
    ):
        more = [plural(one.runs, "run")]
        if not math.isnan(one.mean.low) and one.mean.high:
            more.insert(0, f"{digits(one.mean.low)} to {digits(one.mean.high)} (95%)")
        if one.paper:
            more.append(f"paper {MeanStd(*one.paper).text()}")
        lines = [joined(*([Markup("<br>")] if place else []), line) for place, line in enumerate(more)]
        who = [key(comparison, one.method), one.method, element("span", one.protocol.upper())]
        nothing = one.mean.value == 0 and comparison.words.bounded
        number = [element("small", f"no {comparison.words.word} yet") if nothing else digits(one.mean.value)]
        if not math.isnan(one.std) and not nothing:
            number += [" ", element("small", f"± {one.std:.2f}")]
        found.append(
            element(
                "li",
                element("div", *who, class_="who"),
                element("div", *number, class_="number"),
                element("div", *lines, class_="more"),
                class_="card",
            )
        )
    return element("ul", *found, class_="cards") if found else EMPTY


def legend(comparison: Comparison) -> Markup:
    """Which line is which, beside the charts; the script leaves out methods that are switched off."""
    entries = [
        element("span", key(comparison, name), name, data_entry=place) for place, name in enumerate(comparison.methods)
    ]
    return element("span", *entries, class_="legend")


def key(comparison: Comparison, method: str) -> Markup:
    """A swatch in the method's colour, cut up as its lines are."""
    kind = f"key dash-{comparison.dash(method)}"
    return element("i", class_=kind, style=f"background:var(--method-{comparison.colour(method)})")
