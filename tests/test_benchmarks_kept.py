"""Kept tables of benchmarks: what is written, what stands on the pages, and that both are the same."""

import argparse
import json
import sys

import pytest
from pages import ROOT

from benchmarks import first_minutes, kept

PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", [p for p in PAGES if kept.BLOCK.search(p.read_text())], ids=lambda p: p.stem)
def test_tables_on_pages_are_those_that_were_kept(page):
    assert kept.filled(page.read_text()) == page.read_text(), "python -m benchmarks.kept writes them"


def test_every_kept_table_is_on_a_page_and_says_where_it_is_from():
    shown = {match[2] for page in PAGES for match in kept.BLOCK.finditer(page.read_text())}
    assert shown == {path.stem for path in kept.KEPT.glob("*.json")}
    for name in shown:
        found, table = kept.read(name)
        assert found["command"].startswith(("python ", "sphere bench "))
        assert f"{name}.json" in found["command"]
        assert "cores" in found["device"]
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_what_is_said_of_the_cost_in_pytorch():
    _, table = kept.read("torch-penalty")
    times = {(e, tokens): ratio for e, tokens, way, _, ratio, *_ in table.rows if way == "fixed"}
    more = {(e, tokens): mb for e, tokens, way, *_, mb in table.rows if way == "fixed"}
    assert 1.1 < times[128, 4096] < 1.2 < times[128, 16384]  # a fifth or less
    assert times[128, 8192] < 1.1 < 1.4 < times[8, 4096] < 1.6  # half
    assert more[8, 16384] < 1.1 * more[8, 4096]
    assert all(more[128, tokens] < 1 for tokens in (4096, 8192, 16384))


def test_what_is_said_of_gpu_physics():
    twice, apart = (kept.read(name)[1] for name in ("gpu-physics-twice", "gpu-physics"))
    assert all(dict(zip(twice.columns, row, strict=True))["equal"] == 0 for row in twice.rows)
    median = {row[2]: row[3] for row in apart.rows}
    assert median["Warp, this CPU"] < 1e-6 < 1e-4 < median["this CPU, 3.3.0"]


def test_an_edited_number_is_noticed():
    page = ROOT / "docs" / "performance.md"
    _, table = kept.read("penalty")
    cell = table.cells(table.rows[0])[1]
    assert kept.filled(page.read_text().replace(cell, "9.999", 1)) == page.read_text()


def test_a_table_is_written_and_read_back(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kept, "KEPT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["/somewhere/benchmarks/penalty.py", "--keep", "a b.json"])
    table = kept.Table({"task": "", "steps": ",.0f", "ratio": ".2f"})
    table.add("push", 12345.6, None)
    kept.keep(table, tmp_path / "one.json", "a device")
    found, again = kept.read("one")
    assert found["command"] == "python -m benchmarks.penalty --keep 'a b.json'"
    assert again.rows == [["push", 12345.6, None]]
    assert again.markdown() == "| task | steps | ratio |\n| --- | ---: | ---: |\n| push | 12,346 |  |"
    assert "12,346" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]
    assert json.loads((tmp_path / "one.json").read_text())["rows"] == again.rows


def test_nothing_is_written_without_a_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    kept.add_option(parser)
    kept.keep(kept.Table({"a": ""}), parser.parse_args([]).keep, "a device")
    assert list(tmp_path.iterdir()) == []


def test_the_first_minutes_are_those_of_the_readme():
    readme = " ".join((ROOT / "README.md").read_text().replace("\\\n", " ").split())
    for command in first_minutes.COMMANDS:
        assert command in readme
