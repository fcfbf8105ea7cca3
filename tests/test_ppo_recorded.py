"""PPO against recorded updates of the released code, and what is said of files that are none."""

import numpy as np
import pytest

from sphere.cli.verify import GOLDEN
from sphere.cli.verify_update import verify_update

RECORDED = GOLDEN / "ppo_update.npz"


def test_every_recorded_update_is_reproduced():
    found = verify_update(RECORDED)
    assert [f"{d.case}/{d.name}: {d.found:.2g} > {d.target:.2g}" for d in found if not d.passed] == []
    with np.load(RECORDED) as file:
        results = {key for key in file.files if "_after/" in key or key.endswith(("_loss", "mean_before"))}
        results -= {key for key in file.files if key.startswith("none/") and key.endswith("sphere_loss")}
    assert results == {f"{d.case}/{d.name}" for d in found}  # nothing recorded is passed over


def test_a_single_wrong_parameter_is_found(tmp_path):
    with np.load(RECORDED) as file:
        arrays = {key: file[key] for key in file.files if key.startswith("none/")}
    name = "actor_after/experts/layer2/kernel"
    arrays[f"none/{name}"] = arrays[f"none/{name}"].copy()
    arrays[f"none/{name}"][1, 2, 3] += 1e-4
    np.savez(tmp_path / "tampered.npz", **arrays)
    (wrong,) = [d for d in verify_update(tmp_path / "tampered.npz") if not d.passed]
    assert (wrong.case, wrong.name) == ("none", name)
    assert wrong.found == pytest.approx(1e-4, rel=0.01)


def truncated(path):
    np.savez(path, **{"none/config": np.zeros(9), "none/other": np.zeros(1000)})
    path.write_bytes(path.read_bytes()[:-200])


def damaged(path):
    np.savez_compressed(path, **{"none/config": np.random.default_rng(0).normal(size=900)})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def single_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda path: None, "is not a readable .npz"),
        (lambda path: path.write_bytes(b""), "is not a readable .npz"),
        (lambda path: path.write_text("not numbers"), "is not a readable .npz"),
        (truncated, "is not a readable .npz"),
        (damaged, "is not a readable .npz"),
        (single_array, "is not a readable .npz"),
        (lambda path: np.savez(path, a=np.zeros(3)), "holds the cases none, wanted some of grad, loss, none"),
        (lambda path: np.savez(path, **{"x/config": np.zeros(9)}), "wanted some of grad, loss, none"),
        (
            lambda path: np.savez(path, **{"none/config": np.array([5, 2, 8, 4, 3, 16, 0, 0, 1])}),
            "lacks the array",
        ),
    ],
    ids=["absent", "empty", "text", "truncated", "damaged", "npy", "foreign", "strange case", "incomplete"],
)
def test_other_files_are_answered_with_a_sentence(write, sentence, tmp_path):
    path = tmp_path / "updates.npz"
    write(path)
    with pytest.raises(ValueError, match=sentence):
        verify_update(path)
