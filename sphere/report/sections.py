"""The page's part on one comparison: charts to be drawn, and tables."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sphere.report import paper
from sphere.report.chart_data import MOST_POINTS
from sphere.report.comparison import Comparison, metrics, retention
from sphere.report.comparison_tables import (
    against_table,
    average_table,
    continual_table,
    diagnostics_table,
    finished_part_table,
    per_task_table,
    predictors_table,
    tenths_table,
)
from sphere.report.elements import EMPTY, Markup, element, joined, region, table
from sphere.report.headline import cards, headline, key, legend
from sphere.report.metrics import DIRECTIONS, full_words, is_bounded, measure, metric_words
from sphere.report.names import short
from sphere.report.summary import averages
from sphere.report.tables import Cell, MeanStd, Table, digits

PROTOCOLS = {"crl": "CRL: one agent through all tasks", "rl": "RL: every task from scratch"}
MOST_PREDICTORS = 12
"""Rows of a table that is the strongest first: the rest are hardly ever of interest."""
ROUTER = ("routing_entropy", "active_ratio", "max_violation")
RE_K = Markup("<b>r<sub>e</sub>(K)</b>")
RANKS = {
    "heldout/ntk_rank": " on held-out states",
    "online/ntk_rank": " on states of the last rollout",
    "standardised/ntk_rank": " on held-out states, standardised",
}
BARS = (
    " right after each task's own training, averaged over tasks. Whiskers: 95% bootstrap interval over runs; "
    "circles: single runs"
)
BANDS = "Lines: mean over runs; bands: lowest to highest run. "
ZOOM = "Drag to zoom and double-click to go back, or use the arrow, + and - keys. "


def suite_name(comparison: Comparison) -> str:
    return paper.SUITES.get(comparison.suite, comparison.suite)


def with_indices(words: str) -> Markup:
    return Markup(joined(words).replace("r_e(", "r<sub>e</sub>(").replace("A_last", "A<sub>last</sub>"))


def direction(metric: str) -> Markup:
    """Whether up is good."""
    better = measure(metric).better
    return element("span", DIRECTIONS[better], class_="better" if better else "better neither")


def about(metric: str, where: str = "") -> Markup:
    """The caption of a small chart: its name, which way is better, and what it says."""
    words, meaning = element("b", with_indices(metric_words(metric))), measure(metric).meaning
    said = element("span", direction(metric), f" · {meaning}" if meaning else "", class_="said")
    return joined(words, f", {where}" if where else "", said)


def section(comparison: Comparison, index: int) -> Markup:
    names = metrics(comparison.runs)
    parts = [
        element("h2", suite_name(comparison)),
        headline(comparison),
        cards(comparison),
        controls(comparison),
        _averages(comparison),
        _by_task(comparison),
        _learning_curves(comparison, names),
        _plasticity(comparison, names),
        _router(comparison, names),
        _diagnostics(comparison, names),
        _retention(comparison),
        _continual(comparison),
    ]
    return element("section", *parts, class_="comparison", data_comparison=index, id=f"c{index}")


def _by_task(comparison: Comparison) -> Markup:
    tables = tenths_table if comparison.many_tasks else per_task_table
    made = [(p, tables(comparison, p)) for p in comparison.protocols]
    known = [
        (p, one) for p, one in made if any(isinstance(cell, MeanStd) for row in one.rows for cell in ours(one, row))
    ]
    if not known:
        return EMPTY
    parts = [_only(p, table(one, total=True, zero=nothing(comparison))) for p, one in known]
    if comparison.many_tasks:
        words = element("b", comparison.words.word.capitalize())
        caption = joined(words, " right after each task's own training, by task. ", BANDS, _reading(comparison))
        parts.insert(0, chart("tasks", caption, comparison.curve))
    partial = [(p, finished_part_table(comparison, p)) for p in comparison.protocols]
    parts += [_only(p, table(one, zero=nothing(comparison))) for p, one in partial if one.rows]
    return joined(element("h3", "Task by task"), *parts)


def ours(one: Table, row: Sequence[Cell]) -> list[Cell]:
    """The cells of a row that are not the paper's."""
    return [cell for name, cell in zip(one.columns, row, strict=True) if name != "paper"]


