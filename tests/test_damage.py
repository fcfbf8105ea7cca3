"""Of 500 randomly damaged files none changes what tables are made of without a note, and none ends in a stack trace."""

import hashlib
import os
import shutil

import numpy as np
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
