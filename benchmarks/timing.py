"""How times are taken: compile first, then the best of several repeats, each of enough calls to outlast the clock."""

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


def device() -> str:
    found = jax.devices()[0]
    return f"{found.device_kind} ({found.platform}), jax {jax.__version__}"
