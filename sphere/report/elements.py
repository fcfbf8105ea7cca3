"""HTML by construction: what is not markup already is escaped, so that no name from a run directory can be."""

import dataclasses
from collections.abc import Callable
from html import escape

from sphere.report.tables import Cell, MeanStd, Table, empty

MOST_COLUMNS = 7
"""Of a table that a phone has room for; of a wider one it shows each row as a list."""


class Markup(str):
    """Text that is HTML; only this module and literals make it."""


EMPTY = Markup("")


def element(tag: str, *content: str, **attributes: str | int | bool) -> Markup:
    """`data_kind` is data-kind and `class_` is class; True is an attribute without a value, False none."""
    given = ""
    for name, value in attributes.items():
        if value is not False:
            name = name.rstrip("_").replace("_", "-")
            given += f" {name}" if value is True else f' {name}="{escape(str(value), quote=True)}"'
    return Markup(f"<{tag}{given}>{joined(*content)}</{tag}>")


def joined(*content: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in content))


def region(label: str, *content: str) -> Markup:
    """What may be wider than the page scrolls by itself, by keys too."""
    return element("div", *content, class_="scroll", role="region", aria_label=label, tabindex=0)


def table(one: Table, total: bool = False, names: Callable[[str], str] = str, zero: str = "") -> Markup:
    """`total`: the last row is one. `names`: of rows, in the place of those that the table's files have. `zero`: in the
    place of a score of 0.00 ± 0.00. A column without any number is left out."""
    kept = [0, *(i for i in range(1, len(one.columns)) if not all(empty(row[i]) for row in one.rows))]
    columns, shown = tuple(one.columns[i] for i in kept), [[row[i] for i in kept] for row in one.rows]
    one = dataclasses.replace(one, columns=columns, rows=shown)
    head = element("tr", *(element("th", name, scope="col") for name in one.columns))
    rows = []
    for index, row in enumerate(one.rows):
        cells = [element("th", names(str(row[0])), scope="row")]
        for column, cell in zip(one.columns[1:], row[1:], strict=True):
            theirs = column.startswith("paper")
            nothing = bool(zero) and not theirs and isinstance(cell, MeanStd) and cell.mean == 0 == (cell.std or 0)
            text = element("span", zero, class_="nothing") if nothing else _spaced(cell)
            cells.append(element("td", text, class_="paper-cell" if theirs else False, data_label=column))
        rows.append(element("tr", *cells, class_="total" if total and index == len(one.rows) - 1 else False))
    wide = len(one.columns) > MOST_COLUMNS
    body = element("table", element("thead", head), element("tbody", *rows), class_="stack" if wide else False)
    return joined(region(one.title, body), element("p", one.note, class_="note"))


def _spaced(cell: Cell) -> Markup:
    """A number may part from its deviation or interval where there is no room for both."""
    text = "–" if cell is None else cell.text() if isinstance(cell, MeanStd) else cell
    for mark in ("±", "["):
        number, found, rest = text.partition(f" {mark}")
        if found:
            return joined(number, " ", element("span", mark + rest, class_="whole"))
    return joined(text)


def two_columns(values: dict[str, str]) -> Markup:
    rows = [
        element("tr", element("th", name, scope="row"), element("td", value, class_="words"))
        for name, value in values.items()
    ]
    return element("div", element("table", element("tbody", *rows)), class_="scroll")
