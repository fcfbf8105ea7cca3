"""CIFAR-100: 50,000 training and 10,000 test images of 32 x 32 pixels, 100 classes.

`install` reads the official archive (the two pickles in it by their published md5, before anything in them is run)
and keeps plain arrays. Beside a checkout the lossless shards in shared/data/cifar100 serve as well.
"""

import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sphere.data.labelled import Labelled, Split, beside_checkout, missing, root, write_whole

ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
FOLDER = "cifar-100-python"
MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
SIZE = 200_000_000
"""Bytes that a part of the archive has at most."""
MEAN, DEVIATION = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
"""Of each channel of the training images."""


class CIFAR100:
    classes: ClassVar[int] = 100

    @staticmethod
    def load(settings: Any) -> Labelled:
        return _load(file(), beside_checkout() / "cifar100" / "shards")


def file() -> Path:
    return root() / "cifar100" / "cifar100.npz"


@cache
def _load(installed: Path, shards: Path) -> Labelled:
    if installed.is_file():
        try:
            with installed.open("rb") as raw, np.load(raw, allow_pickle=False) as found:
                parts = [Split(found[f"{split}_obs"], found[f"{split}_label"]) for split in ("train", "test")]
                names = tuple(found["names"].tolist())
        except Exception as error:  # whatever a damaged archive makes the parsers raise
            raise ValueError(f"{installed} is damaged ({error}); get it again: sphere data get cifar100") from error
    elif shards.is_dir():
        parts = [read_shards(shards, split) for split in ("train", "test")]
        names = tuple(str(i) for i in range(100))
    else:
        raise missing("cifar100", [installed, shards])
    return Labelled(parts[0], parts[1], names, MEAN, DEVIATION)


def install(archive: Path, say: Callable[[str], object] = print) -> Path:
    """The official archive as plain arrays in the user's cache."""
    parts = {name: read_pickle(content, name) for name, content in members(archive).items()}
    arrays = {"names": np.array(parts["meta"]["fine_label_names"])}
    for split in ("train", "test"):
        planes = np.asarray(parts[split]["data"], np.uint8).reshape(-1, 3, 32, 32)
        arrays[f"{split}_obs"] = np.moveaxis(planes, 1, 3).reshape(len(planes), -1)
        arrays[f"{split}_label"] = np.asarray(parts[split]["fine_labels"], np.int32)

    def write(path: Path) -> None:
        with path.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]

    return write_whole(file(), write)


def members(archive: Path) -> dict[str, bytes]:
    """The parts of the archive that are of use, in memory, each with its published md5."""
    if not archive.is_file():
        raise FileNotFoundError(f"there is no archive {archive}; give the path of {FOLDER}.tar.gz")
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.removeprefix(f"{FOLDER}/")
                if name in MD5 and member.isreg() and member.size < SIZE:
                    stream = tar.extractfile(member)
                    found[name] = stream.read() if stream else b""
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(
            f"{archive} is not a whole tar archive ({error}); get it again: sphere data get cifar100"
        ) from error
    for name, want in MD5.items():
        if name not in found:
            raise ValueError(f"{archive} lacks {FOLDER}/{name}; is it the archive of CIFAR-100 for Python?")
        if (got := hashlib.md5(found[name], usedforsecurity=False).hexdigest()) != want:
            raise ValueError(f"{FOLDER}/{name} in {archive} has md5 {got[:12]}…, want {want[:12]}…: altered; refused")
    return found


class _Arrays(pickle.Unpickler):
    """Nothing but numpy's arrays is made of what a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)  # as it is called since 2.0
        raise ValueError(f"the pickle asks for {module}.{name}; only arrays are wanted; refused")


def read_pickle(content: bytes, name: str) -> dict[str, Any]:
    return _Arrays(io.BytesIO(content), encoding="latin1").load()


def read_shards(folder: Path, split: str) -> Split:
    """All classes, in the official order. How shards are made: shared/data/cifar100/cifar100_pack.py."""
    parts = []
    for path in sorted(folder.glob("c*.npz")):
        with np.load(path, allow_pickle=False) as shard:
            index = shard[f"{split}_idx"]
            images = decode(shard[f"{split}_payload"].tobytes(), len(index))
            parts.append((images, shard[f"{split}_fine"], index))
    images, label, index = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(index)
    flat = np.moveaxis(images[order], 1, 3).reshape(len(order), -1)
    return Split(flat, label[order].astype(np.int32))


def decode(payload: bytes, n: int) -> np.ndarray:
    """uint8 [n, 3, 32, 32] from residuals: each pixel minus its prediction from its left, upper and upper left
    neighbours, of the planes R - G, G, B - G, modulo 256."""
    residual = np.frombuffer(zlib.decompress(payload), np.uint8).reshape(3, n, 32, 32)
    p = np.ascontiguousarray(residual.transpose(2, 3, 0, 1)).astype(np.int16)  # [row, column, plane, image]
    for j in range(1, 32):
        p[0, j] = (p[0, j] + p[0, j - 1]) & 255
    for i in range(1, 32):
        p[i, 0] = (p[i, 0] + p[i - 1, 0]) & 255
        for j in range(1, 32):
            left, up, corner = p[i, j - 1], p[i - 1, j], p[i - 1, j - 1]
            high, low = np.maximum(left, up), np.minimum(left, up)
            guess = np.where(corner >= high, low, np.where(corner <= low, high, left + up - corner))
            p[i, j] = (p[i, j] + guess) & 255
    p[:, :, 0] = (p[:, :, 0] + p[:, :, 1]) & 255
    p[:, :, 2] = (p[:, :, 2] + p[:, :, 1]) & 255
    return np.ascontiguousarray(p.astype(np.uint8).transpose(3, 2, 0, 1))
