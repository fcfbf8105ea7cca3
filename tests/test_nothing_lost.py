"""Work that exists is not emptied, replaced or mixed up by a command that meant well."""

import json
import shutil
import sys
import types

import fleets
import pytest
from fleets import TINY, changed

from sphere.cli.main import main
from sphere.storage.export import export
from sphere.storage.fleet_directory import check_nothing_is_lost
from sphere.training.loop import train

ONE = changed(TINY, seeds=(0,), rho=(0.0,), steps_per_task=192, workers=0)  # a checkpoint every 128 steps


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained") / "fleet"
    train(ONE, directory, quiet=True)
    return directory


@pytest.fixture
def fleet(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "fleet")


def test_records_without_their_checkpoints_are_not_started_over(fleet, capsys):
    for path in fleet.glob("checkpoint-*.npz"):
        path.unlink()
    before = contents(fleet)
    assert main(["resume", str(fleet)]) == 1
    assert "has records up to step 384" in (said := capsys.readouterr().err)
    assert "bring checkpoint-*.npz back" in said
    assert contents(fleet) == before


def test_when_a_checkpoint_was_due_is_what_the_run_began_with(fleet, tmp_path):
    """By its own record: of a fleet that had checkpoints nothing is emptied, one that had none goes on."""
    for path in fleet.glob("checkpoint-*.npz"):
        path.unlink()
    names = [run.name for run in ONE.runs]
    with pytest.raises(FileNotFoundError, match="no checkpoint to resume from"):
        check_nothing_is_lost(fleet, names, resume=True)
    fleets.write(ONE, tmp_path / "other")
    (run,) = (tmp_path / "other").glob("rho*")
    lines = (fleet / run.name / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= 128))
    check_nothing_is_lost(tmp_path / "other", names, resume=True)


def test_a_run_that_the_settings_no_longer_name_is_not_left_behind(tmp_path, capsys):
    """Before the first checkpoint, which would not fit: a digit less in fleet.json would train fewer runs."""
    fleets.write(fleets.TINY, tmp_path / "fleet")
    path = tmp_path / "fleet" / "fleet.json"
    written = json.loads(path.read_text())
    written["settings"]["seeds"] = [1]
    path.write_text(json.dumps(written))
    assert main(["resume", str(tmp_path / "fleet")]) == 1
    assert "has the run rho0-seed0, which fleet.json does not name now" in capsys.readouterr().err


def test_records_without_a_fleet_are_not_trained_over(fleet, tmp_path):
    export([fleet], tmp_path / "results")
    before = contents(tmp_path / "results")
    with pytest.raises(FileExistsError, match=r"holds records of runs \(rho0-seed0\) and no fleet .* choose another"):
        train(ONE, tmp_path / "results" / "fleet", quiet=True)
    assert contents(tmp_path / "results") == before  # no fleet.json either, by which they could be resumed


def test_a_fleet_killed_before_its_first_checkpoint_starts_over_and_says_so(trained, tmp_path, capsys):
    """As long as records are no further than the first checkpoint would be. TensorBoard, too, has every step once."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    fleets.write(ONE, tmp_path / "fleet")
    fleets.cut_after(2, changed(ONE, checkpoint_every=3), tmp_path / "fleet")
    assert not list((tmp_path / "fleet").glob("checkpoint-*.npz"))
    train(ONE, tmp_path / "fleet", resume=True)
    assert "no checkpoint yet: training starts from the beginning" in capsys.readouterr().err
    assert fleets.numbers(tmp_path / "fleet") == fleets.numbers(trained)
    board = accumulator.EventAccumulator(str(tmp_path / "fleet" / "rho0-seed0"))
    board.Reload()
    assert [event.step for event in board.Scalars("train/policy_loss")] == [64 * i for i in range(1, 7)]


def test_a_copy_does_not_replace_a_run_in_training(fleet, tmp_path):
    shutil.copytree(fleet, tmp_path / "there" / "fleet")
    before = contents(tmp_path / "there")
    with pytest.raises(ValueError, match="is a run in training, not a copy"):
        export([fleet], tmp_path / "there")
    assert contents(tmp_path / "there") == before


class Wandb:
    """Keeps what it is sent by id, as the service does."""

    def __init__(self):
        self.runs: dict[str, list] = {}

    def init(self, *, id, **_):
        rows = self.runs.setdefault(id, [])
        summary = {"step": rows[-1]["step"]} if rows else {}
        return types.SimpleNamespace(log=rows.append, finish=lambda: None, summary=summary)


def test_wandb_has_a_run_for_every_fleet_and_a_step_once(trained, tmp_path, monkeypatch):
    service = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", service)
    config = changed(ONE, wandb="project")
    for place in ("a", "b"):  # of one name
        train(config, tmp_path / place / "fleet", quiet=True)
    first, second = service.runs.values()
    assert first == second  # but for the id: the same settings
    fleets.write(config, tmp_path / "cut")
    fleets.cut_after(6, config, tmp_path / "cut")  # the newest checkpoint is at 4: the fifth is trained again
    train(config, tmp_path / "cut", resume=True, quiet=True)
    assert len(service.runs) == 3
    steps = [row["step"] for row in list(service.runs.values())[2] if "train/policy_loss" in row]
    assert sorted(set(steps)) == [64 * i for i in range(1, 7)]
    assert len(steps) <= 7  # the last that came through may come once more
