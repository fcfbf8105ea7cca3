"""Bad tensors are stopped at the door, with a sentence that says what came, what was wanted and what to do.

Values are looked at on every device. A GPU is waited for until it has done all that it was given, so a call reads them
once, together with whatever else it has to know. Inside `torch.compile` they are not looked at.
"""

import math
import struct
from collections.abc import Iterable

import torch
from torch import Tensor


def real(name: str, value: Tensor, dimensions: int, wanted: str) -> Tensor:
    """A non-empty tensor of real numbers without NaN or infinity, in float32 at least: half precision loses squares."""
    magnitude(name, shaped(name, value, dimensions, wanted))
    return wide(value)


def wide(value: Tensor) -> Tensor:
    return value if value.dtype == torch.float64 else value.float()


def shaped(name: str, value: Tensor, dimensions: int, wanted: str) -> Tensor:
    """A non-empty tensor of real numbers, whichever: nothing is read."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}, wanted a torch tensor; use torch.as_tensor")
    if value.ndim != dimensions:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, wanted {wanted}; reshape it")
    if value.numel() == 0:
        raise ValueError(f"{name} is empty, its shape is {tuple(value.shape)}, wanted {wanted}; leave the call out")
    if not value.is_floating_point():
        raise ValueError(f"{name} holds {value.dtype}, wanted real numbers; convert it with .float()")
    return value


def largest(value: Tensor) -> float:
    """The largest absolute value, NaN if there is one: one pass over the numbers, one wait."""
    low, high = _ends(value).tolist()
    return max(high, -low)


def _ends(value: Tensor) -> Tensor:
    """The smallest and the largest number, by one program; stacked they would be cast by autocast."""
    found = torch.empty(2, dtype=value.dtype, device=value.device)
    torch.aminmax(value.detach(), out=(found[0], found[1]))
    return found


def magnitude(name: str, value: Tensor) -> float:
    """The largest absolute value, of finite numbers; 0 inside `torch.compile`."""
    return 0.0 if torch.compiler.is_compiling() else _finite(name, value, largest(value))


def _finite(name: str, value: Tensor, found: float) -> float:
    if not math.isfinite(found):
        bad = int((~torch.isfinite(value.detach())).sum())
        raise ValueError(
            f"{name} holds {bad} NaN or infinite numbers of {value.numel()}, wanted finite ones; "
            "look for a division by zero or a diverged loss before this call"
        )
    return found


def indices(name: str, value: Tensor, shape: Iterable[int], number: int, device: torch.device) -> Tensor:
    """Which experts were chosen: integers from 0 to `number` - 1."""
    value = choices(name, value, shape, number, device)
    if not torch.compiler.is_compiling() and value.numel():
        low, high = _ends(value).tolist()
        _in_range(name, low, high, number)
    return value


def choices(name: str, value: Tensor, shape: Iterable[int], number: int, device: torch.device) -> Tensor:
    """The same, of any integers: nothing is read."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}, wanted a torch tensor; use torch.as_tensor")
    if tuple(value.shape) != tuple(shape):
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}, wanted {tuple(shape)}, the first two axes of features; "
            "pass the index of each chosen expert"
        )
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise ValueError(
            f"{name} holds {value.dtype}, wanted integers: which experts were chosen, not how much they weigh; "
            "weights belong to features"
        )
    if value.device != device:
        raise ValueError(f"{name} is on {value.device} and features on {device}, wanted one device; move one of them")
    if number < 1 or value.shape[1] > number:
        raise ValueError(
            f"features have {value.shape[1]} chosen experts per sample and num_experts is {number}, "
            "wanted at most as many as there are; pass [n, k, width] with k <= num_experts"
        )
    return value.long()


def _in_range(name: str, low: int, high: int, number: int) -> None:
    if low < 0 or high >= number:
        raise ValueError(
            f"{name} holds numbers from {low} to {high}, wanted 0 to {number - 1}; "
            "pass indices, as torch.topk gives them, and the number of all experts"
        )


def mixture(features: Tensor, experts: Tensor, number: int, *more: Tensor) -> tuple[float, list[int]]:
    """The largest absolute value of finite features, and the integers in `more`: all that is read, in one wait."""
    bits = _ends(features).double().view(torch.int64)  # to go with integers
    low, high, first, last, *others = torch.cat((bits, _ends(experts), *more)).tolist()
    low, high = struct.unpack("2d", struct.pack("2q", low, high))
    _in_range("experts", first, last, number)
    return _finite("features", features, max(high, -low)), others
