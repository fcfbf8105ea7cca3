"""What the documentation site has beyond docs/*.md: sections of the README, the program's own help, linked files.

mkdocs calls `on_config`, then `on_page_markdown` for every page (mkdocs.yml). In a page, a line

    <!-- README.md: Install -->      stands for that section of the README, without its heading
    <!-- sphere --help -->           stands for the help of every command

so neither is copied by hand. Links to files of the repository outside docs/ get a copy of the file in the site.
"""

import contextlib
import io
import os
import re
import textwrap
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(r"(^```.*?^```\s*?$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()#:\s]+)(#[\w-]+)?\)")
SECTION = re.compile(r"^<!-- README\.md: (.+?) -->$", re.MULTILINE)
HELP = "<!-- sphere --help -->"
PARTS = {
    "experiment": ("plan", "run", "report"),
    "data": ("get", "record metaworld"),
}
"""Commands that have commands of their own with options."""


def on_config(config: Any) -> Any:
    """The pages of docs/results/ are made by a command: those that there are, under Results, with runs and without."""
    (results,) = (entry for entry in config.nav if "Results" in entry)
    groups: dict[str, list[dict[str, str]]] = {"Experiments with runs": [], "Not run yet": []}
    for page in sorted((DOCS / "results").glob("*.md")):
        if page.name != "index.md":
            group = "Not run yet" if "**Verdict: not run.**" in page.read_text() else "Experiments with runs"
            groups[group].append({page.stem: f"results/{page.name}"})
    results["Results"] += [{name: pages} for name, pages in groups.items() if pages]
    return config


def section(heading: str) -> str:
    """Of the README, from a heading to the next one of its kind; the first has the README's title."""
    pieces = re.split(
        r"^##? (.+)\n", FENCE.sub(_without_headings, (ROOT / "README.md").read_text()), flags=re.MULTILINE
    )
    found = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    if heading not in found:
        raise ValueError(f"the README has no section {heading!r}; it has {', '.join(found)}")
    return found[heading].replace("\0", "#").strip()


def _without_headings(block: re.Match[str]) -> str:
    return block[0].replace("#", "\0")  # a comment in code looks like a heading


def command_line() -> str:
    """The help of every command, as Markdown."""
    from sphere.cli.main import COMMANDS

    texts = ["```text\n" + _help([]) + "```"]
    for name in COMMANDS:
        texts.append(f"## sphere {name}\n\n```text\n{_help([name])}```")
        texts += [
            f"### sphere {name} {part}\n\n```text\n{_help([name, *part.split()])}```" for part in PARTS.get(name, ())
        ]
    return "\n\n".join(texts)


def _help(words: list[str]) -> str:
    from sphere.cli.main import main

    said = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(said),
        contextlib.suppress(SystemExit),
    ):
        main([*words, "--help"])
    lines = [piece for line in said.getvalue().rstrip().splitlines() for piece in _wrapped(line)]
    return "\n".join(lines) + "\n"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 100, break_on_hyphens=False) if len(line) > 120 else [line]


def outside_fences(change: Any, markdown: str) -> str:
    pieces = FENCE.split(markdown)
    return "".join(piece if piece.startswith("```") else change(piece) for piece in pieces)


def moved(markdown: str, base: Path, page: Path, add: Any) -> str:
    """Links that were relative to `base`, relative to the page; of files outside docs/, a copy in the site.

    `add(target)` says where in docs/ the copy of a file is. What does not exist is left as it is: mkdocs names it.
    """

    def one(link: re.Match[str]) -> str:
        target = (base / link[1]).resolve()
        if not target.exists() or not target.is_relative_to(ROOT) or target.is_dir():
            return link[0]
        inside = target if target.is_relative_to(DOCS) else add(target)
        return f"]({os.path.relpath(inside, page.parent)}{link[2] or ''})"

    return outside_fences(lambda text: LINK.sub(one, text), markdown)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    from mkdocs.structure.files import File

    def add(target: Path) -> Path:
        place = f"files/{target.relative_to(ROOT)}"
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(target)))
        return DOCS / place

    path = DOCS / page.file.src_uri
    if HELP in markdown:
        markdown = markdown.replace(HELP, command_line())
    markdown = moved(markdown, path.parent, path, add)
    return SECTION.sub(lambda match: moved(section(match[1]), ROOT, path, add), markdown)