def nothing(comparison: Comparison) -> str:
    """What a table shows of a score of 0 in all runs."""
    return f"no {comparison.words.word}" if comparison.words.bounded else ""


def _reading(comparison: Comparison, metric: str = "") -> Markup:
    """What stands below the words of a large chart: which way is better, and which line is which."""
    return element("span", direction(metric or comparison.curve), legend(comparison), class_="reading")


def _learning_curves(comparison: Comparison, names: list[str]) -> Markup:
    if not any(name in names for name in comparison.score_curves):
        return EMPTY
    words = element("b", comparison.words.word.capitalize())
    caption = joined(words, " on the task in training. ", BANDS, ZOOM, task_numbers(comparison))
    if comparison.many_tasks:
        caption = joined(caption, f"Of more than {MOST_POINTS} evaluations the last of each task are shown. ")
    shown = [chart("lines", joined(caption, _reading(comparison)), comparison.curve)]
    for name in comparison.score_curves[1:]:
        if name in names:
            more = element("b", metric_words(name).capitalize())
            caption = joined(more, " on the task in training. ", _reading(comparison, name))
            shown.append(chart("lines", caption, name))
    return joined(element("h3", "Learning curves"), *shown)


def _averages(comparison: Comparison) -> Markup:
    found = averages(comparison)
    if not found:
        return EMPTY
    theirs = "; open diamonds: the paper." if any(one.paper for one in found) else "."
    word = comparison.words.word
    tables = (average_table(comparison), against_table(comparison))
    return joined(
        element("h3", f"Average {word}"),
        chart("bars", joined(word.capitalize(), BARS, theirs, " ", direction(comparison.curve))),
        *(table(one, zero=nothing(comparison)) for one in tables if one.rows),
    )


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
        element("div", *protocols, role="group", aria_label="protocol") if len(protocols) > 1 else EMPTY,
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
        data_title=metric_words(metric) if metric else kind,
        data_unit=measure(metric).unit or False if metric else False,
        data_bounded="1" if metric and is_bounded(metric) else False,
        data_small="1" if small else False,
    )
    return element("figure", element("figcaption", caption), plot)


def task_numbers(comparison: Comparison) -> Markup:
    """Where there is no room for names, charts number the tasks and the script shows this."""
    if comparison.many_tasks:
        return EMPTY
    names = " · ".join(f"{number} {short(task)}" for number, task in enumerate(comparison.tasks, 1))
    return element("span", f"Tasks: {names}.", class_="numbers", hidden=True)


def _only(protocol: str, *content: Markup) -> Markup:
    return element("div", *content, data_only=protocol)


def _plasticity(comparison: Comparison, names: list[str]) -> Markup:
    shown = [chart("lines", joined(RE_K, words), name) for name, words in RANKS.items() if name in names]
    told = (
        " the effective rank of the empirical NTK: how many directions one update can move the network in. It is at "
        "least 1 and at most the number of states."
    )
    if not shown:
        return EMPTY
    head = element("p", Markup("r<sub>e</sub>(K),"), told, class_="soft")
    reading = element("p", _reading(comparison, "heldout/ntk_rank"), class_="note")
    return joined(element("h3", "Spectral plasticity"), head, reading, element("div", *shown, class_="pair"))


def _router(comparison: Comparison, names: list[str]) -> Markup:
    small = [
        chart("lines", about(name, words), name, small=True)
        for metric in ROUTER
        for name, words in ((f"heldout/{metric}", "held-out"), (f"online/{metric}", "rollout"))
        if name in names
    ]
    if not small:
        return EMPTY
    caption = joined(
        element("b", "Share of selections by expert"),
        " on held-out states, over training. Dashed: task boundaries. Even colour in all rows: experts share the work; "
        "a few dark rows: the others are idle.",
    )
    heat = element(
        "figure", element("figcaption", caption), element("div", class_="plot", data_kind="heat"), class_="loads"
    )
    reading = element("p", legend(comparison), class_="note charts")
    return joined(element("h3", "Router health"), heat, reading, element("div", *small, class_="many"))


