"""The README and the docs hold: their code runs, and what they name exists."""

import dataclasses
import importlib
import re
from pathlib import Path

import fleets
import jax
import numpy as np
import pytest

import sphere
from sphere.cli.main import main
from sphere.training.loop import train

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
PRESENT = [page for page in PAGES if page.name != "log.md"]
"""The log is history: it names what there was."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = [body for language, body in FENCE.findall(README.read_text()) if language == "python"]
EXAMPLES = [body for body in PYTHON if "torch" not in body]
(TORCH,) = [body for body in PYTHON if "torch" in body]


def code_spans(page: Path) -> set[str]:
    """What stands between backticks, fenced blocks aside."""
    prose = FENCE.sub("", page.read_text())
    return {re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose)}


def shell(page: Path) -> str:
    """The shell blocks and the code spans: where commands stand."""
    blocks = [body for language, body in FENCE.findall(page.read_text()) if language == "sh"]
    return "\n".join([*blocks, *code_spans(page)])


@pytest.mark.parametrize("number", range(2))
def test_the_examples_run_as_printed(number, capsys):
    names: dict = {}
    exec(compile(EXAMPLES[number], f"README.md, example {number + 1}", "exec"), names)
    assert capsys.readouterr().out.strip()
    for value in jax.tree.leaves([names.get("values"), names["params"]]):
        assert np.all(np.isfinite(value))


def test_the_training_example_learns_and_penalises():
    names: dict = {}
    code = EXAMPLES[0].replace("range(200)", "range(1)")
    assert code != EXAMPLES[0]
    exec(code, names)
    first = names["values"]
    for _ in range(100):
        names["params"], names["state"], last = names["update"](
            names["params"], names["state"], names["x"], np.sin(names["x"][:, :1]), 0.1
        )
    assert last.loss < 0.5 * first.loss
    assert last.penalty > 0
    assert last.coefficient > 0


def test_the_example_of_a_trained_policy_runs(tmp_path, monkeypatch):
    """On a small fleet in the place of its own, with a task that needs no simulator to be installed."""
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(fleets.TINY, tasks=fleets.TINY.tasks[:1], steps_per_task=64, seeds=(0,), rho=(0.1,))
    train(config, Path("runs/first"), quiet=True)
    code = EXAMPLES[2].replace("metaworld/push", "probe/reach-east")
    assert code != EXAMPLES[2]
    names: dict = {"sphere": sphere, "obs": np.zeros(6, np.float32)}
    exec(code, names)
    assert names["action"].shape == (2,)
    assert names["score"]["length"] == 10


def test_the_example_for_pytorch_runs(capsys):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    names: dict = {}
    exec(compile(TORCH, "README.md", "exec"), names)
    assert "nan" not in capsys.readouterr().out
    assert 0 < names["result"].felt < 0.2


def test_there_are_examples_of_the_penalty_of_the_kernel_and_of_a_policy():
    assert len(EXAMPLES) == 3
    assert "sphere.penalised_value_and_grad" in EXAMPLES[0]
    assert "sphere.routed_penalty" in EXAMPLES[0]
    assert "ntk.effective_rank" in EXAMPLES[1]
    assert "st.penalised_backward" in TORCH


@pytest.mark.parametrize("protocol", ["crl", "rl"])
def test_kept_tables_are_what_the_records_give(protocol, tmp_path):
    records = ROOT / "results" / f"metaworld-{protocol}"
    assert main(["report", str(records), "--out", str(tmp_path), "--no-figures"]) == 0
    for page in (records / "report" / "tables").iterdir():
        assert page.read_text() == (tmp_path / "tables" / page.name).read_text()


def cells(line):
    return [cell.strip() for cell in line.strip("|\n").split("|")]


def task_rows(protocol):
    page = ROOT / "results" / f"metaworld-{protocol}" / "report" / "tables" / f"metaworld-{protocol}-tasks.md"
    return {cells(line)[0]: cells(line)[1:] for line in page.read_text().splitlines() if "±" in line}


def test_the_readmes_table_has_the_averages_of_both_protocols():
    shown = [cells(line) for line in README.read_text().splitlines() if line.startswith("| ") and "±" in line]
    assert shown == [[protocol.upper(), *task_rows(protocol)["average"]] for protocol in ("crl", "rl")]


def test_the_table_of_results_is_that_of_both_protocols():
    """Under CRL a task's row is the table's own; under RL, where there is no room, its means."""
    page = (ROOT / "docs" / "results.md").read_text()
    shown = [cells(line) for line in page.splitlines() if line.startswith("| ") and "±" in line]
    crl, rl = task_rows("crl"), task_rows("rl")
    assert [task for task, *_ in shown] == list(crl)
    for task, *numbers in shown:
        assert numbers[:4] == crl[task]
        assert numbers[4:] == [number.split(" ")[0] for number in rl[task]]


def test_the_intervals_of_the_results_are_those_of_the_records():
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "results.md").read_text())
    for protocol in ("crl", "rl"):
        table = (ROOT / "results" / f"metaworld-{protocol}" / "report" / "tables" / "metaworld-against.md").read_text()
        (ratio,) = re.findall(r"([\d.]+) \\\[([\d.]+), ([\d.]+)\\\]", table)[:1]
        said = "{} (95% interval: {} to {})" if protocol == "crl" else "{} ({} to {})"
        assert said.format(*ratio) in page


def test_pages_are_easy_on_the_eye():
    """Short lines and a README of a few screens; tables and addresses may be longer."""
    assert len(README.read_text().splitlines()) <= 170
    for page in (
        README,
        ROOT / "docs" / "results.md",
        ROOT / "docs" / "architecture.md",
        ROOT / "docs" / "extending.md",
    ):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            assert len(line) <= 120 or line.startswith(("|", "![")), f"{page.name}, line {number}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_make_targets_and_modules_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w-]+)", shell(page))) <= targets
    for module in re.findall(r"python -m ([\w.]+)", shell(page)):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_named_files_exist(page):
    paths = [span for span in code_spans(page) if re.fullmatch(r"[\w.*/-]+(\.(py|md|toml)|/)", span)]
    links = [
        link for link in re.findall(r"\]\(([^)#:]+)\)", FENCE.sub("", page.read_text())) if not link.startswith("http")
    ]
    missing = [path for path in paths if not list(ROOT.glob(path.rstrip("/")))]
    missing += [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_readme_tree_exists():
    (tree,) = (body for language, body in FENCE.findall(README.read_text()) if not language)
    folder = ""
    for line in tree.splitlines():
        for name in re.split(r"\s{2,}", line.strip())[0].split(", "):
            if not line.startswith(" "):
                folder = name
            path = ROOT / (name if name == folder else folder + name)
            assert path.exists(), path
            assert path.is_dir() == name.endswith("/")


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_named_functions_exist(page):
    for span in code_spans(page):
        match = re.match(r"(sphere(?:\.\w+)+)(?:\(|$)", span)
        if not match:
            continue
        found = importlib.import_module("sphere")
        for part in match[1].split(".")[1:]:
            found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
