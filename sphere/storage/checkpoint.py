"""Checkpoints: one .npz file that is complete and undamaged, or is not used.

A checkpoint is an ordinary uncompressed .npz: each array of a pytree under `tree/` and its path
(`tree/actor/layers/0/weight`), and `manifest`, JSON bytes with the step, the caller's `meta`, what every leaf
is, and the values of Python scalars. `files.write_arrays` writes it and adds a checksum at its end.

The checksum finds damage, not forgery. But nothing in a file is ever unpickled, and what is restored must
have the names, shapes and dtypes of the caller's tree: a forged file can hold wrong numbers, not run code.

One process writes to a directory; `files.lock_directory` sees to that.
"""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sphere.storage.files import MOST_CHECKPOINT, read_arrays, write_arrays

FORMAT = 1
ASIDE = ".damaged"
ARRAYS = (jax.Array, np.ndarray, np.generic)
SCALARS = (bool, int, float, str)

log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that cannot be used."""


class Damaged(CheckpointError):
    """Not what was once written: the one before may do."""


class Checkpoint(NamedTuple):
    """What `load` and `load_latest` hand back."""

    step: int
    tree: Any
    meta: dict[str, Any]
    path: Path
    notes: list[str]  # why newer files were passed over


def save(directory: Path, step: int, tree: Any, meta: dict[str, Any]) -> Path:
    """Write `tree` and `meta` as the checkpoint of `step`; when it is on disk, keep it and the one before.

    Arrays (numpy, jax, typed keys) and Python scalars in the tree are stored. Functions are not; at loading
    they come from `like`. `meta` is anything JSON can hold: string keys, lists and not tuples.
    """
    if step < 0:
        raise ValueError(f"got step {step}; a checkpoint's step counts from 0, and names its file")
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is gone; step {step} was not saved. Put the directory back and resume")
    before = [path for path in checkpoints(directory) if _step(path) < step]
    # What killed processes left behind, now and not only after: it may fill the disk.
    for leftover in [*directory.glob("checkpoint-*.npz.partial"), *before[:-2]]:
        _remove(leftover)

    leaves = _named_leaves(tree)
    manifest = {
        "format": FORMAT,
        "step": step,
        "meta": meta,
        "leaves": {name: _describe(name, leaf) for name, leaf in leaves.items()},
        "scalars": {name: leaf for name, leaf in leaves.items() if type(leaf) in SCALARS},
    }
    arrays = {name: _key_data(leaf) for name, leaf in leaves.items() if isinstance(leaf, ARRAYS)}
    arrays = jax.device_get(arrays)  # one transfer for the whole tree
    members = {"manifest": np.frombuffer(json.dumps(manifest).encode(), np.uint8)}
    members |= {f"tree/{name}": _storable(np.asarray(array)) for name, array in arrays.items()}

    path = directory / f"checkpoint-{step:012d}.npz"
    write_arrays(path, members)

    # A file of a later step is of a future that did not happen: it was damaged, the run resumed before it.
    for other in [*checkpoints(directory), *directory.glob(f"checkpoint-*.npz{ASIDE}")]:
        if other not in (path, *before[-1:]):
            _remove(other)
    return path


def _remove(path: Path) -> None:
    """A file; a directory of such a name is somebody else's."""
    if not path.is_dir():
        path.unlink()


def set_aside(directory: Path, step: int) -> None:
    """Rename files of later steps: they are damaged and would push out good ones. The next `save` removes them."""
    for path in checkpoints(directory):
        if _step(path) > step:
            path.rename(path.with_name(path.name + ASIDE))


def load_latest(
    directory: Path, like: Any = None, *, like_for: Callable[[dict[str, Any]], Any] | None = None
) -> Checkpoint:
    """The newest undamaged checkpoint; damaged ones on the way are warned about and noted.

    `like` is a tree as a fresh start builds it; `like_for` makes it from the file's `meta`, where sizes depend on that.
    A checkpoint that does not fit it is an error and is not passed over: the settings are wrong, and an older file
    would not fit either.
    """
    found, notes = _newest(directory, lambda path: load(path, like, like_for=like_for))
    if found is not None:
        return found._replace(notes=notes)
    if not notes:
        raise FileNotFoundError(f"no checkpoint-*.npz in {directory}: nothing saved yet, start from the beginning")
    raise CheckpointError("\n".join([f"no usable checkpoint in {directory}; start again elsewhere", *notes]))


def _newest(directory: Path, read: Callable[[Path], Any]) -> tuple[Any, list[str]]:
    """The first that can be read, newest first (None: none), and why those before it could not."""
    notes: list[str] = []
    for path in reversed(checkpoints(directory)):
        try:
            return read(path), notes
        except Damaged as error:
            notes.append(str(error))
            log.warning("%s; trying the checkpoint before it", error)
    return None, notes


