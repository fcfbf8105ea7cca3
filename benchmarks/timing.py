"""How times are taken: compile first, then the best of several repeats, each of enough calls to outlast the clock."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax


def best_seconds(function: Callable[..., Any], *args: Any, repeats: int = 5, at_least: float = 0.2) -> float:
    """Seconds per call: the best of `repeats`, since these machines are noisy and noise only adds."""
    jax.block_until_ready(function(*args))
    start = time.perf_counter()
    jax.block_until_ready(function(*args))
    calls = max(1, int(at_least / max(time.perf_counter() - start, 1e-7)))
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            result = function(*args)
        jax.block_until_ready(result)
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def count(text: str) -> int:
    """The value of an option that counts something: of nothing there are no times."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}; want a whole number, at least 1")
    return int(text)


def device() -> str:
    found = jax.devices()[0]
    name = "CPU" if found.platform == "cpu" else f"{found.device_kind} ({found.platform})"
    return f"{name}, jax {jax.__version__}"
