"""Training that was killed, asked to stop or damaged goes on to the numbers of an undisturbed one, or says why not."""

import json
import os
import shutil
import signal

import fleets
import kill
import processes
import pytest
from fleets import TINY, assert_same, changed

from sphere.storage import files
from sphere.training.fleet import Fleet
from sphere.training.loop import Interrupted, train


@pytest.mark.parametrize("kills", [3])
def test_kill_nine_and_resume_equals_straight_through(straight, tmp_path, kills):
    """Real processes, killed at random moments; `python scripts/kills.py 200` is the long form."""
    kill.train_with_kills(TINY, tmp_path / "killed", tmp_path / "cache", kills, seed=0)
    assert_same(straight, tmp_path / "killed")


def test_a_damaged_newest_checkpoint_falls_back_and_says_so(straight, tmp_path, capfd):
    fleets.write(TINY, tmp_path / "fleet")
    fleets.cut_after(7, TINY, tmp_path / "fleet")
    newest = max((tmp_path / "fleet").glob("checkpoint-*.npz"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(bytes(content))
    train(TINY, tmp_path / "fleet", resume=True)
    said = capfd.readouterr().err
    assert newest.name in said
    assert_same(straight, tmp_path / "fleet")


def test_two_processes_on_one_directory(tmp_path):
    fleets.write(TINY, tmp_path / "fleet")
    with files.lock_directory(tmp_path / "fleet"):
        other = fleets.resume(tmp_path / "fleet", tmp_path / "cache")
        said = processes.ended(other)
    assert other.returncode == 1
    assert "pid" in said
    assert "Traceback" not in said


def test_a_stop_asked_for_in_the_last_iteration_does_not_promise_more(tmp_path, monkeypatch):
    original = Fleet.advance

    def asked(self, ahead):
        if self.total_iterations == self.config.total_iterations - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, ahead)

    monkeypatch.setattr(Fleet, "advance", asked)
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=64)
    with pytest.raises(Interrupted, match="stopped after step 128; all is trained"):
        train(config, tmp_path / "fleet", quiet=True)


def test_asked_to_stop_it_saves_and_leaves_and_resume_goes_on(straight, tmp_path):
    """By Ctrl-C, and again by SIGTERM, a scheduler's way to ask."""
    fleets.write(TINY, tmp_path / "fleet")
    for asked, iterations in ((signal.SIGINT, 3), (signal.SIGTERM, 11)):
        hold = fleets.Hold(tmp_path / "hold", iterations)
        process = fleets.resume(tmp_path / "fleet", tmp_path / "cache", hold=hold)
        processes.until(lambda hold=hold: hold.reached(tmp_path / "fleet"), process)
        workers = processes.children(process.pid)
        assert workers
        for pid in [process.pid, *workers]:  # a terminal and a scheduler tell all processes
            os.kill(pid, asked)
        said = processes.ended(process)
        assert process.returncode == 130, said
        assert f"stopped after step {64 * (iterations + 1)}" in said
        assert "sphere resume" in said
        assert "Traceback" not in said
    environment = tmp_path / "fleet" / "rho0-seed0" / "environment.json"
    began = json.loads(environment.read_text()) | {"python": "2.7"}
    environment.write_text(json.dumps(began))
    second = fleets.resume(tmp_path / "fleet", tmp_path / "cache", "--workers", "2")  # a machine with other cores
    said = processes.ended(second)
    assert second.returncode == 0, said
    assert "not the same python as before" in said
    assert_same(straight, tmp_path / "fleet")
    noted = json.loads(environment.read_text())
    assert noted["python"] == "2.7"
    assert [list(change) for change in noted["resumed"].values()] == [["python"]]


def test_a_directory_with_a_fleet_is_refused_and_stays_as_it_is(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=64)
    train(config, tmp_path / "fleet", quiet=True)
    before = {path: path.read_bytes() for path in (tmp_path / "fleet").rglob("*") if path.is_file()}
    for other in ({"steps_per_task": 128}, {"seeds": (1,)}):
        with pytest.raises(FileExistsError, match="holds a fleet already"):
            train(changed(config, **other), tmp_path / "fleet", quiet=True)
    assert {path: path.read_bytes() for path in (tmp_path / "fleet").rglob("*") if path.is_file()} == before


def test_a_fleet_goes_on_with_the_settings_that_its_records_name(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=128)
    fleets.write(config, tmp_path / "fleet")
    fleets.cut_after(3, config, tmp_path / "fleet")
    other = changed(config, steps_per_task=256, learner=changed(config.learner, gamma=0.5))
    with pytest.raises(ValueError, match=r"config\.json has another steps_per_task, learner\.gamma than fleet"):
        train(other, tmp_path / "fleet", resume=True, quiet=True)
    train(changed(config, checkpoint_every=1, workers=1), tmp_path / "fleet", resume=True, quiet=True)


def test_a_damaged_checkpoint_is_out_of_the_way_once_the_fleet_goes_on(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, checkpoint_every=4)
    fleets.write(config, tmp_path / "fleet")
    fleets.cut_after(10, config, tmp_path / "fleet")
    four, eight = sorted((tmp_path / "fleet").glob("checkpoint-*.npz"))
    assert (four.stem[-1], eight.stem[-1]) == ("4", "8")
    eight.write_bytes(b"damaged")
    fleets.cut_after(2, config, tmp_path / "fleet")
    assert sorted((tmp_path / "fleet").glob("checkpoint-*.npz")) == [four]


def test_who_only_looks_whether_all_is_done_is_not_noted_as_its_machine(tmp_path):
    config = changed(TINY, seeds=(0,), rho=(0.0,), workers=0, steps_per_task=64)
    train(config, tmp_path / "fleet", quiet=True)
    environment = tmp_path / "fleet" / "rho0-seed0" / "environment.json"
    elsewhere = json.loads(environment.read_text()) | {"device": {"kind": "another"}}
    environment.write_text(json.dumps(elsewhere))
    train(config, tmp_path / "fleet", resume=True, quiet=True)
    assert json.loads(environment.read_text()) == elsewhere


def test_whoever_has_plans_for_sigterm_keeps_them(tmp_path, monkeypatch):
    """submitit answers it by itself, and hands the job back to the queue by another signal."""
    heard, original = [], Fleet.advance

    def interrupted(self, ahead):
        if self.total_iterations == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, ahead)

    monkeypatch.setattr(Fleet, "advance", interrupted)
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("theirs"))
    try:
        train(changed(TINY, seeds=(0,), rho=(0.0,), workers=0), tmp_path / "fleet", quiet=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["theirs"]


@pytest.mark.parametrize("made", [0, 1])
def test_a_fleet_killed_while_it_made_its_directories_can_be_resumed(straight, tmp_path, made):
    fleets.write(TINY, tmp_path / "fleet")
    for path in sorted((tmp_path / "fleet").glob("*/config.json"))[made:]:
        shutil.rmtree(path.parent)
    train(TINY, tmp_path / "fleet", resume=True, quiet=True)
    assert_same(straight, tmp_path / "fleet")
