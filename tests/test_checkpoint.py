"""Checkpoints: bit-exact, undamaged or refused, safe against a kill at any moment."""

import hashlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import processes
import pytest

from sphere.storage import checkpoint
from sphere.storage.checkpoint import CheckpointError, checkpoints, load_latest, save, set_aside


class Inner(NamedTuple):
    count: Any
    rest: list


class State(eqx.Module):
    net: eqx.nn.MLP
    inner: Inner
    table: dict
    label: str = eqx.field(static=True, default="static")


def state(seed: int) -> State:
    key = jax.random.key(seed)
    numbers = np.random.default_rng(seed)
    net = eqx.nn.MLP(2, 3, 4, 2, key=key)
    optimiser = optax.adam(1e-3).init(eqx.filter(net, eqx.is_array))
    nan_with_payload = jnp.asarray(np.array([0x7FC00123, 0xFF800000, 0x80000000, seed], np.uint32).view(np.float32))
    table = {
        "bf16": jax.random.normal(key, (3, 2), jnp.bfloat16),
        "numpy bf16": numbers.normal(size=3).astype(ml_dtypes.bfloat16),
        "float8": jnp.arange(4).astype(jnp.float8_e5m2),
        "int4": jnp.array([-8, 7], jnp.int4),
        "bits": nan_with_payload,
        "bool": numbers.integers(0, 2, 5).astype(bool),
        "double": numbers.normal(size=(2, 3)),
        "big-endian": numbers.normal(size=3).astype(">f4"),
        "fortran": np.asfortranarray(numbers.normal(size=(2, 3))),
        "slice": numbers.normal(size=(4, 4))[::2, 1],
        "fields": np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
        "text": np.array(["a", "bcd"]),
        "complex": jnp.array([1 + 2j]),
        "0-d": jnp.float32(seed),
        "numpy 0-d": np.array(seed),
        "numpy scalar": np.float32(seed),
        "empty": jnp.zeros((0, 3)),
        "numpy empty": np.zeros((2, 0), np.int16),
        "empty bf16": jnp.zeros((0,), jnp.bfloat16),
        "keys": jax.random.split(key, (2, 3)),
        "no keys": jax.random.split(key, 2)[:0],
        "rbg": jax.random.key(seed, impl="rbg"),
        "raw key": jax.random.PRNGKey(seed),
        "weak": jnp.asarray(float(seed)),
        "file": jnp.ones(1),
        "manifest": jnp.zeros(1),
        "": jnp.ones(2),
        "ключ": jnp.ones(3),
    }
    python = [seed, 0.1 * seed, float("nan"), seed > 1, f"seed {seed}", 2**70, None, jax.nn.relu]
    return State(net, Inner(jnp.int32(seed), [optimiser, python, (np.uint64(2**63 + seed),)]), table)


