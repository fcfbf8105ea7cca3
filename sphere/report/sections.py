"""The page's part on one comparison: headline, charts to be drawn, tables."""

import math

from sphere.report.comparison_tables import (
    against_table,
    average_table,
    continual_table,
    diagnostics_table,
    foretold_table,
    per_task_table,
    so_far_table,
)
from sphere.report.elements import EMPTY, Markup, element, joined, region, table
from sphere.report.maps import retention
from sphere.report.payload import ROUTER, spoken_metric
from sphere.report.summary import Against, Comparison, against, averages, metrics, short, so_far
from sphere.report.tables import Measured, digits
from sphere.training.progress import plural

NAMES = {"metaworld": "MetaWorld", "humanoidbench": "HumanoidBench", "probe": "Probe tasks"}
PROTOCOLS = {"crl": "CRL: one agent through all tasks", "rl": "RL: every task from scratch"}
RE_K = Markup("<b>r<sub>e</sub>(K)</b>")
RANKS = {
    "heldout/ntk_rank": " on held-out states",
    "online/ntk_rank": " on states of the last rollout",
    "standardised/ntk_rank": " on held-out states, standardised",
}
MOST_CARDS = 8
BARS = (
    "Success right after each task's own training, averaged over tasks. Whiskers: 95% bootstrap interval over runs; "
    "circles: single runs"
)
LINES = (
    " on the task in training. Lines: mean over runs; bands: lowest to highest run. Drag to zoom and double-click to go back, "
    "or use the arrow, + and - keys. "
)


def suite_name(comparison: Comparison) -> str:
    return NAMES.get(comparison.suite, comparison.suite)


def named(metric: str) -> Markup:
    words = joined(spoken_metric(metric)).replace("r_e(", "r<sub>e</sub>(").replace("A_last", "A<sub>last</sub>")
    return element("b", Markup(words))


def key(comparison: Comparison, method: str) -> Markup:
    """A swatch in the method's colour, cut up as its lines are."""
    kind = f"key dash-{comparison.dash(method)}"
    return element("i", class_=kind, style=f"background:var(--method-{comparison.colour(method)})")


def section(comparison: Comparison, index: int) -> Markup:
    names = metrics(comparison.runs)
    success = f"evaluation/success_{comparison.success.replace('-', '_')}"
    parts = [
        element("h2", suite_name(comparison)),
        headline(comparison),
        cards(comparison),
        controls(comparison),
        _averages(comparison),
        element("h3", "Task by task"),
        *(_only(p, table(per_task_table(comparison, p), total=True)) for p in comparison.protocols),
        *(_only(p, table(one)) for p in comparison.protocols if (one := so_far_table(comparison, p)).rows),
        element("h3", "Learning curves"),
        chart("lines", joined(element("b", "Success"), LINES, numbered(comparison)), success),
        chart("lines", joined(element("b", "Return"), " on the task in training."), "evaluation/return"),
        _plasticity(names),
        _router(names),
        _diagnostics(comparison, names),
        _retention(comparison),
        _continual(comparison),
        element("h3", "t-SNE of features"),
        element(
            "p",
            "Run directories hold no features, so there are no panels here; sphere.report.figures.tsne_panels draws them.",
            class_="soft",
        ),
    ]
    return element("section", *parts, class_="comparison", data_comparison=index, id=f"c{index}")


def _averages(comparison: Comparison) -> Markup:
    found = averages(comparison)
    if not found:
        return EMPTY
    paper = "; open diamonds: the paper." if any(one.paper for one in found) else "."
    tables = (average_table(comparison), against_table(comparison))
    return joined(
        element("h3", "Average success"),
        chart("bars", joined(BARS, paper)),
        *(table(one) for one in tables if one.rows),
    )


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
    elif not found and (part := so_far(comparison, comparison.protocols[-1])):
        text += "No run has finished all tasks yet. "
        text += _versus(part, f"Over the first {len(part.tasks)}, under") or "What all have is averaged below. "
    elif not found:
        text += "No run has finished all tasks yet, so there is no average to compare; the curves show what there is. "
    few = min((one.runs for one in found if one.protocol == comparison.protocols[-1]), default=5)
    if few == 1:
        text += "One run of a method says nothing about the next one."
    elif few < 5:
        # an interval cannot leave the range of the runs, and all of n runs lie on one side of the median once in 2^(n - 1)
        text += f"{few} runs of a method are few: such intervals miss the truth about one time in {2 ** (few - 1)}."
    return element("p", text, class_="lead")


def _versus(comparison: Comparison, begin: str) -> str:
    versus = [one for one in against(comparison) if one.protocol == comparison.protocols[-1]]
    chosen = [one for one in versus if one.method.startswith("SPHERE")][:1] or versus[:2]
    return "".join(_against(one, begin) for one in chosen)


def _against(one: Against, begin: str) -> str:
    start = f"{begin} {one.protocol.upper()}, "
    if not math.isfinite(one.ratio.value):
        return f"{start}{one.other} has no success to compare {one.method} with. "
    start += f"{one.method} reaches {digits(one.ratio.value)} times the success of {one.other}"
    if math.isnan(one.ratio.low):
        return f"{start}. "
    sure = f"(95%: {digits(one.ratio.low)} to {digits(one.ratio.high)})"
    return f"{start} {sure}; a run of it is the better one with probability {digits(one.improvement.value)}. "


