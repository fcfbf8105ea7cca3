"""Checkpoints that are damaged, forged or of other settings: found, said, and the one before is used."""

import hashlib
import json
import os
import pickle
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from sphere.storage.checkpoint import CheckpointError, checkpoints, load_latest, save, set_aside


def forge(path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """A file with a correct checksum and any content."""
    with path.open("w+b") as file:
        with zipfile.ZipFile(file, "w", compression) as archive:
            archive.comment = b"0" * 64
            for name, data in members.items():
                archive.writestr(name, data)
        length = file.seek(0, os.SEEK_END) - 64
        file.seek(0)
        digest = hashlib.sha256(file.read(length)).hexdigest().encode()  # leaves the file at the place for it
        file.write(digest)


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    import io

    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def manifest(**changes) -> bytes:
    content = {"format": 1, "step": 2, "meta": {}, "leaves": {"a": "float32[2]"}, "scalars": {}}
    return npy(np.frombuffer(json.dumps(content | changes).encode(), np.uint8))


def test_falling_back_is_said_and_nothing_to_fall_back_on_is_an_error(tmp_path, caplog):
    tree = {"a": np.arange(3)}
    with pytest.raises(FileNotFoundError, match="nothing saved yet"):
        load_latest(tmp_path, tree)
    for step in (1, 2):
        save(tmp_path, step, tree, {})
    first, second = checkpoints(tmp_path)
    second.write_bytes(second.read_bytes()[:100])
    assert load_latest(tmp_path, tree).step == 1
    assert "000002.npz is damaged" in caplog.text
    first.unlink()
    first.mkdir()  # not even a file
    with pytest.raises(CheckpointError, match=r"(?s)no usable checkpoint.*000002\.npz.*000001\.npz"):
        load_latest(tmp_path, tree)


def test_after_a_fall_back_the_damaged_future_does_not_push_out_the_good_past(tmp_path, caplog):
    for step in (100, 200):
        save(tmp_path, step, {"a": np.full(2, step)}, {})
    checkpoints(tmp_path)[1].write_bytes(b"damaged")
    assert load_latest(tmp_path, {"a": np.zeros(2, int)}).step == 100
    save(tmp_path, 150, {"a": np.full(2, 150)}, {})
    assert [path.name[-7:-4] for path in checkpoints(tmp_path)] == ["100", "150"]


def test_a_damaged_one_that_was_set_aside_does_not_push_out_the_good_one_either(tmp_path, caplog):
    """Saved at a stop, say, so that the next regular one comes after it."""
    for step in (10, 17):
        save(tmp_path, step, {"a": np.full(2, step)}, {})
    checkpoints(tmp_path)[1].write_bytes(b"damaged")
    found = load_latest(tmp_path, {"a": np.zeros(2, int)})
    set_aside(tmp_path, found.step)
    assert [path.name[-6:-4] for path in checkpoints(tmp_path)] == ["10"]
    assert (tmp_path / "checkpoint-000000000017.npz.damaged").read_bytes() == b"damaged"  # as long as nothing is saved
    save(tmp_path, 20, {"a": np.full(2, 20)}, {})
    assert sorted(path.name[-6:] for path in tmp_path.iterdir()) == ["10.npz", "20.npz"]


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pickles_are_refused_even_with_a_correct_checksum(tmp_path):
    like = {"a": jnp.zeros(2)}
    directory = tmp_path / "run"
    directory.mkdir()
    path = directory / "checkpoint-000000000002.npz"
    objects = np.array([Bomb(tmp_path / "exploded"), 1], object)
    forge(path, {"manifest.npy": manifest(), "tree/a.npy": npy(objects, allow_pickle=True)})
    with pytest.raises(CheckpointError, match="allow_pickle"):
        load_latest(directory, like)
    forge(path, {"manifest.npy": pickle.dumps(Bomb(tmp_path / "exploded"))})
    with pytest.raises(CheckpointError):
        load_latest(directory, like)
    assert not (tmp_path / "exploded").exists()


def test_strange_files_with_a_correct_checksum_are_damaged_not_a_crash(tmp_path):
    like = {"a": jnp.zeros(2)}
    path = tmp_path / "checkpoint-000000000002.npz"
    good = npy(np.zeros(2, np.float32))
    huge = good.replace(b"(2,), }", b"(1000000000000000,), }")  # 4 PB by its header
    strange: list[dict[str, bytes]] = [
        {},
        {"manifest.npy": manifest()},
        {"tree/a.npy": good},
        {"manifest.npy": b"", "tree/a.npy": good},
        {"manifest.npy": npy(np.frombuffer(b"[1", np.uint8)), "tree/a.npy": good},
        {"manifest.npy": npy(np.frombuffer(b"[1]", np.uint8)), "tree/a.npy": good},
        {"manifest.npy": npy(np.frombuffer(b"{}", np.uint8)), "tree/a.npy": good},
        {"manifest.npy": manifest(leaves=[1]), "tree/a.npy": good},
        {"manifest.npy": manifest(), "tree/a.npy": npy(np.zeros(2))},
        {"manifest.npy": manifest(), "tree/a.npy": npy(np.zeros(3, np.float32))},
        {"manifest.npy": manifest(), "tree/a.npy": huge},
        {"manifest.npy": manifest(), "tree/a.npy": good[:-1]},
        {"manifest.npy": manifest(), "/tree/a.npy": good},
    ]
    for members in strange:
        forge(path, members)
        with pytest.raises(CheckpointError, match="no usable checkpoint"):
            load_latest(tmp_path, like)
    forge(path, {"manifest.npy": manifest(), "tree/a.npy": npy(np.zeros(10**6))}, zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="compressed"):
        load_latest(tmp_path, like)
    forge(path, {"manifest.npy": manifest(format=2), "tree/a.npy": good})
    with pytest.raises(CheckpointError, match="format 2"):
        load_latest(tmp_path, like)
    forge(path, {"manifest.npy": manifest(), "tree/a.npy": good})
    assert load_latest(tmp_path, like).step == 2
