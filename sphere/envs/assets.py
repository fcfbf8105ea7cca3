"""Files that a suite needs and the project does not ship: `install` gets them, `find` says where they are.

They live in the user's cache, one folder per suite, and appear there whole or not at all: everything is gathered in a
folder beside it and checked against recorded sha256 sums, then renamed. What an interrupted download has fetched is
kept there for the next.
"""

import contextlib
import fcntl
import hashlib
import http.client
import lzma
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sphere.errors import unknown

TIMEOUT = 30.0
"""Seconds without a byte after which a download is given up."""


class File(NamedTuple):
    """What a file must be, and where it is below the address of its collection."""

    size: int
    sha256: str
    remote: str

    def fault(self, content: bytes) -> str:
        """What is wrong with this content; nothing if it is the recorded one."""
        if len(content) != self.size:
            return f"has {len(content)} bytes, want {self.size}"
        found = hashlib.sha256(content).hexdigest()
        return "" if found == self.sha256 else f"has sha256 {found[:12]}…, want {self.sha256[:12]}…"


class AssetCollection(NamedTuple):
    """All files of a suite by their path in its folder, and the address from which they are downloaded."""

    base: str
    files: dict[str, File]


HUMANOIDBENCH = (
    "https://raw.githubusercontent.com/carlosferrazza/humanoid-bench/791405f5eacf879adbc99105adb3fee73f5a49fc"
)


def _collection(base: str, folder: str, table: str) -> AssetCollection:
    """From a table beside this module with path below the folder, bytes and sha256 of every file."""
    files = {}
    for line in Path(__file__).with_name(table).read_text("utf-8").splitlines():
        path, size, sha256 = line.split()
        files[path] = File(int(size), sha256, path if path == "LICENSE" else f"{folder}/{path}")
    return AssetCollection(base, files)


# The models of H1 without hands, six tasks. LICENSE is the repository's own (MIT, and the notices of its parts);
# h1/LICENSE is Unitree's, BSD-3-Clause, for robot and meshes. Both have to stay with the files.
COLLECTIONS = {"humanoidbench": _collection(HUMANOIDBENCH, "humanoid_bench/assets", "humanoidbench_files.txt")}