def cards(comparison: Comparison) -> Markup:
    """One per method and protocol, or with many methods of the continual protocol only: the average and how sure it is."""
    found, every = [], averages(comparison)
    for one in (
        every if len(every) <= MOST_CARDS else [one for one in every if one.protocol == comparison.protocols[-1]]
    ):
        more = [plural(one.runs, "run")]
        if not math.isnan(one.mean.low):
            more.insert(0, f"{digits(one.mean.low)} to {digits(one.mean.high)} (95%)")
        if one.paper:
            more.append(f"paper {Measured(*one.paper).text()}")
        lines = [joined(*([Markup("<br>")] if place else []), line) for place, line in enumerate(more)]
        who = [key(comparison, one.method), one.method, element("span", one.protocol.upper())]
        number = [digits(one.mean.value)]
        if not math.isnan(one.std):
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


def controls(comparison: Comparison) -> Markup:
    protocols = [
        element("button", p.upper(), type="button", data_protocol=p, aria_pressed="false", title=PROTOCOLS[p])
        for p in comparison.protocols
    ]
    methods = [
        element("button", key(comparison, name), name, type="button", data_method=i, aria_pressed="true")
        for i, name in enumerate(comparison.methods)
    ]
    return element(
        "div",
        element("div", *protocols, role="group", aria_label="protocol"),
        element("div", *methods, role="group", aria_label="methods"),
        element("label", Markup('<input type="checkbox" class="single">'), "single runs"),
        class_="controls",
        role="group",
        aria_label="what the charts show",
    )


def chart(kind: str, caption: Markup, metric: str = "", small: bool = False) -> Markup:
    """A place that the page's script draws into."""
    plot = element(
        "div",
        class_="plot",
        data_kind=kind,
        data_metric=metric or False,
        data_title=spoken_metric(metric) if metric else kind,
        data_small="1" if small else False,
    )
    return element("figure", element("figcaption", caption), plot)


def numbered(comparison: Comparison) -> Markup:
    """Where there is no room for names, charts number the tasks and the script shows this."""
    names = " · ".join(f"{number} {short(task)}" for number, task in enumerate(comparison.tasks, 1))
    return element("span", f"Tasks: {names}.", class_="numbers", hidden=True)


def _only(protocol: str, *content: Markup) -> Markup:
    return element("div", *content, data_only=protocol)


def _plasticity(names: list[str]) -> Markup:
    shown = [chart("lines", joined(RE_K, words), name) for name, words in RANKS.items() if name in names]
    told = " the effective rank of the empirical NTK: how many directions one update can move the policy in."
    if not shown:
        return EMPTY
    head = element("p", Markup("r<sub>e</sub>(K),"), told, class_="soft")
    return joined(element("h3", "Spectral plasticity"), head, element("div", *shown, class_="pair"))


def _router(names: list[str]) -> Markup:
    small = [
        chart("lines", joined(named(name), f", {words}"), name, small=True)
        for metric in ROUTER
        for name, words in ((f"heldout/{metric}", "held-out"), (f"online/{metric}", "rollout"))
        if name in names
    ]
    if not small:
        return EMPTY
    caption = joined(
        element("b", "Share of selections by expert"), " on held-out states, over training. Dashed: task boundaries."
    )
    heat = element(
        "figure", element("figcaption", caption), element("div", class_="plot", data_kind="heat"), class_="loads"
    )
    return joined(element("h3", "Router health"), heat, element("div", *small, class_="many"))


def _diagnostics(comparison: Comparison, names: list[str]) -> Markup:
    shown = [n for n in names if n.startswith("heldout/") and n not in RANKS and n.split("/")[1] not in ROUTER]
    if not shown:
        return EMPTY
    small = [chart("lines", named(name), name, small=True) for name in shown]
    last = [_only(protocol, table(diagnostics_table(comparison, protocol))) for protocol in comparison.protocols]
    head = [element("h3", "Diagnostics"), element("p", "On held-out states.", class_="soft")]
    return joined(*head, element("div", *small, class_="many"), *last, _foretold(comparison))


def _foretold(comparison: Comparison) -> Markup:
    found = foretold_table(comparison)
    if not found.rows:
        return EMPTY
    told = "Do runs of one method that differ at the first evaluation of a task differ in what they reach on it?"
    head = [element("h3", "What beginnings foretell"), element("p", told, class_="soft")]
    return _only("crl", *head, table(found))


def _retention(comparison: Comparison) -> Markup:
    kept = [matrix for method in comparison.methods if (matrix := retention_matrix(comparison, method))]
    if not kept:
        return EMPTY
    told = (
        "Success of one policy on every task (columns) after it was trained on each in turn (rows), mean over CRL runs. "
        "Below the diagonal: what is left of what it had learnt."
    )
    layout = "pair" if len(comparison.tasks) <= 5 else "wide"
    return joined(element("h3", "Retention"), element("p", told, class_="soft"), element("div", *kept, class_=layout))


def retention_matrix(comparison: Comparison, method: str) -> Markup:
    found = retention(comparison, comparison.group(method, "crl"))
    if found is None:
        return EMPTY
    names = [short(task) for task in comparison.tasks]
    head = [
        element("th", "after … on"),
        *(element("th", str(n), scope="col", title=name) for n, name in enumerate(names, 1)),
    ]
    rows = []
    for number, (name, row) in enumerate(zip(names, found.tolist(), strict=True), 1):
        cells = [element("td", digits(v), style=f"--v:{0 if math.isnan(v) else v:.3f}") for v in row]
        rows.append(element("tr", element("th", f"{number} {name}", scope="row"), *cells))
    matrix = element("table", element("thead", element("tr", *head)), element("tbody", *rows), class_="retention")
    return element("figure", element("figcaption", element("b", method)), region(f"retention of {method}", matrix))


def _continual(comparison: Comparison) -> Markup:
    world = continual_table(comparison)
    return joined(element("h3", "Continual World"), table(world)) if world.rows else EMPTY
