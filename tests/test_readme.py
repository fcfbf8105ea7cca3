"""The README and the docs hold: their code runs, and what they name exists."""

import importlib
import importlib.util
import json
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pages
import pytest
from pages import FENCE

from sphere.cli import demo, train
from sphere.cli.main import main
from sphere.experiments.matching import archive, effort
from sphere.storage.files import flatten
from sphere.training.settings import FleetConfig, to_json

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PARTS = ROOT / "docs" / "results" / "notes"
"""Not pages, but parts of those beside them, where their links begin."""
PAGES = [README, *(page for page in sorted((ROOT / "docs").glob("**/*.md")) if page.parent != PARTS)]
PAST = {ROOT / "docs" / "decisions.md", *(ROOT / "docs" / "history").iterdir()}
PRESENT = [page for page in PAGES if page not in PAST]
"""The others are history: they name what there was."""
PYTHON = [body for language, body in pages.blocks(README) if language == "python"]
EXAMPLES = [body for body in PYTHON if "torch" not in body]
(TORCH,) = [body for body in PYTHON if "torch" in body]


def code_spans(page: Path) -> set[str]:
    """What stands between backticks, fenced blocks aside."""
    prose = FENCE.sub("", page.read_text())
    return {re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose)}


def shell(page: Path) -> str:
    """The shell blocks and the code spans: where commands stand."""
    found = [body for language, body in pages.blocks(page) if language == "sh"]
    return "\n".join([*found, *code_spans(page)])


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


def test_the_commands_work_in_their_order(tmp_path, monkeypatch):
    """As pasted into a shell, with fewer steps; then the example of a trained policy."""
    monkeypatch.chdir(tmp_path)
    reader = pages.Reader(tmp_path)
    for language, body in pages.blocks(README):
        if language == "sh":
            for line in body.replace("\\\n", " ").splitlines():
                reader.paste(line)
    assert [line.split()[0] for line in reader.said].count("sphere") == 2
    page = Path("report/index.html").read_text()
    for label in ("SPHERE", "LN", "Top-K"):
        assert label in page
    assert list(Path("report/tables").glob("*.csv"))
    assert len(Path("report/curves.csv").read_text().splitlines()) > 9  # more than a line for each run
    names: dict = {}
    exec(EXAMPLES[2], names)
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


def shown_rows():
    return [cells(line) for line in README.read_text().splitlines() if line.startswith("| ") and "±" in line]


def test_the_readmes_table_has_the_averages_of_both_protocols():
    averages = [[protocol.upper(), *task_rows(protocol)["average"]] for protocol in ("crl", "rl")]
    assert shown_rows()[:2] == averages


def compared(out: Path) -> dict[str, list[str]]:
    """The rows of the README's comparison, from its kept records (`results/probe-crl`)."""
    assert main(["report", str(ROOT / "results" / "probe-crl"), "--out", str(out), "--no-figures"]) == 0
    head, _, *rows = [
        cells(line) for line in (out / "tables/probe-crl-tasks.md").read_text().splitlines() if "|" in line
    ]
    order = [head.index(label) for label in ("Top-K MoE", "SPHERE", "LN")]
    return {row[0]: [row[place] for place in order] for row in rows}


def test_the_comparison_that_the_readme_shows_is_that_of_its_records(tmp_path):
    rows = compared(tmp_path)
    assert shown_rows()[2:] == [[task, *rows[task]] for task in ("reach-north", "reach-east")]


def assert_settings(record, config):
    """Those of today. A setting that is newer than the record has to be at its default."""
    plain = FleetConfig(tasks=config.tasks, learner=type(config.learner)(), source=type(config.source)())
    was, now, plain = (
        flatten(json.loads(json.dumps(one))) for one in (record["settings"], to_json(config), to_json(plain))
    )
    assert was == {name: value for name, value in now.items() if name in was}
    newer = {name: value for name, value in now.items() if name not in was}
    assert newer == {name: plain[name] for name in newer}


