"""Files as everything here writes them: whole or not at all, by one process at a time, as strict JSON or as arrays.

JSON has no NaN and no infinity. They are written as the strings "nan", "inf" and "-inf", not as null: a loss that
overflowed and one that was 0/0 are different faults. The readers turn them back into floats.
"""

import dataclasses
import fcntl
import hashlib
import json
import math
import os
import socket
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

FORMAT = 2
"""Of config.json and fleet.json. Format 1 was flat and named PPO's settings only; `migrate.py` translates it."""

DIGEST_BYTES = 64  # sha256 in hex

NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

MOST_JSON, MOST_RECORD, MOST_CHECKPOINT = 2**26, 2**32, 2**40
"""Bytes of a settings file, a record and a checkpoint at most; what is longer is not read."""


class Replaced(RuntimeError):
    """What this process writes to is no longer what stands at its path, or somebody else writes to it too."""


def check_same_file(file: IO[Any], path: Path) -> None:
    """An open file is still the one at its path. While it is open, no other file can have its number."""
    try:
        same = os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except OSError:
        same = False
    if not same:
        raise Replaced(
            f"{path} was removed, moved or replaced while this process was writing; it stops here and changes nothing. "
            "Put back what was there and continue with sphere resume, or train into another directory"
        )


def open_regular(path: Path, most: int) -> IO[bytes]:
    """A file for reading: no FIFO, device or folder, no link out of its folder, and not longer than that."""
    place = path
    if path.is_symlink():
        place = Path(os.path.realpath(path))
        if not place.is_relative_to(os.path.realpath(path.parent)):
            raise OSError(f"{path} is a link to {place}, out of its directory; put a copy of the file there instead")
    # A FIFO must not make us wait for its writer.
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb") if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    if file is None:
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file; put the file there that sphere wrote, or remove it")
    size = os.fstat(descriptor).st_size
    if size > most:
        file.close()
        raise OSError(f"{path} has {size:,} bytes, wanted {most:,} at most; it is not what sphere wrote")
    return file


def read_regular(path: Path, most: int) -> bytes:
    """All of a file, as `open_regular` allows it."""
    with open_regular(path, most) as file:
        return file.read(most)


def read_json(path: Path) -> Any:
    """What a JSON file says."""
    return strict_json(read_regular(path, MOST_JSON))


def strict_json(data: bytes) -> Any:
    """JSON in UTF-8 without NaN and Infinity, as everything here writes it; a ValueError otherwise."""
    try:
        return json.loads(data.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def lock_directory(directory: Path) -> IO[str]:
    """Be the only writer of `directory` until the returned file is closed or this process dies, in any way.

    The lock file stays: removing it would let two processes hold locks on two files of one name.
    """
    file = (directory / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "pid unknown, it is just starting"
        file.close()
        raise RuntimeError(
            f"another process writes to {directory} ({holder}); wait for it, stop it, or use another --out"
        ) from None
    try:
        check_same_file(file, directory / "lock")  # else another process may hold the one that stands there by now
    except Replaced:
        file.close()
        raise
    file.truncate(0)
    file.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Errors of the operating system that come without a path, as those of a full disk, get this one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name complete and on disk, or not at all. A kill may leave a .partial."""
    partial = path.with_name(path.name + ".partial")
    try:
        with naming(path):
            partial.unlink(missing_ok=True)  # of a process that was killed
            # never through a link that somebody put there
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable; fsync of the files does not."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON, atomically."""
    with atomic_write(path) as file:
        file.write(json.dumps(plain(value), indent=2, allow_nan=False).encode() + b"\n")


def plain(value: Any) -> Any:
    """`value` as what strict JSON can hold: dataclasses become objects, arrays of one element numbers."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if getattr(value, "size", None) == 1:  # numpy and jax scalars
        scalar = np.asarray(value).reshape(())[()]
        if isinstance(scalar, np.float32 | np.float16):
            return plain(float(str(scalar)))  # 0.1, not 0.10000000149011612: the shortest with the same bits
        return plain(float(scalar) if isinstance(scalar, np.floating) else scalar.item())
    raise TypeError(f"cannot write {value!r:.80} ({type(value).__name__}) as JSON; give numbers, strings, lists")


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their full names: "learner.actor.experts" -> 10."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An uncompressed .npz that ends in the sha256 of everything before it, in hex, as the zip's comment.

    So one rename publishes a file with its checksum, numpy opens it like any other, and `head -c -64 FILE | sha256sum`
    tells what `tail -c 64 FILE` must be.
    """
    with atomic_write(path) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.comment = b"0" * DIGEST_BYTES
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        length = file.seek(0, os.SEEK_END) - DIGEST_BYTES
        found = digest(file, length)
        file.seek(length)
        file.write(found)


def read_arrays(path: Path, most: int) -> dict[str, np.ndarray]:
    """What `write_arrays` has written; whatever is wrong with the file raises an exception of some kind."""
    arrays = {}
    with open_regular(path, most) as file:
        size = file.seek(0, os.SEEK_END)
        if digest(file, size - DIGEST_BYTES) != file.read():
            raise ValueError(f"its {size} bytes do not match the sha256 at its end")
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED:  # else a small file could fill the memory
                    raise ValueError(f"{info.filename} is compressed")
                with archive.open(info) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
                arrays[info.filename.removesuffix(".npy")] = array
    return arrays


def digest(file: IO[bytes], length: int) -> bytes:
    """sha256 of the first `length` bytes; leaves the file there."""
    sha = hashlib.sha256()
    file.seek(0)
    while length > 0 and (block := file.read(min(length, 1 << 20))):
        sha.update(block)
        length -= len(block)
    return sha.hexdigest().encode()
