"""A fleet in training knows its files: what is moved, removed or replaced under it ends it with a sentence."""

import json
import os
import shutil
import signal
import types

import fleets
import numpy as np
import pytest
from fleets import TINY, changed

from sphere.cli.main import main
from sphere.envs import handles
from sphere.launch import side_by_side
from sphere.storage import checkpoint, files
from sphere.training import loop
from sphere.training.loop import train

ONE = changed(
    TINY, seeds=(0,), rho=(0.0,), steps_per_task=192, workers=0
)  # a checkpoint every second of six iterations
RUN = "rho0-seed0"


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    directory = tmp_path_factory.mktemp("straight") / "fleet"
    train(ONE, directory, quiet=True)
    return directory


def after(iterations, action):
    """A context in which something happens once that many iterations are done and recorded."""
    patch, calls, original = pytest.MonkeyPatch(), [], loop.Training.iterate

    def iterate(training):
        tree = original(training)
        calls.append(1)
        if len(calls) == iterations:
            action()
        return tree

    patch.setattr(loop.Training, "iterate", iterate)
    return patch


def disturbed(directory, action, iterations=3, resume=False):
    """What a training says that is disturbed after so many iterations."""
    patch = after(iterations, action)
    try:
        with pytest.raises(files.Replaced) as caught:
            train(ONE, directory, resume=resume, quiet=True)
    finally:
        patch.undo()
    return str(caught.value)


def test_a_removed_directory_stays_removed_and_ends_the_training(tmp_path):
    said = disturbed(tmp_path / "fleet", lambda: shutil.rmtree(tmp_path / "fleet"))
    assert "removed, moved or replaced" in said
    assert not (tmp_path / "fleet").exists()


def test_a_moved_directory_keeps_all_and_goes_on_when_it_is_back(straight, tmp_path):
    place, other = tmp_path / "fleet", tmp_path / "elsewhere"
    said = disturbed(place, lambda: place.rename(other))
    assert str(place) in said
    assert "sphere resume" in said
    assert not place.exists()
    other.rename(place)
    train(ONE, place, resume=True, quiet=True)
    assert fleets.numbers(place) == fleets.numbers(straight)


@pytest.mark.parametrize("name", ["lock", f"{RUN}/lock", f"{RUN}/metrics.jsonl", f"{RUN}/episodes.jsonl", "fleet.json"])
def test_a_removed_file_ends_the_training(name, tmp_path):
    said = disturbed(tmp_path / "fleet", (tmp_path / "fleet" / name).unlink)
    assert str(tmp_path / "fleet" / name) in said


def test_a_file_replaced_by_its_copy_ends_the_training(tmp_path):
    record = tmp_path / "fleet" / RUN / "metrics.jsonl"

    def replace():
        shutil.copy(record, record.with_name("copy"))
        os.replace(record.with_name("copy"), record)

    assert str(record) in disturbed(tmp_path / "fleet", replace)


@pytest.mark.parametrize("how", ["append", "cut"])
def test_a_record_that_somebody_else_writes_to_ends_the_training(how, tmp_path, straight):
    record = tmp_path / "fleet" / RUN / "metrics.jsonl"

    def write():
        if how == "append":
            with record.open("ab") as file:
                file.write(b'{"step": 1}\n')
        else:
            os.truncate(record, 10)

    said = disturbed(tmp_path / "fleet", write)
    assert "bytes" in said
    if how == "append":
        train(ONE, tmp_path / "fleet", resume=True, quiet=True)
        assert fleets.numbers(tmp_path / "fleet") == fleets.numbers(straight)


def test_a_second_start_without_the_locks_ends_the_first_and_doubles_nothing(tmp_path, straight):
    """`rm lock` and a second `sphere resume` while the first is at work: the second gets through, the first stops."""
    place = tmp_path / "fleet"

    def start_another():
        for lock in place.rglob("lock"):
            lock.unlink()
        patch.undo()
        train(ONE, place, resume=True, quiet=True)

    patch = after(3, start_another)
    try:
        with pytest.raises(files.Replaced, match="lock"):
            train(ONE, place, quiet=True)
    finally:
        patch.undo()
    assert fleets.numbers(place) == fleets.numbers(straight)


def test_a_checkpoint_makes_no_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"):
        checkpoint.save(tmp_path / "gone", 1, {"a": np.zeros(2)}, {})
    assert not (tmp_path / "gone").exists()


# Checksums in the checkpoints


@pytest.fixture
def fleet(straight, tmp_path):
    return shutil.copytree(straight, tmp_path / "fleet")


