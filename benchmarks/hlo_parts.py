"""Which part of a network a compiled program's operations belong to, and how long a device computes them."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

PARTS = {
    "attend": "attention: scores and mixing",
    "by_cudnn": "attention: scores and mixing",
    "by_triton": "attention: scores and mixing",
    "one_by_one": "attention: scores and mixing",
    "Attention.": "attention: projections",
    "grouped": "mixture: sorting and copies",
    "of_owners": "mixture: sorting and copies",
    "_of_owners": "mixture: sorting and copies",
    "by_product": "mixture: sorting and copies",
    "TopK.": "mixture: router",
    "MLP.": "mixture: experts",
    "in_blocks": "mixture: experts",
    "forward_in_blocks": "mixture: experts",
    "MoE.": "mixture: rest",
    "Lookup.": "embedding",
    "rows_of": "embedding",
    "_rows_of": "embedding",
    "in_order": "embedding",
    "normed": "LayerNorm",
    "clipped_adam": "AdamW",
    "Classifier._minibatch": "AdamW",
    "Transformer.": "the network's rest",
}
"""By the beginning of a function's name, the innermost of them counts."""
CONTAINERS = ("while", "cond", "call", "conditional")
"""Operations that are made of others, which are counted by themselves."""


def parts_of(text: str) -> dict[str, tuple[str, str]]:
    """Of every operation in the text of a compiled program: its part, and where in the sources it was written."""
    tables: dict[str, dict[str, str]] = {}
    name = ""
    for line in text.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            name = line
            tables[name] = {}
        elif name and (found := re.match(r'(\d+) (?:"(.*)"|(\{.*))', line)):
            tables[name][found[1]] = found[2] if found[2] is not None else found[3]
    written = {}
    for found in re.finditer(r"^\s*(?:ROOT )?%?([\w.\-]+) = .*?metadata=\{(.*)\}", text, re.MULTILINE):
        frame = re.search(r"stack_frame_id=(\d+)", found[2])
        op = re.search(r'op_name="([^"]*)"', found[2])
        written[found[1]] = _part(tables, frame[1] if frame else ""), op[1][-60:] if op else ""
    return written


def _part(tables: dict[str, dict[str, str]], frame: str) -> str:
    seen = set()
    while frame and frame not in seen:
        seen.add(frame)
        row = tables["StackFrames"].get(frame, "")
        location = tables["FileLocations"].get(_number(row, "file_location_id"), "")
        function = tables["FunctionNames"].get(_number(location, "function_name_id"), "")
        for begin, part in PARTS.items():
            if function.startswith(begin):
                return part
        frame = _number(row, "parent_frame_id")
    return "other"


def _number(row: str, name: str) -> str:
    found = re.search(rf"\b{name}=(\d+)", row)
    return found[1] if found else ""


def kernels(once: Callable[[], Any], repeats: int) -> dict[str, tuple[float, float]]:
    """Milliseconds and number of kernels of each operation, a call, from a trace of several calls."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(repeats):
                once()
        (path,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    gpu = jax.default_backend() == "gpu"
    found: dict[str, tuple[float, float]] = {}
    for plane in data.planes:
        for line in plane.lines if plane.name.startswith("/device:GPU" if gpu else "/host:CPU") else ():
            for event in line.events if not gpu or line.name.startswith("Stream") else ():
                op = str(dict(event.stats).get("hlo_op", event.name if gpu else ""))
                if op and not op.startswith(CONTAINERS):
                    before = found.get(op, (0.0, 0.0))
                    found[op] = before[0] + event.duration_ns / 1e6 / repeats, before[1] + 1 / repeats
    return found
