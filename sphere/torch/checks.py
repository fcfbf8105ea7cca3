"""Bad tensors are stopped at the door, with a sentence that says what came, what was wanted and what to do.

Values are looked at on every device: a few microseconds' wait on a GPU. Inside `torch.compile` they are not.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def real(name: str, value: Tensor, dimensions: int, wanted: str) -> Tensor:
    """What `finite` lets through, in float32 at least: half precision loses squares."""
    return wide(finite(name, value, dimensions, wanted))


def wide(value: Tensor) -> Tensor:
    return value if value.dtype == torch.float64 else value.float()


def finite(name: str, value: Tensor, dimensions: int, wanted: str) -> Tensor:
    """A non-empty tensor of real numbers without NaN or infinity."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}, wanted a torch tensor; use torch.as_tensor")
    if value.ndim != dimensions:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, wanted {wanted}; reshape it")
    if value.numel() == 0:
        raise ValueError(f"{name} is empty, its shape is {tuple(value.shape)}, wanted {wanted}; leave the call out")
    if not value.is_floating_point():
        raise ValueError(f"{name} holds {value.dtype}, wanted real numbers; convert it with .float()")
    if not torch.compiler.is_compiling() and not math.isfinite(largest(value)):
        bad = int((~torch.isfinite(value.detach())).sum())
        raise ValueError(
            f"{name} holds {bad} NaN or infinite numbers of {value.numel()}, wanted finite ones; "
            "look for a division by zero or a diverged loss before this call"
        )
    return value


def largest(value: Tensor) -> float:
    """The largest absolute value, NaN if there is one: one pass over the numbers, one wait."""
    low, high = torch.aminmax(value.detach())
    return float(torch.maximum(high, -low))


def indices(name: str, value: Tensor, shape: Iterable[int], number: int, device: torch.device) -> Tensor:
    """Which experts were chosen: integers from 0 to `number` - 1."""
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
    if not torch.compiler.is_compiling() and value.numel():
        low, high = torch.stack(torch.aminmax(value)).tolist()
        if low < 0 or high >= number:
            raise ValueError(
                f"{name} holds numbers from {low} to {high}, wanted 0 to {number - 1}; "
                "pass indices, as torch.topk gives them, and the number of all experts"
            )
    return value.long()
