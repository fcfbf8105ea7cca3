"""Experiments on the real simulator, from the command line to the page, and those that need networks."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from sphere import ntk
from sphere.cli.main import main
from sphere.experiments import correlations, find, registry
from sphere.experiments.arms import PAIR
from sphere.experiments.experiment import Found
from sphere.experiments.gather import gather
from sphere.experiments.output import write_results
from sphere.nets import NetConfig, build
from sphere.spectrum import effective_rank_spsd, khatri_rao, kronecker_effective_rank

NETWORKS = ("feature-rank", "gate-expert", "kfac", "kronecker", "tsne")
"""These look at checkpoints, not only at records."""


def test_the_khatri_rao_block_without_its_matrix(x64):
    """Against the block product of A and G, formed."""
    net = build(NetConfig(kind="top-k", width=4, depth=2, experts=3), 5, 2, key=jax.random.key(0))
    net = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), net)
    states = jax.random.normal(jax.random.key(1), (6, 5), jnp.float64)

    phi, psi = jax.jit(lambda net, x: ntk.kronecker_factors(net, x)[-2])(net, states)
    a, g = (rows.reshape(6, -1).T @ rows.reshape(6, -1) / 6 for rows in (phi, psi))
    proxy, block = jax.jit(correlations.kronecker_ranks)(net, states)
    assert proxy == pytest.approx(float(kronecker_effective_rank(a, g)), rel=1e-6)
    target = khatri_rao(a, g, [phi.shape[2]] * 3, [psi.shape[2]] * 3)
    assert block == pytest.approx(float(effective_rank_spsd(target)), rel=1e-6)


def test_from_runs_to_page(tmp_path, monkeypatch, capsys):
    """`sphere experiment run metaworld-crl --scale smoke`, then report, with two of its eight methods and one seed."""
    words = ["--scale", "smoke", "--seeds", "0", "--out", str(tmp_path)]
    assert main(["experiment", "run", "metaworld-crl", *words, "--only", *PAIR]) == 0
    assert main(["experiment", "plan", "metaworld-crl", *words, "--only", *PAIR]) == 0
    said = capsys.readouterr().out
    assert "2 runs in 1 fleet, 2 finished; 0 environment steps left" in said
    records = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert len(records) == 2
    assert main(["experiment", "run", "metaworld-crl", *words, "--only", *PAIR]) == 0  # nothing left to do
    assert {path: path.stat().st_mtime_ns for path in records} == records
    assert main(["experiment", "report", "metaworld-crl", *words]) == 0
    check_report(tmp_path / "smoke" / "reports" / "metaworld-crl")
    check_networks(gather(find("metaworld-crl"), "smoke", (0,), tmp_path), tmp_path / "networks")


def check_report(report: Path) -> None:
    for name in ("metaworld-crl-tasks", "metaworld-averages"):
        for form in ("txt", "md", "tex", "csv"):
            assert "smoke" in (report / "tables" / f"{name}.{form}").read_text() or form == "csv"
    text = (report / "tables" / "metaworld-crl-tasks.txt").read_text()
    assert re.search(r"hammer +0\.\d\d +0\.98 ± 0\.04", text)
    assert "SMOKE" in text
    for name in ("success-bars", "learning-curves"):
        for form in ("svg", "pdf", "png"):
            assert (report / "figures" / f"{name}.{form}").stat().st_size > 1000
    page = (report / "index.html").read_text()
    assert "<strong>SMOKE" in page
    assert page.count("data:image/svg+xml;base64,") == 2


def check_networks(found: Found, out: Path) -> None:
    """Experiments that look at checkpoints, on the same runs; to t-SNE they are the runs on the first two tasks."""
    tables = {}
    for name in NETWORKS:
        results = find(name).results(found)
        (tables[name],) = results.tables
        assert [row[0] for row in tables[name].rows] == list(PAIR)
        made_before = dataclasses.replace(find(name), results=lambda _, r=results: r)
        written = write_results(name, made_before, found, out / name)
        assert {path.suffix for path in written} == {".svg", ".pdf", ".png", ".txt", ".md", ".tex", ".csv", ".html"}
    for name in ("feature-rank", "kronecker", "kfac"):
        assert all(-1 <= row[2].mean <= 1 for row in tables[name].rows)
    for row in tables["gate-expert"].rows:
        assert 0 <= row[1].mean <= 1
        assert row[2].mean <= row[3].mean  # the bound holds
    assert tables["tsne"].columns == ("", "start", "after push-wall")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan", "metaworld-clr"], "did you mean metaworld-"),
        (["paln", "metaworld-crl"], "use list, plan, run or report"),
        (["report", "metaworld-crl", "--out", "nowhere"], "has started; first use sphere experiment run"),
        (["run", "metaworld-crl", "--only", "SPHER"], "no method of this experiment 'SPHER'; did you mean SPHERE?"),
        (["run", "metaworld-crl", "--at-once", "0"], "at_once=0; want a whole number, at least 1"),
        (["run", "metaworld-crl", "--at-once", "2", "--launcher", "ray"], "--at-once is for this machine"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(words, sentence, capsys):
    assert main(["experiment", *words]) == 1
    assert sentence in capsys.readouterr().err


def test_list_names_every_experiment(capsys):
    assert main(["experiment", "list"]) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == list(registry())
    page = (Path(__file__).parents[1] / "docs" / "experiments.md").read_text()
    assert not [name for name in registry() if f"`{name}`" not in page]
