"""The pages of results: verdicts follow from the rule, and every number on the pages comes from the records.

Numbers on all other pages: test_numbers.py.
"""

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from sphere.experiments import registry
from sphere.experiments.claim import Claim, Side, claim
from sphere.experiments.facts import fact, value
from sphere.experiments.matching import archive, device_at, effort
from sphere.experiments.overview import headline
from sphere.experiments.paper_claims import CLAIMS
from sphere.experiments.paper_items import ITEMS, WITHOUT, items, labels
from sphere.experiments.results_pages import results_of, write_pages
from sphere.experiments.results_tables import narrow
from sphere.experiments.verdicts import VERDICTS, Judged, decide, gap_closed, judge, printed_apart, scores_of
from sphere.report.paper import Printed
from sphere.report.statistics import Interval
from sphere.report.tables import MeanStd, Table
from sphere.storage import checksums

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "results"
PAPER = ROOT.parent / "shared" / "paper" / "000_dbbe66be97d0e79c.txt"


# The rule


@pytest.mark.parametrize(
    ("low", "high", "paper", "below", "verdict"),
    [
        (1.1, 3.0, 2.0, False, "reproduced"),
        (1.1, 1.5, 2.0, False, "direction only"),
        (2.5, 3.0, 2.0, False, "direction only"),
        (0.9, 3.0, 2.0, False, "undecided"),
        (0.9, 1.5, 2.0, False, "not reproduced"),
        (0.5, 0.9, 2.0, False, "not reproduced"),
        (0.2, 0.8, 0.5, False, "reproduced"),  # the paper's number says on which side the claim is
        (1.2, 1.8, 0.5, False, "not reproduced"),
        (1.1, 3.0, None, False, "reproduced"),
        (0.9, 3.0, None, False, "undecided"),
        (0.5, 0.9, None, False, "not reproduced"),
        (0.5, 0.9, None, True, "reproduced"),
        (0.9, 1.1, 1.0, False, "reproduced"),  # a claim of no difference
        (0.5, 1.1, 1.0, False, "undecided"),
        (1.01, 1.1, 1.0, False, "not reproduced"),
        (math.nan, math.nan, 2.0, False, "undecided"),
    ],
)
def test_the_rule(low, high, paper, below, verdict):
    assert decide(Interval((low + high) / 2, low, high), paper, 1.0, below)[0] == verdict


def test_the_edges_of_an_interval_belong_to_it():
    assert decide(Interval(2.0, 1.0, 3.0), 2.0, 1.0)[0] == "undecided"
    assert decide(Interval(2.0, 1.1, 2.5), 2.5, 1.0)[0] == "reproduced"


def test_the_gap_that_is_closed():
    assert gap_closed(np.array([0.67, 0.21, 0.71, 0.49])) == pytest.approx(0.5217, abs=1e-4)  # the paper's 52%
    (closed,) = [one for one in CLAIMS["metaworld-bars"] if len(one.sides) == 4]
    assert closed.paper == pytest.approx(0.52, abs=0.005)
    assert closed.nothing == 0


def test_the_papers_own_numbers_by_welch():
    """Against scipy's test from the same means and deviations, which takes sample deviations."""
    from scipy.stats import ttest_ind_from_stats

    told = []
    for first, second, seeds in (
        ((0.54, 0.12), (0.36, 0.08), 5),
        ((0.54, 0.12), (0.5, 0.03), 5),
        ((0.3, 0.1), (0.2, 0), 5),
    ):
        sample = math.sqrt(seeds / (seeds - 1))
        p = ttest_ind_from_stats(first[0], first[1] * sample, seeds, second[0], second[1] * sample, seeds, False).pvalue
        told.append(printed_apart(Printed(*first), Printed(*second), seeds))
        assert told[-1] == (p < 0.05)
    assert told[:2] == [True, False]
    assert printed_apart(Printed(1.0), Printed(2.0), 5) is None


def test_no_claim_is_picked_for_the_headline():
    def judged(verdict):
        return Judged(claim(Side("a"), Side("b")), verdict, "", (5, 5))

    assert headline([]) == "not run"
    assert headline([judged("undecided"), judged("not run")]) == "undecided"
    assert headline([judged("undecided"), judged("reproduced"), judged("undecided")]) == "1 reproduced, 2 undecided"


def test_claims_name_runs_of_their_experiments():
    assert set(CLAIMS) < set(registry())
    for name, some in CLAIMS.items():
        arms = {arm.label for arm in registry()[name].arms}
        for one in some:
            assert {side.label for side in one.sides} <= arms, (name, one.text)
            word = {True: "below", False: "above"}.get(one.below)
            if one.printed is None and len(one.sides) == 2:
                assert word in one.text


