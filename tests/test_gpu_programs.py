"""Of a library with programs for several GPUs those of one are left; everything else stays where it was."""

import importlib.util
import struct

import pytest
from pages import ROOT

SPEC = importlib.util.spec_from_file_location("gpu_programs", ROOT / "scripts" / "gpu_programs.py")
gpu_programs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gpu_programs)


def program(kind, architecture, content):
    head = struct.pack("<HHIQ", kind, 257, 64, len(content)) + bytes(12) + struct.pack("<I", architecture) + bytes(32)
    return head + content


def container(*programs):
    inner = b"".join(programs)
    return struct.pack("<IHHQ", gpu_programs.CONTAINER, 1, 16, len(inner)) + inner


def library(fat):
    """A 64-bit ELF file with a section .nv_fatbin and the names of sections."""
    names = b"\0.nv_fatbin\0.names\0"
    begin = 64
    after = begin + len(fat)
    table = after + len(names)
    head = b"\x7fELF\x02" + bytes(35) + struct.pack("<Q", table) + bytes(10) + struct.pack("<HHH", 64, 3, 2)
    rows = [(0, 0, 0), (1, begin, len(fat)), (12, after, len(names))]
    return (
        head + fat + names + b"".join(struct.pack("<IIQQQQ", n, 1, 0, 0, at, size) + bytes(24) for n, at, size in rows)
    )


def test_programs_of_other_gpus_become_zeros(tmp_path):
    fat = container(program(2, 80, b"eighty--"), program(2, 90, b"ninety--")) + bytes(8)
    fat += container(program(1, 90, b"ptx90---"), program(2, 90, b"again---"))
    path = tmp_path / "one.so"
    path.write_bytes(library(fat))
    assert gpu_programs.keep(path, 90) == 16
    left = library(fat).replace(b"eighty--", bytes(8)).replace(b"ptx90---", bytes(8))
    assert path.read_bytes() == left


def test_a_library_without_such_a_program_is_left_as_it_is(tmp_path):
    path = tmp_path / "one.so"
    path.write_bytes(library(container(program(2, 80, b"eighty--"))))
    with pytest.raises(ValueError, match="no program for sm_90"):
        gpu_programs.keep(path, 90)
    assert b"eighty--" in path.read_bytes()
    for content, why in (
        (b"text", "no 64-bit ELF"),
        (library(b"").replace(b".nv_f", b".xx_f"), "no section .nv_fatbin"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=why):
            gpu_programs.keep(path, 90)
