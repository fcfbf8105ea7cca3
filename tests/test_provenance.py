"""What a run ran on: written down at its beginning, and again when it goes on with something else."""

import json
import subprocess

import pytest
from processes import PATIENCE

from sphere.storage import provenance, run_directory

A = {"python": "3.11", "git": {"commit": "a", "dirty": False}, "device": {"kind": "cpu"}, "cpus": 2}
B = A | {"git": {"commit": "b", "dirty": False}}
C = B | {"device": {"kind": "H200"}, "cpus": 16}


def test_environment_names_versions_commit_and_device(tmp_path):
    environment = provenance.describe()
    run_directory.write_json(tmp_path / "environment.json", environment)
    assert json.loads((tmp_path / "environment.json").read_text()) == environment
    assert {"jax", "jaxlib", "numpy"} <= set(environment["versions"])  # and sphere-rl, where it is installed
    assert environment["device"]["count"] >= 1
    assert environment["cpus"] >= 1


def test_a_copy_says_which_commit_it_was_made_from(tmp_path):
    """Of the copy that is asked for, not of the code that asks."""
    assert provenance.commit(tmp_path) is None
    (tmp_path / "sphere").mkdir()
    (tmp_path / "sphere" / "commit.json").write_text(json.dumps(A["git"]))
    assert provenance.commit(tmp_path) == A["git"]
    (tmp_path / "sphere" / "commit.json").write_text("{")
    assert provenance.commit(tmp_path) is None


def test_git_is_none_outside_a_checkout_and_inside_somebody_elses(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "GIT_SECONDS", PATIENCE)
    git = ["git", "-C", str(tmp_path)]
    assert provenance._git(tmp_path) is None
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").touch()
    subprocess.run([*git, "add", "file"], check=True)
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run([*git, *identity, "commit", "-qm", "one"], check=True)
    (tmp_path / "inner").mkdir()
    clean = provenance.commit(tmp_path.resolve())
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    assert provenance._git(tmp_path.resolve() / "inner") is None
    (tmp_path / "file").write_text("changed")
    assert provenance._git(tmp_path.resolve())["dirty"] is True


def test_an_environment_that_stays_leaves_no_trace():
    assert provenance.amended(A, 100, A) == A


def test_what_changes_is_noted_with_its_step_and_nothing_else():
    once = provenance.amended(A, 100, B)
    assert once == A | {"resumed": {"100": {"git": B["git"]}}}
    assert provenance.amended(once, 200, B) == once
    twice = provenance.amended(once, 300, C)
    assert twice["resumed"] == {"100": {"git": B["git"]}, "300": {"device": C["device"], "cpus": 16}}
    back = provenance.amended(twice, 400, A)
    assert back["resumed"]["400"] == {"git": A["git"], "device": A["device"], "cpus": 2}
    assert provenance.devices(back) == ["cpu", "H200"]


@pytest.mark.parametrize("step", [100, 150])
def test_going_back_behind_a_resume_forgets_it(step):
    """The checkpoint after 300 was damaged, say: what was recorded from there on is written once more."""
    later = provenance.amended(provenance.amended(A, 100, B), 300, C)
    again = provenance.amended(later, step, C)
    assert "300" not in again["resumed"]
    assert provenance.amended(later, 0, C) == C


def test_a_lost_environment_is_replaced_by_todays(tmp_path):
    run_directory.write_json(tmp_path / "environment.json", A)
    assert provenance.resume(tmp_path, 100, A) == []
    assert provenance.resume(tmp_path, 100, C) == ["git", "device", "cpus"]
    assert json.loads((tmp_path / "environment.json").read_text()) == provenance.amended(A, 100, C)
    (tmp_path / "environment.json").write_text("{")
    assert provenance.resume(tmp_path, 100, C) == list(C)
    assert json.loads((tmp_path / "environment.json").read_text())["resumed"]["100"] == C