def test_the_records_of_the_comparison_are_those_of_the_readmes_command():
    """Its settings, task for task and number for number; where it was trained does not matter."""
    (line,) = [
        line
        for language, body in pages.blocks(README)
        if language == "sh"
        for line in body.replace("\\\n", " ").splitlines()
        if line.startswith("sphere train")
    ]
    for asked in train.settings(shlex.split(line)[2:]):
        for run in asked.config.runs:
            record = json.loads(
                (ROOT / "results" / "probe-crl" / str(asked.method) / run.name / "config.json").read_text()
            )
            assert_settings(record, asked.config.of_run(run))


DEMO = ROOT / "results" / "metaworld-demo"


def demo_table() -> str:
    notes: list[str] = []
    table = demo.table(demo.DEMO, demo.evaluations(demo.DEMO, DEMO, notes))
    assert notes == []
    return table


def test_the_readmes_demo_is_what_its_records_give():
    (shown,) = [body for language, body in pages.blocks(README) if language == "text"]
    assert shown.rstrip().splitlines() == demo_table().splitlines()


def test_the_records_of_the_demo_are_those_of_todays_demo():
    for run in demo.DEMO.runs:
        record = json.loads((DEMO / run.name / "config.json").read_text())
        assert_settings(record, demo.DEMO.of_run(run))


def test_the_papers_experiment_takes_the_hour_that_the_readme_says():
    assert "`--preset metaworld-crl` it is the paper's experiment: an hour on one H200" in README.read_text()
    (one,) = effort(archive(ROOT / "results" / "metaworld-crl").records.values())
    assert (one.device, one.runs) == ("NVIDIA H200", 10)
    assert one.hours == pytest.approx(1, abs=0.1)


def test_the_readme_is_a_few_screens():
    assert len(README.read_text().splitlines()) <= 170


NAME = {"ids": lambda page: str(page.relative_to(ROOT))}


@pytest.mark.parametrize("page", PAGES, **NAME)
def test_pages_are_easy_on_the_eye(page):
    """No line over 120 characters, and no cell of a table that is a paragraph: over 100 characters or two sentences."""
    text = page.read_text()
    assert [number for number, line in enumerate(text.splitlines(), 1) if len(line) > 120] == []
    rows = [line for line in FENCE.sub("", text).splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in cells(row) if len(cell) > 100 or re.search(r"[.] [A-Z]", cell)] == []


@pytest.mark.parametrize("page", PAGES, **NAME)
def test_named_make_targets_and_modules_exist(page):
    assert set(re.findall(r"\bmake (?:\w+=\S+ )*([\w-]+)", shell(page))) <= pages.targets()
    for module in re.findall(r"python -m ([\w.]+)", shell(page)):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("page", PRESENT, **NAME)
def test_named_files_exist(page):
    paths = [span for span in code_spans(page) if re.fullmatch(r"[\w.*/-]+(\.(py|md|toml)|/)", span)]
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/")))] == []


def anchors(page: Path) -> set[str]:
    """Of the headings, as the site and the usual hosts of repositories make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[ -]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, **NAME)
def test_links_lead_somewhere(page):
    prose = re.sub(r"`[^`]+`", "", FENCE.sub("", page.read_text()))
    dead = []
    for link, anchor in re.findall(r"\]\(([^()#:\s]*)(?:#([\w-]+))?\)", prose):
        target = page.parent / link if link else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(f"{link}#{anchor}")
    assert dead == []


@pytest.mark.parametrize("page", PRESENT, **NAME)
def test_named_functions_exist(page):
    for span in code_spans(page):
        match = re.match(r"(sphere(?:\.\w+)+)(?:\(|$)", span)
        if not match:
            continue
        if match[1].startswith("sphere.torch") and importlib.util.find_spec("torch") is None:
            continue  # it cannot be imported; where PyTorch is, it is
        found = importlib.import_module("sphere")
        for part in match[1].split(".")[1:]:
            found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
