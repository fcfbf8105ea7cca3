"""How strong the penalty is: lambda from rho and the lengths of two gradients, and how strong it turned out to be."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FLOOR = 1e-4
"""Length that every gradient has at least in the released code: sqrt(sum of squares + 1e-8)."""

_warned = False


def strength(task: float, penalty: float, rho: float, floor: float | None) -> float:
    """lambda = rho * ||grad task|| / ||grad penalty||, so the penalty's gradient is rho times as long as the task's.

    `floor` None: as released, rho * t / (p + 1e-8), t and p being sqrt(length^2 + 1e-8), never below 1e-4. A number:
    rho * ||task|| / sqrt(||penalty||^2 + (floor * ||task||)^2), which does not depend on the scale of the loss.
    """
    if floor is None:
        return rho * math.hypot(task, FLOOR) / (math.hypot(penalty, FLOOR) + 1e-8)
    bounded = math.hypot(penalty, floor * task)
    return rho * task / bounded if bounded != 0 else 0.0


def length(tensors: Sequence[Tensor | None]) -> Tensor:
    """Euclidean norm over all entries, in float64: squares of small gradients vanish in float32."""
    found = [t.detach() for t in tensors if t is not None]
    if not found:
        return torch.zeros((), dtype=torch.float64)
    norms = torch._foreach_norm(found, dtype=torch.float64)  # of many tensors by one program
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def check(
    rho: float | Sequence[float], floor: float | None, coefficient: str, known: Sequence[str], terms: int = 1
) -> list[float]:
    """A rho for each term."""
    if coefficient not in known:
        raise ValueError(f"coefficient {coefficient!r} is not known; use {', '.join(known[:-1])} or {known[-1]}")
    rhos: list[Any] = list(rho) if isinstance(rho, tuple | list) else [rho] * terms
    if len(rhos) != terms:
        raise ValueError(f"{len(rhos)} values of rho for a penalty of {terms} terms; give one, or one for each")
    for one in rhos:
        if isinstance(one, bool) or not isinstance(one, int | float):
            raise TypeError(f"rho is {one!r}, wanted a number; 0 leaves the penalty out")
        if not math.isfinite(one):
            raise ValueError(f"rho is {one}, wanted a finite number; 0 leaves the penalty out")
    if floor is not None and not 0 < floor < 1:
        raise ValueError(f"floor is {floor}, wanted a small number above 0 such as 1e-12, or None for the released one")
    return rhos


def warn_if_far(rho: float, felt: float, task: float, penalty: float, floor: float | None) -> None:
    """Once in a process, where the penalty is felt at less than half or more than twice of what rho says."""
    global _warned  # noqa: PLW0603
    if _warned or not math.isfinite(felt) or rho == 0 or abs(rho) / 2 <= felt <= 2 * abs(rho):
        return
    _warned = True
    released = f"no length counts as less than {FLOOR:g}; pass floor=1e-12 for a relative floor"
    relative = f"floor={floor} of the task's is reached; pass a smaller one, or look why features hardly vary"
    warnings.warn(
        f"rho is {rho:g} and the penalty is felt as {felt:.2g}: the task's gradient has length {task:.2g}, the "
        f"penalty's {penalty:.2g}, and {released if floor is None else relative}",
        stacklevel=4,
    )