def assert_same(got: Any, want: Any) -> None:
    """Same structure, same kinds of leaves, same bits."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        assert type(a) is type(b), path
        if isinstance(a, jax.Array):
            assert a.dtype == b.dtype, path
            if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            assert (a.weak_type, a.committed) == (b.weak_type, b.committed), path
        if isinstance(a, jax.Array | np.ndarray | np.generic):
            a, b = np.asarray(a), np.asarray(b)
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), path
            assert a.dtype.byteorder == b.dtype.byteorder, path
        else:
            assert a == b or a != a, path


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


def test_everything_comes_back_bit_for_bit(tmp_path):
    meta = {"positions": [{"metrics.jsonl": 12}], "task": "push", "best": 0.1, "done": False, "nothing": None}
    path = save(tmp_path, 123, state(1), meta)
    loaded = load_latest(tmp_path, state(2))
    assert_same(loaded.tree, state(1))
    assert (loaded.step, loaded.meta, loaded.path, loaded.notes) == (123, meta, path, [])


def test_a_restored_key_draws_the_same_numbers(tmp_path):
    save(tmp_path, 0, jax.random.key(7, impl="rbg"), {})
    key = load_latest(tmp_path, jax.random.key(0, impl="rbg")).tree
    np.testing.assert_array_equal(jax.random.normal(key, (5,)), jax.random.normal(jax.random.key(7, impl="rbg"), (5,)))


def test_restored_numpy_arrays_are_writable_and_arrays_stay_where_like_has_them(tmp_path):
    device = jax.devices()[0]
    save(tmp_path, 0, {"a": np.ones(3), "b": jnp.ones(3)}, {})
    tree = load_latest(tmp_path, {"a": np.zeros(3), "b": jax.device_put(jnp.zeros(3), device)}).tree
    tree["a"][0] = 5
    assert tree["b"].committed
    assert tree["b"].devices() == {device}


def test_a_file_is_a_plain_npz_and_the_same_state_gives_the_same_bytes(tmp_path):
    (tmp_path / "a").mkdir()
    path = save(tmp_path / "a", 1, {"w": jnp.arange(3), "deep": [np.ones(2)]}, {})
    (tmp_path / "b").mkdir()
    other = save(tmp_path / "b", 1, {"w": jnp.arange(3), "deep": [np.ones(2)]}, {})
    assert path.read_bytes() == other.read_bytes()
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive) == {"manifest", "tree/w", "tree/deep/0"}
        np.testing.assert_array_equal(archive["tree/w"], [0, 1, 2])


def test_the_last_two_are_kept_and_leftovers_removed(tmp_path):
    (tmp_path / "checkpoint-000000000009.npz.partial").write_bytes(b"half")
    (tmp_path / "checkpoint-best.npz").write_bytes(b"somebody else's")
    for step in (1, 2, 3, 10**12, 10**12 + 1):  # the last two have more digits than the padding
        save(tmp_path, step, {"a": np.full(3, step)}, {})
    assert [load.name for load in checkpoints(tmp_path)] == [
        "checkpoint-1000000000000.npz",
        "checkpoint-1000000000001.npz",
    ]
    assert len(list(tmp_path.iterdir())) == 3
    assert load_latest(tmp_path, {"a": np.zeros(3, int)}).step == 10**12 + 1


def test_every_flipped_byte_and_every_truncation_is_found_and_the_one_before_is_used(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    tree = {"a": jnp.arange(5, dtype=jnp.bfloat16), "b": [np.arange(3), jax.random.key(1), 4]}
    like = {"a": jnp.zeros(5, jnp.bfloat16), "b": [np.zeros(3, int), jax.random.key(0), 0]}
    before = save(tmp_path, 1, tree, {"n": 1})
    path = save(tmp_path, 2, jax.tree.map(lambda x: x, tree), {"n": 2})
    whole = path.read_bytes()
    random = np.random.default_rng(0)

    def damaged():
        for position in range(len(whole)):
            yield (whole[:position] + bytes([whole[position] ^ 1 << random.integers(8)]) + whole[position + 1 :])
        for length in random.permutation(len(whole))[:300]:
            yield whole[:length]
            yield whole[:length] + bytes(len(whole) - length)  # a power cut may leave zeros for data
        yield from (whole + b"x", whole + whole, whole[1:], b"", whole[:64], bytes(len(whole)))

    for number, content in enumerate(damaged()):
        if content == whole:
            continue
        path.write_bytes(content)
        with pytest.raises(checkpoint.Damaged):
            checkpoint._read(path)
        if number % 50 == 0:
            loaded = load_latest(tmp_path, like)
            assert (loaded.step, loaded.meta, loaded.path) == (1, {"n": 1}, before)
            assert_same(loaded.tree, tree)
            assert path.name in loaded.notes[0]

    path.write_bytes(whole)
    assert load_latest(tmp_path, like).step == 2


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


def test_a_tree_of_other_settings_is_named_leaf_by_leaf(tmp_path):
    save(
        tmp_path,
        1,
        {"w": jnp.zeros((2, 3)), "n": 1, "old": np.zeros(2), "k": jax.random.key(0), "s": "x"},
        {},
    )
    like = {
        "w": jnp.zeros((2, 4)),
        "n": 1.0,
        "new": np.zeros(2),
        "k": jax.random.key(0, impl="rbg"),
        "s": "y",
    }
    with pytest.raises(CheckpointError, match="other settings") as error:
        load_latest(tmp_path, like)
    assert str(error.value).splitlines()[1:] == [
        "  k: saved key<threefry2x32>[], wanted key<rbg>[]",
        "  n: saved int, wanted float",
        "  new: saved nothing, wanted float64[2]",
        "  old: saved float64[2], wanted nothing",
        "  w: saved float32[2, 3], wanted float32[2, 4]",
    ]
    many = {f"{i:03d}": 1 for i in range(50)}
    with pytest.raises(CheckpointError, match="and 35 more"):
        load_latest(tmp_path, many)


@pytest.mark.parametrize("leaf", [object(), np.array([object()]), b"bytes", 1j])
def test_what_cannot_be_stored_is_refused_by_name_and_nothing_is_written(tmp_path, leaf):
    with pytest.raises(TypeError, match="net/odd"):
        save(tmp_path, 1, {"net": {"odd": leaf}}, {})
    with pytest.raises(TypeError):
        save(tmp_path, 1, {"a": np.ones(2)}, {"odd": leaf})
    assert list(tmp_path.iterdir()) == []


def test_a_negative_step_is_refused_and_deletes_nothing(tmp_path):
    save(tmp_path, 1, {"a": np.ones(2)}, {})
    with pytest.raises(ValueError, match="step -1"):
        save(tmp_path, -1, {"a": np.ones(2)}, {})
    assert load_latest(tmp_path, {"a": np.ones(2)}).step == 1


def test_names_that_collide_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'a/b'"):
        save(tmp_path, 1, {"a": {"b": np.ones(1)}, "a/b": np.ones(1)}, {})


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


class Crash(BaseException):
    """The process is gone."""


def test_a_crash_at_any_system_call_leaves_a_checkpoint_to_load(tmp_path, monkeypatch):
    like = {"a": np.zeros(1000, int)}
    calls = 0

    def failing(real, last):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > last:  # and every later one too: no cleaning up after a crash
                raise Crash
            return real(*args, **kwargs)

        return call

    for step in (1, 2):
        save(tmp_path, step, {"a": np.full(1000, step)}, {})
    step, survived = 3, 0
    for last in range(20):
        calls = 0
        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "unlink"):
                patch.setattr(os, name, failing(getattr(os, name), last))
            try:
                save(tmp_path, step, {"a": np.full(1000, step)}, {})
                survived += 1
            except Crash:
                pass
        loaded = load_latest(tmp_path, like)
        assert loaded.notes == []
        assert loaded.step >= step - 1
        assert (loaded.tree["a"] == loaded.step).all()
        step = loaded.step + 1
        assert len(list(tmp_path.iterdir())) <= 3
    assert 10 < survived < 17  # four calls or five in a save: most of them were crashed in


SAVER = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from sphere.storage import checkpoint
directory = Path(sys.argv[1])
begun, begins = os.pipe()
for line in sys.stdin:
    seconds, latest = line.split()
    child = os.fork()  # of a process in which jax is imported but was never started
    if child == 0:
        step = int(latest)
        os.write(begins, b".")
        while True:
            step += 1
            checkpoint.save(directory, step, {"a": np.full(100_000, step), "n": step}, {"step": step})
    os.read(begun, 1)
    time.sleep(float(seconds))
    os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_kill_9_at_random_moments_never_costs_more_than_the_save_in_progress(tmp_path):
    like = {"a": np.zeros(100_000, int), "n": 0}
    random = np.random.default_rng()
    save(tmp_path, 0, like, {"step": 0})
    latest = halves = kills = 0
    command = [sys.executable, "-W", "ignore", "-c", SAVER, str(tmp_path)]
    with processes.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as saver:
        assert saver.stdin is not None
        assert saver.stdout is not None
        # On a busy machine it may take more of them until one has hit a save.
        while kills < 25 or (kills < 1000 and not (latest and halves)):
            kills += 1
            print(random.uniform(0.002, 0.06), latest, file=saver.stdin, flush=True)
            assert int(saver.stdout.readline()) == -signal.SIGKILL

            loaded = load_latest(tmp_path, like)
            assert loaded.notes == []  # what bears a checkpoint's name is whole
            assert loaded.step >= latest
            assert loaded.meta == {"step": loaded.step}
            assert loaded.tree["n"] == loaded.step
            assert (loaded.tree["a"] == loaded.step).all()
            latest = loaded.step
            partial = list(tmp_path.glob("*.partial"))
            halves += len(partial)
            # Two and a half-written one, or three: the new one is on disk and the oldest not yet deleted.
            assert len(list(tmp_path.iterdir())) <= 3
        saver.stdin.close()
    assert latest > 0
    assert halves > 0
    save(tmp_path, latest + 1, like, {})
    assert len(list(tmp_path.iterdir())) == 2