# The paper


def test_every_table_and_figure_of_the_paper_has_its_place():
    made_for = {label for one in registry().values() for label in labels(one.source)}
    assert made_for | set(WITHOUT) == set(ITEMS)
    assert not made_for & set(WITHOUT)
    assert [item.number for item in items()][:3] == ["Figure 1", "Figure 2", "Figure 3"]


def test_the_list_is_that_of_the_papers_source():
    if not PAPER.exists():
        pytest.skip(f"{PAPER} is not there")
    assert re.findall(r"\\label\{((?:fig|tab):[^}]+)\}", PAPER.read_text()) == list(ITEMS)


# Records


@pytest.fixture(scope="module")
def records():
    return archive(ROOT / "results")


@pytest.fixture(scope="module")
def results(records):
    return results_of(records)


def test_records_are_told_by_their_settings(records, results):
    one = results["metaworld-crl"]
    assert {records.short(path).split("/")[0] for path in one.paths} == {"metaworld-crl", "metaworld-crl-ppo"}
    assert {records.short(path).split("/")[0] for path in one.repeats} == {"metaworld-crl-first"}
    assert {run.method for run in one.found.loaded.runs} == {"PPO", "Top-K MoE", "SPHERE"}
    short = results["humanoidbench-rl"]  # its records have three of the ten million steps
    assert (short.paths, short.repeats, short.found) == ([], [], None)


def test_every_kept_run_has_checksums_that_hold():
    runs = [path.parent for path in sorted((ROOT / "results").rglob("config.json"))]
    assert runs
    for run in runs:
        notes: list[str] = []
        sums = checksums.recorded(run, notes)
        assert set(sums) >= set(checksums.RECORDS), run
        assert notes + checksums.changed(run, {name: (run / name).read_bytes() for name in sums}, sums) == []


def test_no_pages_are_made_of_records_that_were_changed(tmp_path):
    """A digit of a diagnostic, which no rule can find."""
    run = next((ROOT / "results" / "cifar100-mlp").rglob("SHA256SUMS"), None)
    assert run is not None, "copies have checksums"
    copy = shutil.copytree(run.parent, tmp_path / "run")
    assert len(archive(tmp_path).records) == 1
    text = (copy / "metrics.jsonl").read_text()
    (copy / "metrics.jsonl").write_text(text.replace('"heldout/ntk_rank": ', '"heldout/ntk_rank": 1', 1))
    with pytest.raises(ValueError, match=r"no pages are made .*metrics\.jsonl was changed"):
        archive(tmp_path)


def test_a_verdict_is_that_of_the_kept_report(results):
    """The ratio of the pair, its interval and the paper's number as `sphere report` has them."""
    table = (ROOT / "results" / "metaworld-crl" / "report" / "tables" / "metaworld-against.md").read_text()
    ratio, low, high = map(float, re.findall(r"([\d.]+) \\\[([\d.]+), ([\d.]+)\\\]", table)[0])
    judged = results["metaworld-crl"].judged[0]
    assert [round(v, 2) for v in (judged.effect.value, judged.effect.low, judged.effect.high)] == [ratio, low, high]
    assert judged.runs == (5, 5)
    assert judge(judged.claim, results["metaworld-crl"].found, 10).verdict == "part"


def test_a_metric_of_a_side_is_that_of_the_record(results):
    scores = scores_of(results["metaworld-ntk"].found, Side("Top-K MoE", number="last heldout/ntk_rank"))
    path = ROOT / "results" / "metaworld-crl" / "rho0-seed3"
    assert scores.table[3, 0] == value(path, "heldout/ntk_rank", "last")


def test_time_is_counted_once_for_runs_side_by_side(records, results):
    (one,) = effort(records.records[path] for path in results["ten-seeds"].paths)
    assert one.device == "NVIDIA H200"
    assert one.runs == 10
    assert one.run_hours == pytest.approx(10 * one.hours, rel=0.01)  # all ten ran at the same time


def test_the_device_is_that_of_the_step():
    environment = {"device": {"kind": "gpu"}, "resumed": {"200": {"device": {"kind": "cpu"}}, "100": {"git": {}}}}
    assert [device_at(environment, step) for step in (0, 150, 250)] == ["gpu", "gpu", "CPU cores"]


