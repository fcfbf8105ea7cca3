"""Every number on README and site is accounted for, so that a page with numbers that nobody checks fails.

A number here is a decimal fraction, a percentage, one with thousands, with an exponent (1e-4) or a suffix (10x, 1M),
one with a unit of time, speed or memory, one that is counted in times, millions or tests, or one of two digits and more
that has a cell of a table to itself; all of them outside of code. It has to be

- on a page of docs/results, which is compared byte for byte with what the records give (test_results.py);
- or recomputed from records, or from a file that a command has kept: CHECKED has what comes out;
- or computed here from a definition: CHECKED too;
- or in a table that a benchmark has kept, which is compared with its file (test_benchmarks_kept.py);
- or no result at all: a setting, a definition, a number of the paper. GIVEN lists these.

docs/history is not part of the site.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
import test_readme
import test_results_streams
from pages import FENCE, ROOT

from benchmarks import kept
from sphere.envs import heldout
from sphere.nets import NetConfig, build, parameter_count
from sphere.presets import preset

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *(p for p in sorted(DOCS.rglob("*.md")) if not {"results", "history"} & set(p.parts))]
UNIT = r"(?:%| (?:[mµu]?s|min|minutes?|hours?|days?|seconds?|[kMGT]i?B|steps/s|times|million|tests)\b)"
NUMBER = re.compile(
    r"(?<![\w.,/])(?:\d[\d,]*(?:\.\d+)?(?:[kMx]\b|e-?\d+)|\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+"
    rf"|\d+(?={UNIT}| to \d[\d.]*{UNIT})|(?<=\| )\d\d+(?= *\|))(?![\w.]*\w)"
)


def prose(text: str) -> str:
    """Without code, links, comments and kept tables; output of a program, fenced as text, is no code."""
    text = kept.BLOCK.sub("", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = FENCE.sub(lambda match: match[2] if match[1] == "text" else "", text)
    return re.sub(r"`[^`]+`|\]\([^)]*\)", " ", text)


def numbers(text: str) -> list[str]:
    return NUMBER.findall(prose(text))


def shown(*values: float, form: str = ".2f") -> set[str]:
    return {format(value, form).removeprefix("+") for value in values}


# What comes out of records and of kept files


def readme(tmp_path: Path) -> set[str]:
    tables = [cell for protocol in ("crl", "rl") for cell in test_readme.task_rows(protocol)["average"]]
    tables += [cell for row in test_readme.compared(tmp_path).values() for cell in row]
    return {number for text in [*tables, test_readme.demo_table()] for number in numbers(text)}


def streams(_: Path) -> set[str]:
    def of_experts(width: int) -> int:
        config = dataclasses.replace(preset("cifar100-vit").learner.nets["actor"], width=width)
        net = eqx.filter_eval_shape(lambda: build(config, 32 * 32 * 3, 100, key=jax.random.key(0)))
        return sum(parameter_count(block.mixture.experts) for block in net.blocks)

    return test_results_streams.accounted() | {f"{of_experts(width) / 1e6:.0f}" for width in (256, 1024)}


def estimates(_: Path) -> set[str]:
    """docs/metrics.md and docs/report.md, from `python -m benchmarks.estimates`."""
    kept = json.loads((ROOT / "results" / "estimates.json").read_text())
    found: set[str] = set()
    for row in kept["float32"].values():
        found.add(str(row["dropped"]))
        found |= {f"{row['share']:.{digits}f}" for digits in (2, 3, 4)}
        found |= {f"{row[kind]:.{digits}f}" for kind in ("float32", "float64") for digits in (2, 3, 4)}
    for rows in kept["slq"].values():
        found |= shown(rows["truth"])
        for row in (row for name, row in rows.items() if name != "truth"):
            found |= shown(100 * row["bias"], 100 * row["error"], form=".0f")
            found |= shown(100 * row["bias"], form=".1f") | shown(row["held"])
    found |= shown(*kept["intervals"].values())
    found |= shown(*(row[length] for row in kept["lead-lag"].values() for length in ("100", "200")))
    return found | {f"{kept['trials']:,}"}


def rank(*values: float) -> float:
    share = np.array(values) / sum(values)
    return float(np.exp(-np.sum(share * np.log(share))))


def theory(tmp_path: Path) -> set[str]:
    """The small spectra of docs/theory.md; what follows from them is tested in test_theory_limits.py."""
    stepped = [value * (1 - 0.1 * (value - 2.5)) ** 2 for value in (4.0, 1.0)]
    ranks = [rank(4, 1), rank(1, 1), rank(*stepped), rank(1, 6.25), rank(2, 0.25), rank(1000, *[1] * 10)]
    both = [rank(100, 4, 1), rank(100, *stepped)]
    penalties = [float(np.sum((np.array(one) - np.mean(one)) ** 2)) for one in ((4, 1), (2, 0.25))]
    found = (
        shown(*ranks, *stepped, *penalties, 6.25, 0.25) | shown(*both, 0.125, form=".3f") | shown(4.5, 0.5, form=".1f")
    )
    return found | deviations(tmp_path)


def deviations(_: Path) -> set[str]:
    """Parameters of the networks in docs/deviations.md, its learning rates, and what the held-out states are from."""
    rates = [abs(1 / 62 - 2**14 / 1e6) * i * (3e-4 - 1e-4) for i in range(62)]
    found = {f"{max(rates):.1e}".replace("e-0", "e-")}
    stair, ten = (heldout.load(heldout.FOLDER / f"{suite}.npz").provenance for suite in ("humanoidbench", "metaworld"))
    page = " ".join((DOCS / "deviations.md").read_text().split())
    assert f"steps of Stair, mean return {stair['mean_return']['humanoidbench/stair']:.0f}, far from" in page
    assert max(ten["mean_return"], key=ten["mean_return"].get) == "metaworld/faucet-close"
    found |= {f"{stair['steps'] / 1e6:.1f}M", f"{ten['steps'] / 1e6:.2f}M"}
    for sizes in ((39, 4), (51, 19)):

        def count(part: str = "", sizes: tuple[int, int] = sizes, **settings: Any) -> int:
            net = eqx.filter_eval_shape(lambda: build(NetConfig(**settings), *sizes, key=jax.random.key(0)))
            return parameter_count(getattr(net, part) if part else net)

        mixtures = ("top-k", "dense", "expert-choice", "deepseek", "soft")
        dense = count(kind="mlp")
        counts = [dense, *(count(kind="mlp", width=width) for width in (834, 848))]
        counts += [count(part, kind=kind) for kind in mixtures for part in ("", "router")]
        found |= {f"{value:,}" for value in counts} | shown(count(kind="mlp", width=810) / dense, form=".1f")
    return found


def td3(_: Path) -> set[str]:
    """How many of ten episodes of handle-press-side succeeded, evaluation by evaluation."""
    page = " ".join((DOCS / "td3.md").read_text().split())
    dense, top_k = (successes(name) for name in ("dense", "top-k"))
    assert list(dense.values()) == [1, 5, 9, 9, 0, 9]
    assert "Of ten episodes 1, 5, 9, 9, 0 and 9 succeed, evaluated every 50,000 steps" in page
    assert max(top_k) == 50_000
    assert top_k[50_000] == 4
    assert "four of ten episodes succeed at 50,000 steps" in page
    return {f"{step:,}" for step in dense}


def successes(name: str) -> dict[int, int]:
    path = ROOT / "results" / "metaworld-rl-td3-checks" / name / "rho0-seed0" / "episodes.jsonl"
    found: dict[int, list[bool]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        if line["kind"] == "evaluation":
            found.setdefault(round(line["step"], -4), []).append(line["success_at_end"])
    assert all(len(episodes) == 10 for episodes in found.values())
    return {step: sum(episodes) for step, episodes in found.items()}


CHECKED: dict[str, Callable[[Path], set[str]]] = {
    "README.md": readme,
    "docs/streams.md": streams,
    "docs/metrics.md": estimates,
    "docs/report.md": estimates,
    "docs/theory.md": theory,
    "docs/deviations.md": deviations,
    "docs/td3.md": td3,
}
GIVEN = {
    "README.md": "3.11",  # a version
    "docs/architecture.md": "0.1",  # a version
    "docs/deviations.md": "0.45 0.01 1,024 8,192 0.1 0.99 1,000 0.025 0.05 0.03 1,000,000 16,384 4,883 2,048 10,000 "
    "0.65 269.60 312.70 4,096 3.17 1e-8 1e-6 1e-4 5e-4 5e-5 1e-3 5e-3 1e-2 5e-2 3e-4 10x 100k 1M 10M",
    # settings, the paper's numbers, a version
    "docs/diagnostics.md": "0.025 269.60 11.9 312.70 0.32 1e18 3e38 1e-9",  # settings, limits, the paper's
    "docs/experiments.md": "1,024",  # a setting
    "docs/glossary.md": "0.025 95 1e-4",
    "docs/install.md": "3.13 0.11 3.12 3.17",  # versions
    "docs/methods.md": "0.05 0.1 10,000 0.99 1e-4 1e-3 1e-2",  # settings
    "docs/metrics.md": "0.05 1.96 1.5 0.9 0.5 0.3 30 100 1000 32 64 95 1e-7 3e-5",  # what was made up; rounding
    "docs/pixels.md": "72 0.9 0.18 0.32 84",  # settings, and the paper's numbers
    "docs/pytorch.md": "0.1 0.3 1.0 1,024 1e-10 1e-5 1e-4 1e-8",  # values of rho, targets of tests, floors
    "docs/report.md": "0.1 0.00 0.20 0.40 95 20,000 9,999",  # settings, versions, and what a format looks like
    "docs/streams.md": "1,024 0.1 0.29 0.48 0.38 0.52 0.17 0.27 0.01 0.02 0.03 6.55 10.03 4.54 7.46 2.71 14.55 0.3 1.0 "
    "2,500 20,000 125 256",  # settings, and the paper's numbers
    "docs/td3.md": "328 0.1 0.3 0.5 200,000",  # settings, and a size that follows from them
    "docs/theory.md": "0.861 2,560",  # the paper's
    "docs/tutorials/jax.md": "0.1",  # a value of rho
}
"""No results: settings, definitions, versions, numbers that the paper prints."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_number_is_accounted_for(page, tmp_path):
    name = str(page.relative_to(ROOT))
    known = set(GIVEN.get(name, "").split()) | (CHECKED[name](tmp_path) if name in CHECKED else set())
    missing = [number for number in numbers(page.read_text()) if number not in known]
    assert missing == [], f"{name}: check these against records, or let a benchmark keep them (benchmarks/kept.py)"


def test_what_is_given_is_still_there():
    """A list of exceptions that nobody reads any more would hide the next mistake."""
    for name, given in GIVEN.items():
        there = set(numbers((ROOT / name).read_text()))
        assert set(given.split()) - there == set(), name


def test_a_new_number_would_be_found():
    text = "Success 0.42, 17% more, 12,345 steps in 11 min at 3.5 ms; version 3.11.7, `0.9` and [a](b-1.5.md), table 3."
    assert numbers(text) == ["0.42", "17", "12,345", "11", "3.5"]
    text = "0.66M steps, 10x as wide, 5e-9 of it, up by 25 to 35%, 7 times, 1 GiB, 31 tests\n| seed 3 | 211 | 4 |\n"
    assert numbers(text) == ["0.66M", "10x", "5e-9", "25", "35", "7", "1", "31", "211"]


def test_history_says_what_it_is_and_is_not_part_of_the_site():
    pages = sorted((DOCS / "history").glob("*.md"))
    assert pages
    for page in pages:
        assert "> History: what was seen on the day" in page.read_text(), page.name
    assert "  history/\n" in (ROOT / "mkdocs.yml").read_text()
