"""Tables as text, Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class MeanStd(NamedTuple):
    """A number with or without what stands behind +-."""

    mean: float
    std: float | None = None

    def text(self, sign: str = "±") -> str:
        if self.std is None or math.isnan(self.std):
            return digits(self.mean)
        places = _places(self.mean) if math.isfinite(self.mean) else 2
        return f"{digits(self.mean)} {sign} {self.std:.{places}f}"


Cell = str | MeanStd | None


def empty(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, MeanStd) and math.isnan(cell.mean))


def digits(value: float) -> str:
    """Two places, as the paper prints; more where that would show nothing of a small number."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{value:.{_places(value)}f}" if value == 0 or abs(value) >= 5e-4 else f"{value:.1e}"


def _places(value: float) -> int:
    return 2 if value == 0 or abs(value) >= 0.0095 else 3 if abs(value) >= 5e-4 else 5


@dataclass(frozen=True)
class Table:
    name: str
    """Of its files."""
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def text(self) -> str:
        cells = [list(self.columns), *([_plain(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in cells
        ]
        return (
            "\n".join([self.title, "", *(line.rstrip() for line in lines), *(["", self.note] if self.note else [])])
            + "\n"
        )

    def markdown(self) -> str:
        rows = [self.columns, ("---", *["---:"] * (len(self.columns) - 1))]
        lines = ["| " + " | ".join(_markdown(cell) for cell in row) + " |" for row in rows[:1]]
        lines += ["| " + " | ".join(rows[1]) + " |"]
        lines += ["| " + " | ".join(_markdown(_plain(cell)) for cell in row) + " |" for row in self.rows]
        return (
            "\n".join([f"**{_markdown(self.title)}**", "", *lines, *(["", _markdown(self.note)] if self.note else [])])
            + "\n"
        )

    def latex(self) -> str:
        """Needs booktabs."""
        head = " & ".join(_latex(column) for column in self.columns)
        body = [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in self.rows]
        caption = _latex(self.title) + (f" {_latex(self.note)}" if self.note else "")
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{caption}}}",
                rf"  \begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
                r"    \toprule",
                rf"    {head} \\",
                r"    \midrule",
                *(f"    {line}" for line in body),
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        """Full precision; a column that has a deviation somewhere gets a second one for it."""
        wide = [
            any(isinstance(row[i], MeanStd) and row[i].std is not None for row in self.rows)  # type: ignore[union-attr]
            for i in range(len(self.columns))
        ]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            [safe(n) for i, name in enumerate(self.columns) for n in ([name, f"{name} std"] if wide[i] else [name])]
        )
        for row in self.rows:
            writer.writerow([value for i, cell in enumerate(row) for value in _csv(cell, wide[i])])
        return out.getvalue()


def _plain(cell: Cell) -> str:
    return "–" if cell is None else cell.text() if isinstance(cell, MeanStd) else cell


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\|*_`\[\]])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"\s*\n\s*", " ", escaped)


LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "…": r"\dots{}",
    "∞": r"$\infty$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\n": " ",
}


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def _latex_cell(cell: Cell) -> str:
    if isinstance(cell, MeanStd) and math.isfinite(cell.mean):
        return "$" + cell.text(r"\pm") + "$"
    return _latex(_plain(cell))


def safe(text: str) -> str:
    """A spreadsheet runs what begins like a formula."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _csv(cell: Cell, wide: bool) -> list[str | float]:
    if isinstance(cell, MeanStd):
        return [cell.mean, *(["" if cell.std is None else cell.std] if wide else [])]
    return ["" if cell is None else safe(cell), *([""] if wide else [])]
