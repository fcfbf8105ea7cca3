"""Runs copied for publication: nothing that a report shows is lost, and checkpoints stay behind."""

import shutil
import subprocess
from pathlib import Path

import pytest
from fleets import TINY, changed

from sphere.report.load import load
from sphere.storage import files, run_directory
from sphere.storage.export import export, thinned
from sphere.training.loop import train


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    directory = tmp_path_factory.mktemp("export") / "fleet"
    train(changed(TINY, seeds=(0,), workers=0), directory, quiet=True)
    return directory


def test_a_report_of_the_copy_is_a_report_of_the_run(fleet, tmp_path):
    written = export([fleet], tmp_path / "results", every=4)
    assert [path.relative_to(tmp_path / "results").as_posix() for path in written] == [
        "fleet/rho0-seed0",
        "fleet/rho0.1-seed0",
    ]
    for one, other in zip(load([fleet]).runs, load([tmp_path / "results"]).runs, strict=True):
        assert one.steps == other.steps
        assert one.curve.values.keys() == other.curve.values.keys()
        for name in ("step", "task", "kind"):
            assert (getattr(one.episodes, name) == getattr(other.episodes, name)).all()
        for name, values in one.episodes.columns.items():
            assert (values == other.episodes.columns[name]).all()
    names = {path.name for path in (tmp_path / "results").rglob("*") if path.is_file()}
    assert names == {"config.json", "environment.json", "metrics.jsonl", "episodes.jsonl", "SHA256SUMS"}


def test_metrics_are_thinned_and_evaluations_are_not(fleet, tmp_path):
    (copy, _) = export([fleet], tmp_path, every=4)
    before, after = run_directory.read_events(fleet / "rho0-seed0"), run_directory.read_events(copy)

    def split(events):
        return [[e for e in events if any("train/" in name for name in e) == training] for training in (True, False)]

    training, rest = split(before)
    assert split(after) == [training[::4], rest]


@pytest.mark.parametrize("metric", ["train/policy_loss", "train/actor_loss", "train/loss"])
def test_metrics_of_every_learner_are_thinned(metric):
    line = b'{"step": %d, "' + metric.encode() + b'": 0.5}\n'
    lines = [line % step for step in range(8)] + [b'{"step": 8, "evaluation/x": 1.0}\n']
    assert list(thinned(lines, 4)) == [lines[0], lines[4], lines[8]]


def test_an_iteration_in_which_an_episode_ended_is_kept_rather_than_the_first_of_them():
    """Episodes of 500 steps end in one of ten iterations of 50: the first of every ten would be the other nine."""
    lines = [b'{"step": %d, "train/loss": 0.5, "train/length": "nan"}\n' % step for step in range(8)]
    lines[2] = lines[3] = b'{"step": 2, "train/loss": 0.5, "train/length": 500.0}\n'
    evaluation = b'{"step": 2, "evaluation/x": 1.0}\n'
    lines.insert(2, evaluation)
    assert list(thinned(lines, 4)) == [evaluation, lines[3], lines[5]]


def test_a_line_that_a_kill_cut_off_is_left_out(fleet, tmp_path):
    run = tmp_path / "fleet" / "rho0-seed0"
    run.mkdir(parents=True)
    for name in ("config.json", "environment.json", "episodes.jsonl", "metrics.jsonl"):
        (run / name).write_bytes((fleet / "rho0-seed0" / name).read_bytes())
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 12')
    (copy,) = export([tmp_path / "fleet"], tmp_path / "out", every=1)
    assert run_directory.read_events(copy) == run_directory.read_events(fleet / "rho0-seed0")


def test_what_was_exported_is_not_exported_again(fleet, tmp_path):
    shutil.copytree(fleet, tmp_path / "runs" / "fleet")
    for _ in range(2):
        assert len(export([tmp_path / "runs"], tmp_path / "runs" / "results")) == 2


def test_checksums_of_a_copy_are_those_of_its_files(fleet, tmp_path):
    for copy in export([fleet], tmp_path / "results"):
        subprocess.run(["sha256sum", "--strict", "--check", "SHA256SUMS"], cwd=copy, check=True)