def load(path: Path, like: Any = None, *, like_for: Callable[[dict[str, Any]], Any] | None = None) -> Checkpoint:
    """One checkpoint in the form of `like`: jax arrays where it has them, on the same devices, else numpy."""
    manifest, arrays = _read(path)
    if like_for is not None:
        like = like_for(manifest["meta"])
    leaves = _named_leaves(like)
    saved, wanted = manifest["leaves"], {name: _describe(name, leaf) for name, leaf in leaves.items()}
    if saved != wanted:
        differences = [
            f"  {name}: saved {saved.get(name, 'nothing')}, wanted {wanted.get(name, 'nothing')}"
            for name in sorted(saved.keys() | wanted.keys())
            if saved.get(name) != wanted.get(name)
        ]
        more = [f"  and {len(differences) - 20} more"] if len(differences) > 20 else []
        problem = f"{path} does not fit this run; was it saved with other settings? Resume with those it began with"
        raise CheckpointError("\n".join([problem, *differences[:20], *more]))
    try:
        restored = [_restore(name, leaf, manifest["scalars"], arrays) for name, leaf in leaves.items()]
    except (KeyError, ValueError) as error:
        raise Damaged(f"{path} contradicts its own manifest: {error!r}") from error
    tree = jax.tree.unflatten(jax.tree.structure(like), restored)
    return Checkpoint(manifest["step"], tree, manifest["meta"], path, notes=[])


class CheckpointArrays(NamedTuple):
    """All arrays of a checkpoint by name, where there is no tree to load them into."""

    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]
    path: Path

    def part(self, name: str) -> dict[str, Any]:
        """What is saved under a name, by the next name, and below that by all that is left of it."""
        found: dict[str, Any] = {}
        for key, array in self.arrays.items():
            if key.startswith(f"tree/{name}/"):
                first, _, rest = key.removeprefix(f"tree/{name}/").partition("/")
                if rest:
                    found.setdefault(first, {})[rest] = array
                else:
                    found[first] = array
        return found


def read_latest(directory: Path) -> CheckpointArrays:
    """The arrays of the newest undamaged checkpoint."""

    def contents(path: Path) -> CheckpointArrays:
        manifest, arrays = _read(path)
        return CheckpointArrays(arrays, manifest["meta"], path)

    if (found := _newest(directory, contents)[0]) is not None:
        return found
    raise FileNotFoundError(
        f"no usable checkpoint in {directory}: copies made by sphere export have none; name the fleet's own directory"
    )


def select(saved: CheckpointArrays, name: str, like: Any) -> Any:
    """What is saved under a name, in the form of `like`: arrays, or only their shapes."""
    leaves = _named_leaves(like)
    found = []
    for key, leaf in leaves.items():
        array = saved.arrays.get(f"tree/{name}/{key}")
        if array is None or (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            got = "nothing" if array is None else _describe(key, array)
            raise CheckpointError(
                f"{saved.path} does not fit its settings: {key} is {got}, wanted {leaf.dtype}{list(leaf.shape)}"
            )
        found.append(array)
    return jax.tree.unflatten(jax.tree.structure(like), found)


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoint files of a directory, damaged or not, by step."""
    return sorted((path for path in directory.glob("checkpoint-*.npz") if _step(path) >= 0), key=_step)


def _step(path: Path) -> int:
    match = re.fullmatch(r"checkpoint-(\d+)\.npz", path.name)
    return int(match[1]) if match else -1


def _named_leaves(tree: Any) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in leaves:
            raise ValueError(f"two leaves of the tree are called {name!r}; is there a dictionary key with a '/'?")
        leaves[name] = leaf
    return leaves


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _describe(name: str, leaf: Any) -> str:
    """A leaf in the manifest and in errors: `float32[256,10]`, `key<threefry2x32>[]`, `int`, `function`."""
    if type(leaf) in SCALARS:
        return type(leaf).__name__
    if _is_key(leaf):
        return f"key<{jax.random.key_impl(leaf)}>{list(leaf.shape)}"
    if isinstance(leaf, ARRAYS) and not leaf.dtype.hasobject:
        return f"{leaf.dtype}{list(leaf.shape)}"
    if callable(leaf):
        return "function"
    raise TypeError(
        f"leaf {name!r} is {leaf!r:.80} ({type(leaf).__name__}), which a checkpoint cannot hold; "
        "make it an array, a Python scalar or a static field"
    )


def _storable(array: np.ndarray) -> np.ndarray:
    """.npy knows numpy's own dtypes; bfloat16 and its kin (isbuiltin 2) go in as unsigned integers."""
    return array.view(f"u{array.itemsize}") if array.dtype.isbuiltin == 2 else array


def _restore(name: str, like: Any, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    if type(like) in SCALARS:
        return scalars[name]
    if not isinstance(like, ARRAYS):
        return like
    data = _key_data(like)
    array = arrays[f"tree/{name}"]
    if data.dtype.isbuiltin == 2:
        array = array.view(data.dtype)
    if (array.dtype, array.shape) != (data.dtype, data.shape):
        raise ValueError(f"{name} is {_describe(name, array)}, not {_describe(name, data)}")
    if isinstance(like, np.generic):
        return array[()]
    if isinstance(like, np.ndarray):
        return array
    # Where it was uncommitted or weakly typed it has to be so again, or it compiles and promotes differently.
    restored = jax.device_put(array, data.sharding if data.committed else None)
    if data.weak_type:
        restored = data.at[...].set(restored)
    return jax.random.wrap_key_data(restored, impl=jax.random.key_impl(like)) if _is_key(like) else restored


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        arrays = read_arrays(path, MOST_CHECKPOINT)
        manifest = json.loads(arrays["manifest"].tobytes())
        if manifest["format"] == FORMAT:
            parts = {"step": int, "meta": dict, "leaves": dict, "scalars": dict}
            return {name: kind(manifest[name]) for name, kind in parts.items()}, arrays
    except Exception as error:  # whatever a strange file makes the parsers raise, the one before may be whole
        raise Damaged(f"{path} is damaged or half-written: {error}") from error
    raise CheckpointError(f"{path} has format {manifest['format']}, wanted {FORMAT}; use the program that wrote it")
