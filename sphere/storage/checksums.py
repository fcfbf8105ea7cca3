"""What the files of a run held when that was last written down: in a fleet's checkpoint, or in SHA256SUMS beside a
copy.

A checkpoint says of every run how long its records were and the sha256 of that much. Copies for publication have no
checkpoints; beside them lies SHA256SUMS, which `sha256sum -c` reads too. Both find damage and edits, not forgery.
"""

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sphere.storage.files import MOST_CHECKPOINT, MOST_JSON, open_regular, read_regular, strict_json

SUMS = "SHA256SUMS"
RECORDS = ("config.json", "metrics.jsonl", "episodes.jsonl")
"""What every copy has."""

Sums = Mapping[str, tuple[int | None, str]]
"""By file: so many bytes from its start (None: all of it), and their sha256."""


def write(contents: Mapping[str, bytes]) -> bytes:
    """SHA256SUMS of some files."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items()).encode()


def recorded(run: Path, notes: list[str]) -> Sums:
    """What is written down of a run. Ask for it before its files are read: a run in training only adds to them."""
    try:
        if (run / SUMS).is_symlink() or (run / SUMS).exists():
            found = _of_copy(run / SUMS)
            if missing := [name for name in RECORDS if name not in found]:
                notes.append(f"{run}: {SUMS} does not name {', '.join(missing)}; whether it was changed is not known")
            return found
    except (OSError, ValueError) as error:
        notes.append(f"{run}: {SUMS} cannot be read ({error}); whether its files were changed is not known")
        return {}
    return in_checkpoint(run.resolve().parent, notes).get(run.resolve().name, {})


def in_checkpoint(fleet: Path, notes: list[str]) -> dict[str, Sums]:
    """What the newest good checkpoint of a fleet says, by run; nothing where there is none, or an earlier version wrote
    it."""
    for path in sorted(fleet.glob("checkpoint-*.npz"), reverse=True):
        try:
            meta = _manifest(path)["meta"]
            return {
                run: {name: (one["bytes"], one["sha256"]) for name, one in own.items()}
                for run, own in meta.get("checksums", {}).items()
            }
        except FileNotFoundError:  # gone by now: a newer one took its place
            continue
        except Exception as error:  # whatever a strange file makes the parsers raise
            note = f"{path} is damaged ({error}); whether records were changed since the one before it is not known"
            notes += [] if note in notes else [note]
    return {}


def changed(run: Path, contents: Mapping[str, bytes], sums: Sums) -> list[str]:
    """A sentence for every file that is not as it was."""
    found = []
    for name, (length, digest) in sums.items():
        if name in contents and hashlib.sha256(contents[name][:length]).hexdigest() != digest:
            when = "it was copied" if length is None and name != "config.json" else "its checkpoint was saved"
            found.append(
                f"{run / name} was changed after {when} (another sha256); its numbers are not those of the run"
            )
    return found


def _of_copy(path: Path) -> Sums:
    found: dict[str, tuple[int | None, str]] = {}
    for line in read_regular(path, MOST_JSON).decode().splitlines():
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name:
            raise ValueError(f"it has the line {line[:40]!r}")
        found[name] = (None, digest)
    if not found:
        raise ValueError("it is empty")
    return found


def _manifest(path: Path) -> Any:
    """Of a checkpoint, without its arrays. The zip has a checksum of its own for it."""
    with open_regular(path, MOST_CHECKPOINT) as file, zipfile.ZipFile(file) as archive:
        info = archive.getinfo("manifest.npy")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > MOST_JSON:
            raise ValueError(f"{path} has a manifest that is not one")
        with archive.open(info) as member:
            return strict_json(np.lib.format.read_array(member, allow_pickle=False).tobytes())
