"""Run directories that are broken, foreign or half written: named, and left out of the report."""

import json

import pytest
from made_runs import settings, write_run

from sphere.report.load import load


def spoil_config(path):
    (path / "config.json").write_text("{ not json")


def foreign(path):
    (path / "config.json").write_text('{"model_type": "bert", "hidden_size": 768}')
    (path / "metrics.jsonl").unlink()


def list_config(path):
    (path / "config.json").write_text("[1, 2]")


def wrong_types(path):
    config = settings()
    config["settings"]["tasks"] = 5
    (path / "config.json").write_text(json.dumps(config))


def settings_in_a_word(path):
    (path / "config.json").write_text(json.dumps(settings(boundary="kept")))


def no_label(path):
    (path / "config.json").write_text(json.dumps(settings(says={"label": None})))


def unknown_score(path):
    (path / "config.json").write_text(json.dumps(settings(says={"score": "beauty"})))


def later_format(path):
    (path / "config.json").write_text(json.dumps(settings(says={"format": 3})))


def wrong_visit(path):
    text = (path / "episodes.jsonl").read_text()
    (path / "episodes.jsonl").write_text(text.replace('"task_index": 1', '"task_index": 2'))


def no_metrics(path):
    (path / "metrics.jsonl").unlink()


def broken_line(path):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([lines[0], '{"step": evaluation/', *lines[1:]]) + "\n")


def wrong_episode(path):
    with (path / "episodes.jsonl").open("a") as file:
        file.write('{"step": 1}\n')


def foreign_task(path):
    text = (path / "episodes.jsonl").read_text()
    (path / "episodes.jsonl").write_text(text.replace("metaworld/hammer", "elsewhere/hammer"))


def words_for_numbers(path):
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text.replace('"heldout/ntk_rank": ', '"heldout/ntk_rank": "many", "x": '))


def binary(path):
    (path / "metrics.jsonl").write_bytes(b'"evaluation/ \xff\xfe\x00\n' * 10)


def directory_for_file(path):
    (path / "episodes.jsonl").unlink()
    (path / "episodes.jsonl").mkdir()


SPOILS = [spoil_config, foreign, list_config, wrong_types, no_metrics, broken_line, wrong_episode, foreign_task]
SPOILS += [settings_in_a_word, words_for_numbers, binary, directory_for_file, no_label, unknown_score]
SPOILS += [later_format, wrong_visit]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_broken_directory_is_named_and_skipped(tmp_path, spoil):
    write_run(tmp_path / "good", settings(seed=1))
    spoil(write_run(tmp_path / "bad", settings(seed=0)))
    found = load([tmp_path])
    assert [run.seed for run in found.runs] == [1]
    (note,) = found.notes
    assert str(tmp_path / "bad") in note
    assert "skipped" in note


def test_half_a_last_line_is_left_out_and_said(tmp_path):
    path = write_run(tmp_path / "run", settings())
    for name in ("metrics.jsonl", "episodes.jsonl"):
        file = path / name
        file.write_bytes(file.read_bytes()[:-7])
    found = load([tmp_path])
    assert len(found.runs) == 1
    assert len(found.notes) == 2
    assert all("half a line" in note for note in found.notes)


def test_without_environment_it_still_counts(tmp_path):
    path = write_run(tmp_path / "run", settings())
    (path / "environment.json").unlink()
    found = load([tmp_path])
    assert found.runs[0].environment == {}
    assert "environment.json" in found.notes[0]


def test_nothing_to_load_is_an_error_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="no run"):
        load([tmp_path])
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="directory"):
        load([tmp_path / "file"])


def test_a_directory_without_runs_beside_one_with_runs_is_a_note(tmp_path):
    write_run(tmp_path / "a" / "run", settings())
    (tmp_path / "b").mkdir()
    found = load([tmp_path / "a", tmp_path / "b"])
    assert len(found.runs) == 1
    assert "no run" in found.notes[0]
