"""A fleet in training knows its replay memory: what is removed or replaced ends it, what was changed is not resumed."""

import shutil

import fleets
import pytest
from fleets import OFF_POLICY, changed
from test_running_fleet import ONE, RUN, after

from sphere.cli.main import main
from sphere.storage import files
from sphere.training.loop import train

REMEMBERING = changed(
    ONE,
    normalise_observations=False,
    learner=changed(
        OFF_POLICY.learner, buffer_size=100, learning_starts=16, critic=OFF_POLICY.learner.actor, methods=()
    ),
)
MEMORY = f"{RUN}/replay-000000.bin"


@pytest.fixture(scope="module")
def remembered(tmp_path_factory):
    directory = tmp_path_factory.mktemp("remembered") / "fleet"
    train(REMEMBERING, directory, quiet=True)
    return directory


@pytest.mark.parametrize("how", ["remove", "replace", "directory"])
def test_a_memory_that_is_removed_or_replaced_ends_the_training(how, tmp_path):
    place = tmp_path / "fleet"
    memory = place / MEMORY

    def act():
        if how == "directory":
            shutil.rmtree(place)
            return
        data = memory.read_bytes()
        memory.unlink()
        if how == "replace":
            memory.write_bytes(data)

    patch = after(3, act)
    try:
        with pytest.raises(files.Replaced, match=r"replay-000000\.bin was|fleet/lock was"):
            train(REMEMBERING, place, quiet=True)
    finally:
        patch.undo()
    assert place.exists() == (how != "directory")
    assert memory.exists() == (how == "replace")


def test_resume_refuses_a_memory_that_was_changed_and_takes_it_when_it_is_back(remembered, tmp_path, capsys):
    """The last bit of a row that the checkpoint remembers; wherever the cut is, the end is that of an undisturbed
    fleet."""
    fleets.write(REMEMBERING, tmp_path / "fleet")
    fleets.cut_after(5, REMEMBERING, tmp_path / "fleet")
    memory = tmp_path / "fleet" / MEMORY
    whole = memory.read_bytes()
    memory.write_bytes(whole[:10_000] + bytes([whole[10_000] ^ 1]) + whole[10_001:])
    assert main(["resume", str(tmp_path / "fleet")]) == 1
    assert f"{memory} was changed after the checkpoint was saved" in capsys.readouterr().err
    memory.write_bytes(whole)
    assert main(["resume", str(tmp_path / "fleet"), "--quiet"]) == 0
    assert fleets.numbers(tmp_path / "fleet") == fleets.numbers(remembered)
    assert memory.read_bytes() == (remembered / MEMORY).read_bytes()