def test_facts_are_looked_up_and_mistakes_are_told():
    root = ROOT / "results"
    assert (
        fact("each evaluation/success_at_end | end of hammer | metaworld-crl/rho0-seed*", root) == "0.8 0.0 1.0 1.0 1.0"
    )
    assert fact("evaluation/success_at_end | end of hammer | metaworld-crl/rho0-seed*", root) == "0.76"
    for words, told in (
        ("a | b", "wanted METRIC | WHEN | RECORDS"),
        ("train/kl | last | nowhere", "no records"),
        ("train/kl | sometimes | metaworld-crl/rho0-seed0", "time"),
        ("no/metric | last | metaworld-crl/rho0-seed0", "has no no/metric"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            fact(words, root)


# The pages


def test_narrow_tables_keep_ours_beside_the_papers():
    table = Table("t", "t", (*tuple("tAB CD E"), "paper"), [["x", *[MeanStd(0.5)] * 8]])
    assert [one.columns for one in narrow(table)] == [tuple("tAB CD "), ("t", "E", "paper")]


@pytest.fixture(scope="module")
def made(records, results, tmp_path_factory):
    out = tmp_path_factory.mktemp("pages")
    (out / "notes").symlink_to(PAGES / "notes")
    write_pages(records, results, out, figures=False)
    return out


def test_the_pages_are_what_the_records_give(made):
    """Byte for byte; `sphere experiment pages results -o docs/results` makes them anew."""
    names = sorted(path.name for path in made.glob("*.md"))
    assert names == sorted(path.name for path in PAGES.glob("*.md"))
    assert names == sorted(["index.md", *(f"{name}.md" for name in registry())])
    for name in names:
        assert (made / name).read_text() == (PAGES / name).read_text(), f"{name} is not what the records give"


def test_every_page_says_what_it_has_to():
    for name in registry():
        text = (PAGES / f"{name}.md").read_text()
        assert "**Verdict: " in text
        assert f"sphere experiment run {name} --scale paper" in text
        assert ("hours (" in text) == ("## Ours beside the paper's" in text)
    overview = (PAGES / "index.md").read_text()
    for item in items():
        assert f"| {item.number} |" in overview
    for verdict in VERDICTS:
        assert f"**{verdict}**" in overview.split("## The rule")[1]


def test_what_the_overview_says_in_short_are_verdicts(results):
    """Its prose is written by hand: it has to be changed when these are."""

    def verdicts(name):
        return {one.claim.text: one.verdict for one in results[name].judged}

    crl, ranks = verdicts("metaworld-crl"), verdicts("metaworld-ntk")
    assert crl["SPHERE above Top-K MoE under CRL"] == "reproduced"
    assert crl["SPHERE above PPO under CRL"] == "direction only"
    assert verdicts("metaworld-rl")["SPHERE above Top-K MoE under RL"] == "undecided"
    assert verdicts("metaworld-archs")["Top-K MoE: CRL below RL"] == "reproduced"
    assert {verdict for text, verdict in ranks.items() if "stays above" in text} == {"reproduced"}
    assert "reproduced" not in {verdict for text, verdict in ranks.items() if "where it began" in text}
    assert verdicts("cifar100-mlp") == {
        "SPHERE above Fine-tune": "direction only",
        "r_e(K) of SPHERE ends above that of Fine-tune": "not reproduced",
    }


def test_pages_fit_and_lead_somewhere():
    for page in [*PAGES.glob("*.md"), *PAGES.glob("notes/*.md")]:
        text = page.read_text()
        for number, line in enumerate(text.splitlines(), 1):
            assert len(line) <= 120, f"{page.name}, line {number}"
            assert line.count("|") <= 8 or "{{" in line or page.parent.name == "notes", f"{page.name}, line {number}"
        for link in re.findall(r"\]\(([^)#:]+)[^)]*\)", text):
            assert (PAGES / link).exists(), f"{page.name}: {link}"
    figures = {path.name for path in PAGES.glob("figures/*")}
    linked = {name for page in PAGES.glob("*.md") for name in re.findall(r"figures/([\w.-]+)", page.read_text())}
    assert figures == linked
    assert sum(path.stat().st_size for path in PAGES.glob("figures/*")) < 2e6


def test_notes_have_no_numbers_of_their_own():
    """A number in a note is looked up in the records, or it is a name: of a seed, a rho, a step, a setting."""
    names = r"SplitCIFAR-100|[Ss]eed \d|rho 0?\.?[\d.]+|step [\d,]+|cut at 20|close to 1\b"
    for note in PAGES.glob("notes/*.md"):
        text = re.sub(r"\{\{[^{}]+\}\}|`[^`]+`|\]\([^)]*\)", "", note.read_text())
        text = re.sub(names, "", " ".join(text.split()))
        assert not re.findall(r"\d+", text), note.name
        assert note.stem in {"index", *registry()}


def test_a_claim_without_runs_says_which_are_missing():
    judged = judge(Claim("x", (Side("Top-K MoE"), Side("PPO", "rl"))), None, 5)
    assert judged.verdict == "not run"
    assert judged.reason == "No finished run of Top-K MoE and of PPO under RL."
