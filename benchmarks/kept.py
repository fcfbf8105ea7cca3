"""Tables of benchmarks: printed row by row, kept under `results/benchmarks`, and put on the documentation's pages.

`python -m benchmarks.kept` writes the kept tables into the pages, between `<!-- benchmark NAME -->` and `<!-- end -->`.
A test compares pages and files, so no such figure is typed by hand.
"""

import argparse
import json
import os
import platform
import re
import shlex
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "results" / "benchmarks"
BLOCK = re.compile(r"(<!-- benchmark ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Table:
    """Columns are headings with the format of their numbers; an empty format is for words. None is an empty cell."""

    def __init__(self, columns: dict[str, str]):
        self.columns = columns
        self.rows: list[list[Any]] = []

    def cells(self, row: list[Any]) -> list[str]:
        return ["" if v is None else format(v, form) for v, form in zip(row, self.columns.values(), strict=True)]

    def add(self, *row: Any) -> None:
        """Print a row, the headings before the first."""
        if not self.rows:
            self._print(list(self.columns))
        self.rows.append(list(row))
        self._print(self.cells(list(row)))

    def _print(self, cells: list[str]) -> None:
        parts = []
        for cell, (heading, form) in zip(cells, self.columns.items(), strict=True):
            width = max(len(heading), 8 if form else 24)
            parts.append(f"{cell:>{width}}" if form else f"{cell:<{width}}")
        print("  ".join(parts).rstrip(), flush=True)

    def markdown(self) -> str:
        lines = [list(self.columns), ["---:" if form else "---" for form in self.columns.values()]]
        lines += [self.cells(row) for row in self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the table and what it was measured on here")


def command() -> str:
    """What was typed: a benchmark is a module or goes by `sphere bench`, everything else is a script."""
    if sys.argv[0].startswith("sphere bench "):
        return f"{sys.argv[0]} {shlex.join(sys.argv[1:])}"
    path = Path(sys.argv[0])
    words = ["-m", f"benchmarks.{path.stem}"] if path.parent.name == "benchmarks" else [f"scripts/{path.name}"]
    return shlex.join(["python", *words, *sys.argv[1:]])


def processor() -> str:
    """The CPU's name, where the system tells it."""
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", path.read_text() if path.exists() else "", re.MULTILINE)
    return found[1] if found else platform.machine()


def keep(table: Table, path: Path | None, device: str) -> None:
    """Nothing without a path."""
    if path is None:
        return
    kept = {
        "command": command(),
        "date": datetime.now(UTC).date().isoformat(),
        "device": f"{device}; {processor()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        "columns": table.columns,
        "rows": table.rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(kept, indent=1) + "\n")
    partial.replace(path)


def read(name: str) -> tuple[dict[str, Any], Table]:
    kept = json.loads((KEPT / f"{name}.json").read_text())
    table = Table(kept["columns"])
    table.rows = kept["rows"]
    return kept, table


def block(name: str) -> str:
    """What stands on a page: the table, and below it where it is from."""
    kept, table = read(name)
    source = textwrap.fill(f"{kept['date']}, {kept['device']}", 120)
    return f"{table.markdown()}\n\n`{kept['command']}`\n\n{source}\n"


def filled(text: str) -> str:
    """A page with its tables as they are kept."""
    return BLOCK.sub(lambda match: match[1] + "\n" + block(match[2]) + "\n" + match[3], text)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        if (new := filled(text)) != text:
            page.write_text(new)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
