"""Checkpoints: bit-exact, the last two, undamaged or refused."""

import logging
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from sphere.storage import checkpoint
from sphere.storage.checkpoint import CheckpointError, checkpoints, load_latest, save


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
