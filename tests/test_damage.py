"""Of 500 randomly damaged files none changes what tables are made of without a note, and none ends in a stack trace."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import fleets
import numpy as np
import processes
import pytest
from made_runs import settings, write_run

from sphere.report.load import load
from sphere.report.page import render
from sphere.storage import checkpoint
from sphere.storage.export import export

CASES = 250
"""For fleets with a checkpoint, and as many for published copies."""
FILES = ("config.json", "metrics.jsonl", "episodes.jsonl")


def facts(loaded):
    """All that tables are made of: what runs are called, and every number of theirs."""
    found = {}
    for run in loaded.runs:
        arrays = {"step": run.curve.step, "task": run.curve.task, **run.curve.values}
        episodes = run.episodes
        arrays |= {"e/step": episodes.step, "e/task": episodes.task, "e/kind": episodes.kind, **episodes.columns}
        found[run.method, run.seed, run.protocol, run.tasks, run.score, run.steps, run.task_steps] = {
            name: array.tobytes() for name, array in arrays.items()
        }
    return found


def checkpoint_of(directory):
    """As training saves one at its end, with checksums by an independent route."""
    sums = {}
    for run in directory.glob("rho*"):
        data = {name: (run / name).read_bytes() for name in FILES}
        own = {name: {"bytes": len(one), "sha256": hashlib.sha256(one).hexdigest()} for name, one in data.items()}
        sums[run.name] = own | {"config.json": own["config.json"] | {"bytes": None}}
    checkpoint.save(directory, 9, {"a": np.zeros(3)}, {"checksums": sums})


def lines_changed(rng, data):
    lines = data.splitlines(keepends=True)
    first, second = rng.integers(len(lines), size=2)
    how = rng.integers(4)
    if how == 0:
        lines[first], lines[second] = lines[second], lines[first]
    elif how == 1:
        del lines[first]
    elif how == 2:
        lines.insert(second, lines[first])
    else:
        lines = lines[: first + 1]
    return b"".join(lines)


def digit_changed(rng, data):
    places = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
    place = rng.choice(places)
    return data[:place] + str(rng.integers(10)).encode() + data[place + 1 :]


def bytes_changed(rng, data):
    first, length = rng.integers(len(data)), rng.integers(1, 6)
    how = rng.integers(3)
    if how == 0:
        return data[:first] + rng.bytes(length) + data[first + length :]
    if how == 1:
        return data[:first] + data[first + length :]
    flipped = bytes([data[first] ^ 1 << int(rng.integers(8))])
    return data[:first] + flipped + data[first + 1 :]


def word_changed(rng, data):
    words = (b"true", b"false", b'"nan"', b"0", b"1e999", b"NaN", b"null", b"-1", b"[]", b"9" * 400, b'"\xff"')
    places = [place for place in range(len(data)) if data[place : place + 2] == b": "]
    first = rng.choice(places) + 2
    end = min(place for place in (data.find(sign, first) for sign in (b",", b"}", b"\n")) if place > 0)
    return data[:first] + words[rng.integers(len(words))] + data[end:]


def whole_changed(rng, data):
    kinds = [b"", b"\n", data.decode().encode("utf-16"), b"\xef\xbb\xbf" + data, data + data, data[: len(data) // 2]]
    return kinds[rng.integers(len(kinds))]


CHANGES = (lines_changed, digit_changed, bytes_changed, word_changed, whole_changed)


def replaced(rng, path):
    """By something that is no regular file."""
    how = rng.integers(5)
    path.unlink()
    if how == 0:
        os.mkfifo(path)
    elif how == 1:
        path.mkdir()
    elif how == 2:
        path.symlink_to("/dev/zero")
    elif how == 3:
        path.symlink_to(path)


def damage(rng, run, names):
    path = run / names[rng.integers(len(names))]
    if rng.random() < 0.1:
        replaced(rng, path)
        return path, None
    data = path.read_bytes()
    now = CHANGES[rng.integers(len(CHANGES))](rng, data)
    path.write_bytes(now)
    return path, data == now


@pytest.mark.parametrize("kind", ["fleet", "copy"])
def test_no_damage_changes_a_table_without_a_note(kind, tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "fleet" / f"rho0-seed{seed}", settings(seed, tasks=["metaworld/hammer", "metaworld/push"]))
    names, whole = FILES, tmp_path / "fleet"
    if kind == "copy":
        export([whole], tmp_path / "copies")
        names, whole = (*FILES, "environment.json"), tmp_path / "copies" / "fleet"
    else:
        checkpoint_of(whole)
    loaded = load([whole])
    assert loaded.notes == ()
    before, rng, changes = facts(loaded), np.random.default_rng(23), 0
    for case in range(CASES):
        directory = shutil.copytree(whole, tmp_path / "damaged")
        path, same = damage(rng, directory / "rho0-seed0", names)
        loaded = load([directory])
        changes += facts(loaded) != before
        if not same:
            assert any("rho0-seed0" in note for note in loaded.notes), f"{case}: {path}"
        assert any(run.seed == 1 for run in loaded.runs)  # the rest of the page is made
        if case % 25 == 0:
            render(loaded)
        shutil.rmtree(directory)
    assert changes > CASES / 2  # else the damage would be no test


def test_what_checksums_no_longer_cover_is_said(tmp_path):
    """One that lost a line, and a checkpoint that cannot be read: an edit would not be found."""
    for seed in (0, 1):
        write_run(tmp_path / "fleet" / f"rho0-seed{seed}", settings(seed))
    export([tmp_path / "fleet"], tmp_path / "copies")
    sums = tmp_path / "copies" / "fleet" / "rho0-seed0" / "SHA256SUMS"
    sums.write_text("".join(line for line in sums.read_text().splitlines(True) if "metrics" not in line))
    (note,) = load([tmp_path / "copies"]).notes
    assert "SHA256SUMS does not name metrics.jsonl" in note
    checkpoint_of(tmp_path / "fleet")
    assert load([tmp_path / "fleet"]).notes == ()
    (saved,) = (tmp_path / "fleet").glob("checkpoint-*.npz")
    os.truncate(saved, 100)
    (note,) = load([tmp_path / "fleet"]).notes
    assert f"{saved} is damaged" in note


def test_a_run_of_a_fleet_that_is_gone_is_named(tmp_path):
    """A table of four runs instead of five would look like any other."""
    for seed in (0, 1):
        write_run(tmp_path / "fleet" / f"rho0-seed{seed}", settings(seed))
    checkpoint_of(tmp_path / "fleet")
    (tmp_path / "fleet" / "fleet.json").write_text("{}")
    assert load([tmp_path]).notes == ()
    shutil.rmtree(tmp_path / "fleet" / "rho0-seed1")
    (note,) = load([tmp_path]).notes
    assert f"{tmp_path / 'fleet' / 'rho0-seed1'} is gone" in note


def test_a_link_to_a_run_is_named_and_not_followed(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed) / "run", settings(seed))
    (tmp_path / "0" / "other").symlink_to(tmp_path / "1" / "run")
    loaded = load([tmp_path / "0"])
    assert [run.seed for run in loaded.runs] == [0]
    (note,) = loaded.notes
    assert f"{tmp_path / '0' / 'other'} is a link" in note
    assert [run.seed for run in load([tmp_path / "0" / "other"]).runs] == [1]


IN_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_report_is_the_same_in_any_locale(tmp_path):
    """In a process of its own, whose files would be read as ASCII."""
    write_run(tmp_path / "run", settings(says={"label": "Ä"}))
    words = ["-m", "sphere", "report", str(tmp_path / "run"), "--no-figures", "-o"]
    for name, more in (("usual", {}), ("ascii", IN_ASCII)):
        process = processes.start(
            [sys.executable, *words, str(tmp_path / name)],
            env={**os.environ, **more, "PYTHONPATH": fleets.python_path(fleets.ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
        )
        said = processes.ended(process)
        assert process.returncode == 0, said
    for path in (tmp_path / "usual" / "tables").iterdir():
        assert path.read_bytes() == (tmp_path / "ascii" / "tables" / path.name).read_bytes()
    assert "Ä" in (tmp_path / "ascii" / "index.html").read_text("utf-8")


@pytest.mark.parametrize("name", ["steps_per_task", "learner__num_envs", "evaluation__episodes", "vary"])
def test_a_number_that_nothing_can_be_computed_with_is_named(name, tmp_path):
    """Wherever in the settings it stands; the rest of the page is made."""
    write_run(tmp_path / "seed1", settings(1))
    run = write_run(tmp_path / "seed0", settings(0))
    config = settings(0, **{name: {"learning_rate": [10**400]} if name == "vary" else 10**400})
    (run / "config.json").write_text(json.dumps(config))
    loaded = load([tmp_path])
    assert [one.seed for one in loaded.runs] == [1]
    (note,) = loaded.notes
    assert str(run) in note
    render(loaded)


def test_half_a_success_is_none_even_where_the_mean_is_right(tmp_path):
    """A success and a failure, each made a half: no mean and no order tells."""
    for seed in (0, 1):
        run = write_run(tmp_path / f"seed{seed}", settings(seed))
    lines = (run / "episodes.jsonl").read_text().splitlines(True)
    for word in ("true", "false"):
        place = next(i for i, line in enumerate(lines[:4]) if f'"success_at_end": {word}' in line)
        lines[place] = lines[place].replace(f'"success_at_end": {word}', '"success_at_end": 0.5')
    (run / "episodes.jsonl").write_text("".join(lines))
    (note,) = load([tmp_path]).notes
    assert "success_at_end 0.5, wanted 0 or 1" in note


def test_an_empty_record_is_named(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"seed{seed}", settings(seed))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        (tmp_path / "seed0" / name).write_bytes(b"")
    (note,) = load([tmp_path]).notes
    assert "metrics.jsonl is empty" in note


@pytest.mark.parametrize("name", FILES)
def test_an_endless_file_is_not_read(name, tmp_path):
    """A terabyte, of which the disk holds nothing."""
    for seed in (0, 1):
        write_run(tmp_path / f"seed{seed}", settings(seed))
    os.truncate(tmp_path / "seed0" / name, 2**40)
    (note,) = load([tmp_path]).notes
    assert "1,099,511,627,776 bytes" in note
