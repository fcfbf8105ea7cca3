"""The overview of the results: a row for every table and figure of the paper, all claims by verdict, and the rule."""

import textwrap
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from sphere.experiments import registry
from sphere.experiments.facts import filled
from sphere.experiments.paper_items import WITHOUT, items, labels
from sphere.experiments.verdicts import CAVEATS, NOT_RUN, RULE, VERDICTS, Judged, in_words, printed_apart

WIDTH = 120


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def prose(path: Path, root: Path) -> str:
    """A note with its numbers; its paragraphs are wrapped again."""
    return "\n\n".join(wrapped(" ".join(part.split())) for part in filled(path.read_text("utf-8"), root).split("\n\n"))


def headline(judged: Sequence[Judged]) -> str:
    """The verdict of an experiment: that of its claims where all agree, else how many have which. No claim is picked:
    which one is the main one would be decided after looking."""
    looked = [one.verdict for one in judged if one.verdict != NOT_RUN]
    if len(set(looked)) < 2:
        return looked[0] if looked else NOT_RUN
    return ", ".join(f"{looked.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in looked)


def overview(judged: dict[str, list[Judged]], root: Path, out: Path) -> list[str]:
    made_for = defaultdict(list)
    for name, experiment in registry().items():
        for label in labels(experiment.source):
            made_for[label].append(name)
    rows = []
    for item in items():
        for name in made_for[item.label]:
            about = f"{item.about}: {name}" if len(made_for[item.label]) > 1 else item.about
            rows.append(_row(item.number, about, name, judged[name]))
        if item.label in WITHOUT:
            rows.append(f"| {item.number} | {item.about} | {WITHOUT[item.label]} | |")
    others = [name for name, one in registry().items() if not labels(one.source)]
    head = ["| paper | what | verdict | claims |", "|---|---|---|---:|"]
    count = Counter(one.verdict for some in judged.values() for one in some)
    words = ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS)
    lines = ["# Results", ""]
    lines += [prose(out / "notes" / "index.md", root), "", *_by_verdict(judged)]
    lines += ["## Every table and figure of the paper", ""]
    lines += [
        wrapped(
            f"Of {sum(count.values())} claims: {words}. A verdict is about those claims of an experiment for which "
            "both sides have runs; the last column counts them."
        ),
        "",
    ]
    lines += [*head, *rows, "", "Not in the paper: the same comparison on another suite.", "", *head]
    lines += [_row("–", registry()[name].title.split(",")[0], name, judged[name]) for name in others]
    lines += ["", "## The rule", "", RULE, "", *(wrapped(one) + "\n" for one in CAVEATS)]
    return lines


def _by_verdict(judged: dict[str, list[Judged]]) -> list[str]:
    """The claims that have runs, by verdict; one that several pages have stands once."""
    lines: list[str] = []
    for verdict in VERDICTS[:-1]:
        pages: dict[str, list[str]] = defaultdict(list)
        for name, some in judged.items():
            for one in some:
                if one.verdict == verdict:
                    words = " ".join(filter(None, [f"{one.claim.text}.", in_words(one)]))
                    pages[words].append(f"[{registry()[name].title.split(' (')[0]}]({name}.md)")
        if pages:
            told = [wrapped(f"{words} {', '.join(some)}", "- ", "  ") for words, some in pages.items()]
            lines += [f"**{verdict.capitalize()}**", "", *told, ""]
    printed = [
        apart
        for name, some in judged.items()
        for one in some
        if one.claim.printed and len(one.claim.printed) == 2
        if (apart := printed_apart(one.claim.printed[0], one.claim.printed[1], registry()[name].seeds)) is not None
    ]
    text = (
        f"The paper prints two numbers with deviations for {len(printed)} of its claims. In {sum(printed)} of them its "
        "own difference is significant. The others can hardly be decided here with as many seeds."
    )
    return [*lines, wrapped(text), ""]


def _row(number: str, about: str, name: str, judged: Sequence[Judged]) -> str:
    looked = sum(one.verdict != NOT_RUN for one in judged)
    claims = f"{looked} of {len(judged)}" if judged else "–"
    word = headline(judged)
    bold = word if word == NOT_RUN else f"**{word}**"
    return f"| {number} | [{about}]({name}.md) | {bold} | {claims} |"