def edit(path, before, now):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, now, 1))


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes.jsonl"])
def test_resume_refuses_a_record_that_was_changed_before_the_checkpoint(name, fleet, capsys):
    edit(fleet / RUN / name, '"task_index": 0', '"task_index": 1')
    before = {path: path.read_bytes() for path in fleet.rglob("*.jsonl")}
    assert main(["resume", str(fleet)]) == 1
    said = capsys.readouterr().err
    assert f"{RUN}/{name} was changed" in said
    assert {path: path.read_bytes() for path in fleet.rglob("*.jsonl")} == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json"])
def test_show_and_report_warn_of_a_changed_record(name, fleet, tmp_path, capsys):
    if name == "config.json":
        edit(fleet / RUN / name, '"label": "Top-K MoE"', '"label": "Top-L MoE"')
    else:
        edit(fleet / RUN / name, '"heldout/ntk_rank": ', '"heldout/ntk_rank": 1')  # a digit more
    for words in (["show", str(fleet)], ["report", str(fleet), "-o", str(tmp_path / "page"), "--no-figures"]):
        assert main(words) == 0
        out = capsys.readouterr()
        assert f"{name} was changed" in out.out + out.err


def test_what_was_not_changed_is_not_warned_of(fleet, tmp_path, capsys):
    for words in (["show", str(fleet)], ["report", str(fleet), "-o", str(tmp_path / "page"), "--no-figures"]):
        assert main(words) == 0
        out = capsys.readouterr()
        assert "was changed" not in out.out + out.err


def test_a_checkpoint_without_checksums_is_resumed(straight, tmp_path, monkeypatch):
    """As all those are that were written before there were any."""
    monkeypatch.setattr(loop.Training, "save", _save_as_before)
    fleets.write(ONE, tmp_path / "fleet")
    fleets.cut_after(4, ONE, tmp_path / "fleet")
    monkeypatch.undo()
    train(ONE, tmp_path / "fleet", resume=True, quiet=True)
    assert fleets.numbers(tmp_path / "fleet") == fleets.numbers(straight)


def _save_as_before(training, tree):
    meta = {"counters": training.fleet.counters(), "positions": training.records.positions()}
    checkpoint.save(training.fleet.directory, training.fleet.total_iterations, tree, meta)


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_saves_as_a_scheduler_does(number, straight, tmp_path):
    """Both come after the third iteration, at which no checkpoint is due."""
    before = signal.signal(number, signal.SIG_DFL)  # under nohup the tests themselves ignore it
    patch = after(3, lambda: os.kill(os.getpid(), number))
    try:
        with pytest.raises(loop.Interrupted, match="stopped after step 192"):
            train(ONE, tmp_path / "fleet", quiet=True)
    finally:
        patch.undo()
        signal.signal(number, before)
    train(ONE, tmp_path / "fleet", resume=True, quiet=True)
    assert fleets.numbers(tmp_path / "fleet") == fleets.numbers(straight)


def test_a_signal_to_all_processes_leaves_the_simulators_to_the_learner(straight, tmp_path, monkeypatch):
    """As a session's end has it: SIGTERM and SIGHUP to everything that runs."""
    workers = []
    original = handles.Process.__init__

    def noted(process, *arguments):
        original(process, *arguments)
        workers.append(process.process)

    def end():
        for process in workers:
            for number in (signal.SIGTERM, signal.SIGHUP):
                process.send_signal(number)
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(handles.Process, "__init__", noted)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    patch = after(3, end)
    try:
        with pytest.raises(loop.Interrupted, match="stopped after step 192"):
            train(changed(ONE, workers=2), tmp_path / "fleet", quiet=True)
    finally:
        patch.undo()
        signal.signal(signal.SIGHUP, before)
    assert len(workers) >= 2
    train(ONE, tmp_path / "fleet", resume=True, quiet=True)
    assert fleets.numbers(tmp_path / "fleet") == fleets.numbers(straight)


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ([130, 130], "2 fleets stopped and saved"),
        ([-15, -15], "0 fleets stopped and saved, 2 fleets stopped before there was anything new to save"),
        ([130, -15], "1 fleet stopped and saved, 1 fleet stopped before there was anything new to save"),
    ],
)
def test_fleets_that_were_stopped_before_they_began_are_not_called_saved(codes, said):
    """A process that SIGTERM ends at once has -15: it was still starting."""
    children = [types.SimpleNamespace(process=types.SimpleNamespace(returncode=code)) for code in codes]
    assert side_by_side.stopped.__wrapped__(children) == said


def test_a_terminal_that_is_gone_does_not_end_a_training(straight, tmp_path, monkeypatch):
    class Gone:
        """As stderr is after a hangup."""

        def write(self, text):
            raise OSError(5, "Input/output error")

        flush = write

        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Gone())
    train(ONE, tmp_path / "fleet")
    monkeypatch.undo()
    assert fleets.numbers(tmp_path / "fleet") == fleets.numbers(straight)
    assert json.loads((tmp_path / "fleet" / RUN / "config.json").read_text())["seed"] == 0
