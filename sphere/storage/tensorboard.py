"""TensorBoard event files, in as many lines as they need and without TensorBoard.

A file is a row of TFRecords (length, its checksum, payload, its checksum); a payload is a protobuf `Event`:

    Event      1 wall_time: double   2 step: int64   3 file_version: string   5 summary   7 session_log
    Summary    1 value: repeated     Value  1 tag: string   2 simple_value: float
    SessionLog 1 status: enum        START = 1

These files are a view. metrics.jsonl is the record, and holds the doubles that become floats here.
"""

import math
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 5.0


class EventWriter:
    """Appends scalars to a new event file in `directory`.

    A resumed run passes the step of its checkpoint: the file then opens with a session start, at which
    TensorBoard drops the points after that step from the files before. Points at the step itself stay: they
    were logged before the checkpoint was saved.
    """

    def __init__(self, directory: Path, resumed_at: int | None = None):
        directory.mkdir(parents=True, exist_ok=True)
        # Numbered, not dated: TensorBoard reads files by name, and a resume may be under another clock.
        numbers = [int(path.name.split(".")[3]) for path in directory.glob("events.out.tfevents.*.sphere")]
        self.path = directory / f"events.out.tfevents.{max(numbers, default=0) + 1:06d}.sphere"
        self._file = self.path.open("xb")
        self._record(_event(time.time(), 0, _field(3, b"brain.Event:2")))
        if resumed_at is not None:
            self._record(_event(time.time(), resumed_at + 1, _field(7, _tag(1, 0) + _varint(1))))
        self.flush()

    def add(self, step: int, values: Mapping[str, Any], wall: float | None = None) -> None:
        """One point per tag at `step`; a value is anything that `float` takes."""
        summary = b"".join(_field(1, _field(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
        self._record(_event(time.time() if wall is None else wall, step, _field(5, summary)))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _record(self, payload: bytes) -> None:
        length = struct.pack("<Q", len(payload))
        self._file.write(length + _masked_crc(length) + payload + _masked_crc(payload))


def _event(wall: float, step: int, what: bytes) -> bytes:
    return _tag(1, 1) + struct.pack("<d", wall) + _tag(2, 0) + _varint(step) + what


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative int64 in two's complement
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(field: int, content: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(content)) + content


def _float(field: int, value: Any) -> bytes:
    try:
        packed = struct.pack("<f", float(value))
    except OverflowError:  # finite, but beyond float32
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _tag(field, 5) + packed


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # Castagnoli's polynomial, reflected
        table.append(byte)
    return table


CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720, appendix B.4), a byte at a time: 10 MB/s, and an event is about 50 bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _masked_crc(data: bytes) -> bytes:
    """TFRecord rotates and shifts checksums, so that one over data that holds others stays a good one."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
