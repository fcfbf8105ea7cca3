"""Of a shared library with programs for many GPUs those of one: the rest becomes zeros, which take no room in an
archive. Of Warp's 62 MB of programs 8 are left.

The library stays as long as it was, and headers stay as they are, so that the driver finds its program as before.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

CONTAINER = 0xBA55ED50
MACHINE_CODE = 2
"""The kind of a program for one architecture; others are PTX."""


def section(library: bytes | bytearray, name: str) -> tuple[int, int]:
    """Where a section of a 64-bit ELF file begins and ends."""
    if library[:5] != b"\x7fELF\x02":
        raise ValueError("this is no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", library, 0x28)
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", library, table + i * size) for i in range(count)]
    strings = rows[names][4]
    for at, _, _, _, begin, length in rows:
        if library[strings + at : library.index(b"\0", strings + at)] == name.encode():
            return begin, begin + length
    raise ValueError(f"this file has no section {name}")


def programs(library: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """Kind, architecture, begin and end of every program."""
    at, end = section(library, ".nv_fatbin")
    while at < end:
        magic, _, header, size = struct.unpack_from("<IHHQ", library, at)
        if magic != CONTAINER:
            at += 4  # containers are aligned
            continue
        inner, at = at + header, at + header + size
        while inner < at:
            kind, _, own, length = struct.unpack_from("<HHIQ", library, inner)
            (architecture,) = struct.unpack_from("<I", library, inner + 28)
            yield kind, architecture, inner + own, inner + own + length
            inner += own + length


def keep(path: Path, architecture: int) -> int:
    """Leave only the programs of an architecture (90: H100 and H200); bytes that are left."""
    library, left = bytearray(path.read_bytes()), 0
    for kind, own, begin, end in list(programs(library)):
        if (kind, own) == (MACHINE_CODE, architecture):
            left += end - begin
        else:
            library[begin:end] = bytes(end - begin)
    if not left:
        raise ValueError(f"{path} has no program for sm_{architecture}")
    path.write_bytes(library)
    return left
