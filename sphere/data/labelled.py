"""What a labelled data set is, and where its files are."""

import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

TIMEOUT = 30.0
"""Seconds without a byte after which a download is given up."""


class Split(NamedTuple):
    """Examples and their classes."""

    obs: np.ndarray
    """[n, numbers]: pixels of an image in the order height, width, channel (uint8), or ids of a text (int32)."""
    label: np.ndarray
    """[n], from 0."""


class Labelled(NamedTuple):
    train: Split
    test: Split
    names: tuple[str, ...]
    """Of the classes."""
    mean: tuple[float, ...] = ()
    """Images: of each channel, of pixels from 0 to 1."""
    deviation: tuple[float, ...] = ()
    vocabulary: int = 0
    """Texts: all ids are below; 0 is padding."""


class DataSet(Protocol):
    """A labelled data set by name: `sphere.registry.STREAMS`."""

    classes: ClassVar[int]

    @staticmethod
    def load(settings: Any) -> Labelled:
        """`settings`: those of the stream (`sphere.data.streams.Stream`)."""


def root() -> Path:
    """Where data are installed: $SPHERE_DATA, or sphere/data in the user's cache."""
    if chosen := os.environ.get("SPHERE_DATA"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sphere", "data")


def beside_checkout() -> Path:
    """A folder of data next to the source checkout; it need not exist."""
    return Path(__file__).resolve().parents[2].parent / "shared" / "data"


def missing(name: str, places: list[Path]) -> FileNotFoundError:
    where = " nor ".join(map(str, places))
    return FileNotFoundError(f"{name} is neither in {where}; get it with: sphere data get {name}")


def download(address: str, folder: Path, install: Callable[[Path], Path], say: Callable[[str], object]) -> Path:
    """Get an archive and install what is in it; `install` checks it. The archive itself is not kept."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f".{os.getpid()}.download"
    say(f"downloading {address}")
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
        return install(archive)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
        raise ConnectionError(
            f"{address} could not be had ({error}); try again, or give a local copy by --from FILE"
        ) from error
    finally:
        archive.unlink(missing_ok=True)


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """A file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
