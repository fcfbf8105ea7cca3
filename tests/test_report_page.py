"""The page of a report, without a browser: what it is made of, what it replaces, and what a name cannot do to it."""

import json
import os
import re
from html.parser import HTMLParser

import pytest
from made_runs import TASKS, settings, write_page, write_run

from sphere.cli.main import main
from sphere.report.load import load
from sphere.report.page import render, write_report


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    write_report([runs], out, figures=False)
    return out


class Parts(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def parse(text: str) -> list[tuple[str, dict]]:
    parts = Parts()
    parts.feed(text)
    return parts.tags


def test_the_page_needs_nothing_from_elsewhere(report):
    tags = parse((report / "index.html").read_text())
    for tag, attributes in tags:
        assert tag not in ("iframe", "object", "embed", "img", "form")
        assert "src" not in attributes
        assert not attributes.get("href", "").startswith(("http", "//"))
        assert not [name for name in attributes if name.startswith("on")]


def test_every_part_is_there(report):
    text = (report / "index.html").read_text()
    headings = [re.sub("<[^>]+>", "", found) for found in re.findall(r"<h[123]>(.*?)</h[123]>", text)]
    assert headings == [
        *("Plasticity report", "MetaWorld", "Average success", "Task by task", "Learning curves"),
        *("Spectral plasticity", "Router health", "Diagnostics", "Retention", "The final policy on all tasks"),
        *("Runs, settings, versions", "Left out", "How the numbers are made"),
    ]
    assert "learner.actor.experts" in text  # settings
    assert "874834bde0640a5e51cbf0530d345cfc16112c83" in text  # versions
    assert "0.98 ± 0.04" in re.sub("<[^>]+>", "", text)  # the paper's number for hammer
    assert "foreign was skipped" in text


def test_tables_lie_beside_the_page(report):
    for name in ("averages", "against", "continual", "crl-tasks", "rl-tasks", "crl-diagnostics"):
        for form in ("txt", "md", "tex", "csv"):
            assert (report / "tables" / f"metaworld-{name}.{form}").stat().st_size > 0


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def test_no_name_becomes_markup(tmp_path):
    """In tasks, settings, versions, metrics and directories alike."""
    tasks = [f"suite/{EVIL}", "suite/b"]
    config = settings(tasks=tasks, note=EVIL, **{EVIL: 1})
    path = write_run(tmp_path / "<b>bold<b> & 'quoted'", config)
    (path / "environment.json").write_text(json.dumps({EVIL: EVIL}))
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text.replace("heldout/dormant_ratio", "heldout/<script>alert(3)</script>"))
    tags = parse(render(load([tmp_path])))
    assert sum(tag == "script" for tag, _ in tags) == 2
    assert not [tag for tag, _ in tags if tag == "img"]
    assert not [attributes for _, attributes in tags if "onerror" in attributes]


def test_a_directory_whose_name_is_no_text(tmp_path):
    path = write_run(tmp_path / "x", settings())
    os.rename(path, os.fsencode(tmp_path) + b"/\xff\xfe")
    write_report([tmp_path], tmp_path / "report", figures=False)
    assert "\\udcff" in (tmp_path / "report" / "index.html").read_text()


def test_a_report_cannot_replace_a_file(tmp_path, runs):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        write_report([runs], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_second_report_leaves_nothing_of_the_first_but_other_peoples_files(tmp_path):
    write_run(tmp_path / "crl" / "a", settings(protocol="crl"))
    write_run(tmp_path / "rl" / "a", settings(protocol="rl"))
    out = tmp_path / "report"
    write_report([tmp_path / "crl"], out, figures=False)
    (out / "tables" / "mine.ods").touch()
    write_report([tmp_path / "rl"], out, figures=False)
    names = {path.name for path in (out / "tables").iterdir()}
    assert "mine.ods" in names
    assert any("-rl-" in name for name in names)
    assert not any("-crl-" in name for name in names)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("precious")
    with pytest.raises(ValueError, match="not made by sphere report"):
        write_report([tmp_path / "rl"], tmp_path / "site", figures=False)
    assert (tmp_path / "site" / "index.html").read_text() == "precious"


def test_folders_of_comparisons_that_are_one_by_now_go_too(tmp_path):
    for task in TASKS:
        write_run(tmp_path / "runs" / task, settings(0, protocol="rl", tasks=[task], steps_per_task=len(task) * 1000))
    out = tmp_path / "report"
    write_report([tmp_path / "runs"], out, figures=False)
    assert len(list((out / "tables").iterdir())) == len(TASKS)
    (out / "tables" / "my-notes").mkdir()
    (out / "tables" / "my-notes" / "note").touch()
    write_report([tmp_path / "runs" / TASKS[0]], out, figures=False)
    assert [path.name for path in (out / "tables").iterdir() if path.is_dir()] == ["my-notes"]


def test_one_run_has_no_deviation(tmp_path):
    for rho in (0.0, 0.1):
        write_run(tmp_path / f"{rho}", settings(rho=rho))
    write_report([tmp_path], tmp_path / "report", figures=False)
    page = (tmp_path / "report" / "index.html").read_text()
    (average,) = (tmp_path / "report" / "tables").glob("*-averages.txt")
    assert "SPHERE" in average.read_text()
    assert "±" not in average.read_text().split("Over runs")[0]
    assert "<small>±" not in page
    assert "better one with probability" not in page
    assert "One run of a method says nothing about the next one" in page


def test_runs_without_any_evaluation_make_a_page_too(tmp_path):
    write_run(tmp_path / "x", settings(), stop_at=0)
    text = render(load([tmp_path]))
    assert "No run has finished" in text
    assert "Average success" not in text  # of which there would be an empty chart


@pytest.mark.parametrize("file", ["fleet.json", "config.json", "metrics.jsonl"])
def test_a_report_is_not_written_among_records(file, tmp_path):
    write_run(tmp_path / "fleet" / "a", settings())
    out = tmp_path / "fleet" / "a" if file != "fleet.json" else tmp_path / "fleet"
    (out / file).touch()
    before = {path: path.read_bytes() for path in (tmp_path / "fleet").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"holds records of training .* name another directory"):
        write_report([tmp_path / "fleet"], out, figures=False)
    assert {path: path.read_bytes() for path in (tmp_path / "fleet").rglob("*") if path.is_file()} == before


def test_the_command_line(runs, tmp_path, capsys):
    assert main(["report", str(runs), "-o", str(tmp_path / "out"), "--no-figures"]) == 0
    said = capsys.readouterr()
    assert "13 runs" in said.out
    assert "foreign was skipped" in said.err
    assert (tmp_path / "out" / "index.html").exists()
    assert main(["report", str(tmp_path / "no")]) == 1
    said = capsys.readouterr()
    assert "does not exist" in said.err
    assert "Traceback" not in said.err