def _diagnostics(comparison: Comparison, names: list[str]) -> Markup:
    shown = [n for n in names if n.startswith("heldout/") and n not in RANKS and n.split("/")[1] not in ROUTER]
    if not shown:
        return EMPTY
    small = [chart("lines", about(name), name, small=True) for name in shown]
    last = [
        _only(protocol, table(diagnostics_table(comparison, protocol), names=_with_arrow))
        for protocol in comparison.protocols
    ]
    head = [element("h3", "Diagnostics"), element("p", "On held-out states.", class_="soft")]
    reading = element("p", legend(comparison), class_="note charts")
    return joined(*head, reading, element("div", *small, class_="many"), *last, _predictors(comparison))


def _with_arrow(name: str) -> str:
    """A diagnostic of held-out states in words, and whether up is good."""
    one = measure(f"heldout/{name}")
    return with_indices(one.word + {1: " ↑", -1: " ↓"}.get(one.better, ""))


def _predictors(comparison: Comparison) -> Markup:
    found = predictors_table(comparison)
    if not found.rows:
        return EMPTY
    told = "Do runs of one method that differ at the first evaluation of a task differ in what they reach on it?"
    if len(found.rows) > MOST_PREDICTORS:
        told += f" The {MOST_PREDICTORS} strongest of {len(found.rows)}; all are in tables/{found.name}.csv."
        found = dataclasses.replace(found, rows=found.rows[:MOST_PREDICTORS])
    head = [element("h3", "Early predictors"), element("p", told, class_="soft")]
    return _only("crl", *head, table(found, names=lambda name: with_indices(full_words(name))))


def _retention(comparison: Comparison) -> Markup:
    if comparison.many_tasks:  # a matrix of all pairs would be larger than all the rest
        return EMPTY
    kept = [matrix for method in comparison.methods if (matrix := retention_matrix(comparison, method))]
    if not kept:
        return EMPTY
    told = (
        f"{comparison.words.word.capitalize()} of one policy on every task (columns) after it was trained on each in "
        "turn (rows), mean over CRL runs. Below the diagonal: how much of an earlier task is kept."
    )
    layout = "pair" if len(comparison.tasks) <= 5 else "wide"
    return joined(element("h3", "Retention"), element("p", told, class_="soft"), element("div", *kept, class_=layout))


def retention_matrix(comparison: Comparison, method: str) -> Markup:
    found = retention(comparison, comparison.group(method, "crl"))
    if found is None:
        return EMPTY
    low, high = (0.0, 1.0) if comparison.words.bounded else (float(np.nanmin(found)), float(np.nanmax(found)))
    depth = np.nan_to_num((found - low) / ((high - low) or 1.0))  # of colour
    names = [short(task) for task in comparison.tasks]
    head = [
        element("th", "after … on"),
        *(element("th", str(n), scope="col", title=name) for n, name in enumerate(names, 1)),
    ]
    rows = []
    for number, (name, row, depths) in enumerate(zip(names, found.tolist(), depth, strict=True), 1):
        cells = [element("td", digits(v), style=f"--v:{d:.3f}") for v, d in zip(row, depths, strict=True)]
        rows.append(element("tr", element("th", f"{number} {name}", scope="row"), *cells))
    matrix = element("table", element("thead", element("tr", *head)), element("tbody", *rows), class_="retention")
    return element("figure", element("figcaption", element("b", method)), region(f"retention of {method}", matrix))


def _continual(comparison: Comparison) -> Markup:
    world = continual_table(comparison)
    return joined(element("h3", "The final policy on all tasks"), table(world)) if world.rows else EMPTY
