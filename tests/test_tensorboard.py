"""TensorBoard files, judged by TensorBoard's own reader."""

import struct

import numpy as np
import pytest

from sphere.storage.tensorboard import EventWriter, crc32c

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def points(directory, tag: str) -> list[tuple[int, float]]:
    """(step, value) as TensorBoard's scalar dashboard would draw them."""
    events = accumulator.EventAccumulator(str(directory), size_guidance={accumulator.SCALARS: 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_crc32c_equals_the_vectors_of_rfc_3720():
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283


def test_tensorboard_reads_back_steps_times_tags_and_values(tmp_path):
    writer = EventWriter(tmp_path)
    written = [(0, 0.0, -1.5), (1, 1e-30, float("inf")), (300, 3.25, 1e300), (2**40, np.float32(0.1), -0.0)]
    for step, loss, rank in written:
        writer.add(step, {"train/loss": loss, "größe": rank}, wall=1e9 + step)
    writer.add(2**40 + 1, {"train/loss": float("nan")})
    writer.close()

    events = accumulator.EventAccumulator(str(tmp_path), size_guidance={accumulator.SCALARS: 0})
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"train/loss", "größe"}
    assert [event.wall_time for event in events.Scalars("größe")] == [1e9 + step for step, *_ in written]
    with np.errstate(over="ignore"):
        assert points(tmp_path, "train/loss")[:-1] == [(step, float(np.float32(loss))) for step, loss, _ in written]
        assert points(tmp_path, "größe") == [(step, float(np.float32(rank))) for step, _, rank in written]
    assert np.isnan(points(tmp_path, "train/loss")[-1][1])


def test_flushed_points_are_there_before_the_file_is_closed(tmp_path):
    writer = EventWriter(tmp_path)
    writer.add(1, {"loss": 2.0})
    writer.flush()
    assert points(tmp_path, "loss") == [(1, 2.0)]
    writer.close()


def test_a_resumed_run_takes_back_the_points_after_its_checkpoint(tmp_path):
    killed = EventWriter(tmp_path)
    for step in range(8):
        killed.add(step, {"loss": float(step)})
    killed.close()
    content = killed.path.read_bytes()
    killed.path.write_bytes(content[:-3])  # the kill tore the last record

    resumed = EventWriter(tmp_path, resumed_at=4)
    for step in (5, 6):
        resumed.add(step, {"loss": step + 0.5})
    resumed.close()
    assert points(tmp_path, "loss") == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5.5), (6, 6.5)]


def test_files_are_read_in_the_order_they_were_written(tmp_path):
    paths = []
    for _ in range(12):
        writer = EventWriter(tmp_path)
        writer.close()
        paths.append(writer.path)
    assert paths == sorted(set(paths))


def test_a_record_is_framed_as_tfrecord(tmp_path):
    writer = EventWriter(tmp_path)
    writer.close()
    content = writer.path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert len(content) == 8 + 4 + length + 4
    assert content[12 : 12 + length].endswith(b"\x1a\x0dbrain.Event:2")