def test_only_what_the_reader_accepts_is_copied(fleet, tmp_path):
    """A success of 2 breaks a rule; a digit more in a diagnostic breaks the checksum in the checkpoint."""
    runs = shutil.copytree(fleet, tmp_path / "runs")
    for name, before, now in (
        ("rho0-seed0/episodes.jsonl", '"success_once": false', '"success_once": 2'),
        ("rho0.1-seed0/metrics.jsonl", '"heldout/ntk_rank": ', '"heldout/ntk_rank": 1'),
    ):
        text = (runs / name).read_text()
        assert before in text
        notes: list[str] = []
        (runs / name).write_text(text.replace(before, now, 1))
        (written,) = export([runs], tmp_path / "out", notes=notes)
        assert written.name != name.split("/")[0]
        assert f"{runs / name.split('/')[0]} was left out" in notes[0]
        assert not (tmp_path / "out" / "runs" / name).exists()
        (runs / name).write_text(text)
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "episodes.jsonl", ""])
def test_a_run_that_lacks_a_file_or_is_gone_is_named(name, fleet, tmp_path):
    runs = shutil.copytree(fleet, tmp_path / "runs")
    if name:
        (runs / "rho0-seed0" / name).unlink()
    else:
        shutil.rmtree(runs / "rho0-seed0")
    notes: list[str] = []
    (written,) = export([runs], tmp_path / "out", notes=notes)
    assert written.name == "rho0.1-seed0"
    (note,) = notes
    assert f"{runs / 'rho0-seed0'} {f'was left out: it has no {name}' if name else 'is gone'}" in note


def test_nothing_is_copied_through_a_link(fleet, tmp_path):
    (tmp_path / "secret").write_text("mine")
    runs = shutil.copytree(fleet, tmp_path / "runs")
    (runs / "rho0-seed0" / "environment.json").unlink()
    (runs / "rho0-seed0" / "environment.json").symlink_to(tmp_path / "secret")
    notes: list[str] = []
    (written,) = export([runs], tmp_path / "out", notes=notes)
    assert written.name == "rho0.1-seed0"
    assert "is a link to" in notes[0]
    # where it is written to
    (tmp_path / "other" / "fleet").mkdir(parents=True)
    (tmp_path / "other" / "fleet" / "rho0-seed0").symlink_to(tmp_path / "out")
    with pytest.raises(ValueError, match="is a link"):
        export([fleet], tmp_path / "other")
    target = tmp_path / "again" / "fleet" / "rho0-seed0"
    target.mkdir(parents=True)
    for name in ("config.json", "config.json.partial"):
        (target / name).symlink_to(tmp_path / "secret")
    export([fleet], tmp_path / "again")
    assert (tmp_path / "secret").read_text() == "mine"
    assert not (target / "config.json").is_symlink()


def test_a_link_that_comes_at_the_last_moment_is_not_written_through(tmp_path, monkeypatch):
    """Between the removal of an old file and the opening of the new one."""
    secret = tmp_path / "secret"
    secret.write_text("mine")
    unlink = Path.unlink

    def linked(path, missing_ok=False):
        unlink(path, missing_ok=missing_ok)
        path.symlink_to(secret)

    monkeypatch.setattr(Path, "unlink", linked)
    with pytest.raises(FileExistsError), files.atomic_write(tmp_path / "config.json") as file:
        file.write(b"theirs")
    assert secret.read_text() == "mine"


def test_a_folder_of_somebody_else_is_no_run(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"nothing was exported: .*theirs was left out: it has no metrics.jsonl"):
        export([tmp_path / "theirs"], tmp_path / "out")


def test_two_runs_of_one_name_are_refused_before_anything_is_written(fleet, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(fleet, tmp_path / name / "first")
    with pytest.raises(ValueError, match=r"a/first/.* and .*b/first/.* would both become"):
        export([tmp_path / "a" / "first", tmp_path / "b" / "first"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("every", "where", "sentence"), [(0, "out", "want 1"), (1, ".", "choose another"), (1, "none", "no run in")]
)
def test_mistakes_are_answered_by_sentences(fleet, tmp_path, every, where, sentence):
    source = tmp_path if where == "none" else fleet
    out = fleet.parent if where == "." else tmp_path / "out"
    with pytest.raises(ValueError, match=sentence):
        export([source], out, every)