def root() -> Path:
    """Where all suites' folders are: $SPHERE_ASSETS, or sphere/assets in the user's cache."""
    if chosen := os.environ.get("SPHERE_ASSETS"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sphere", "assets")


def find(suite: str) -> Path:
    """The folder with a suite's files, every one of them checked: 16 MB in 20 ms."""
    folder = root() / suite
    faults = _faults(folder, _known(suite))
    if not faults:
        return folder
    command = f"sphere assets {suite}"
    if not folder.is_dir():
        raise FileNotFoundError(f"the models of {suite} are not in {folder}; get them with: {command}")
    path, fault = next(iter(faults.items()))
    more = f", and {len(faults) - 1} more are wrong" if len(faults) > 1 else ""
    raise ValueError(f"{folder / path} {fault}{more}; get them again with: {command}")


def install(
    suite: str = "humanoidbench",
    source: Path | str | None = None,
    base: str | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Path:
    """Put a suite's files into the cache, and answer in which folder.

    source: an archive (.tar, .tar.xz, .tar.gz) that holds them in one folder; without it they are downloaded from the
    published repository, or from below the address `base`.
    say: is given a line for every file that is downloaded.
    """
    collection = _known(suite)
    folder = root() / suite
    partial = folder.with_name(f".{suite}.partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.with_name(f".{suite}.lock")):
        _drop_strays(partial, collection)
        if source is not None:
            for path, content in _unpacked(Path(source), collection).items():
                _write(partial / path, content)
        elif not _faults(folder, collection):
            return folder
        else:
            _download(suite, collection._replace(base=base or collection.base), partial, say)
        if faults := _faults(partial, collection):
            path, fault = next(iter(faults.items()))
            raise OSError(f"{partial / path} {fault} although it was just written; is the disk full or failing?")
        _swap(partial, folder)
    return folder


def _known(suite: str) -> AssetCollection:
    if suite not in COLLECTIONS:
        raise unknown("suite with files to install", suite, COLLECTIONS)
    return COLLECTIONS[suite]


def _faults(folder: Path, collection: AssetCollection) -> dict[str, str]:
    """Files that are missing or not the recorded ones, and what is wrong with them."""
    faults = {}
    for path, file in collection.files.items():
        try:
            fault = file.fault((folder / path).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            fault = "is missing"
        if fault:
            faults[path] = fault
    return faults


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One at a time, also of several processes; given up by itself when the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _drop_strays(partial: Path, collection: AssetCollection) -> None:
    """Remove what an attempt at another version of the collection has left."""
    for path in partial.rglob("*"):
        if not path.is_dir() and path.relative_to(partial).as_posix() not in collection.files:
            path.unlink()


def _swap(partial: Path, folder: Path) -> None:
    """Replace what may be there already."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _unpacked(source: Path, collection: AssetCollection) -> dict[str, bytes]:
    """What we know of an archive, in memory; nothing is written unless all of it is good."""
    if not source.is_file():
        raise FileNotFoundError(f"there is no archive {source}; give the path of a .tar.xz with the suite's files")
    try:
        with tarfile.open(source) as archive:
            contents = _members(source, archive, collection)
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError) as error:
        raise ValueError(f"{source} is not a complete tar archive ({error}); get it again") from error
    missing = collection.files.keys() - contents.keys()
    if missing:
        raise ValueError(f"{source} lacks {min(missing)} and {len(missing) - 1} more; is it the archive of this suite?")
    return contents


def _members(source: Path, archive: tarfile.TarFile, collection: AssetCollection) -> dict[str, bytes]:
    contents, top = {}, ""
    for member in archive:
        parts = PurePosixPath(member.name).parts
        top = top or parts[0] if parts else top
        if not parts or parts[0] in ("/", "//") or ".." in parts or parts[0] != top:
            raise ValueError(f"{source} holds {member.name!r}, a path outside its one folder; refused")
        if not (member.isreg() or member.isdir()):
            raise ValueError(f"{source} holds {member.name!r}, which is a link or device; refused")
        path = "/".join(parts[1:])
        file = collection.files.get(path)
        if file is None or member.isdir():
            continue  # of no use to the suite: left out
        # The size in the archive's own table first: a lie about it must not fill the memory.
        stream = archive.extractfile(member) if member.size == file.size else None
        fault = f"has {member.size} bytes, want {file.size}" if stream is None else ""
        content = stream.read() if stream is not None else b""
        if fault := fault or file.fault(content):
            raise ValueError(f"{path} in {source} {fault}: tampered or of another version; refused")
        contents[path] = content
    return contents


def _download(suite: str, collection: AssetCollection, partial: Path, say: Callable[[str], object]) -> None:
    """All files that an earlier attempt has not fetched already."""
    wanted, total = _faults(partial, collection), len(collection.files)
    for number, path in enumerate(wanted, total - len(wanted) + 1):
        file = collection.files[path]
        address = f"{collection.base.rstrip('/')}/{file.remote}"
        try:
            content = _get(address, file.size)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(
                f"{address} could not be downloaded ({error}); nothing is installed yet, files that came are kept: run "
                f"sphere assets {suite} again, or give an archive: sphere assets {suite} --from FILE"
            ) from error
        if fault := file.fault(content):
            raise ValueError(f"{address} {fault}: tampered or of another version; nothing is installed")
        _write(partial / path, content)
        say(f"{number} of {total}: {path}")


def _get(address: str, size: int) -> bytes:
    """The content of an address, at most one byte more than wanted."""
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            announced = answer.headers.get("Content-Length")
            content = answer.read(size + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    if announced is not None and len(content) < min(int(announced), size):
        raise ConnectionError(f"cut off after {len(content)} of {announced} bytes")
    return content
