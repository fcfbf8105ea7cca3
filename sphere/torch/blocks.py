"""||phi phi^T||_F^2 of routed tokens in memory linear in their number, exact: blocks of rows, expert by expert.

Row i of phi holds features[i, j] in the block of experts[i, j]. S = phi phi^T [n, n] is made a block of rows at a time
and forgotten: as d||S||^2 / d features[i, j] = 4 sum over tokens (i', j') of the same expert of S_ii' features[i', j'],
the gradient of a block's tokens is known as soon as its rows are. It is kept for the backward pass, as large as the
features.

Experts with about the same load are multiplied together: within a group none has more than twice the tokens of another.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ENTRIES = 2**22
"""How many products are held at a time, about: 16 MB in float32."""


def routed_square(features: Tensor, experts: Tensor, num_experts: int, entries: int = ENTRIES) -> Tensor:
    """sum over i, i' of S_ii'^2. It can be differentiated once."""
    return _RoutedSquare.apply(features, experts, num_experts, entries)


class _RoutedSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, experts: Tensor, num_experts: int, entries: int) -> Tensor:
        value, gradient = _square(features.detach(), experts, num_experts, entries, ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        return above * ctx.saved_tensors[0], None, None, None


def _square(
    features: Tensor, experts: Tensor, num_experts: int, entries: int, differentiate: bool
) -> tuple[Tensor, Tensor | None]:
    n, k, width = features.shape
    order = torch.argsort(experts.reshape(-1), stable=True)  # by expert, then by sample
    sample = order // k
    # one row more, of zeros, for the places of a group that its smaller experts leave empty
    tokens = torch.cat([features.reshape(n * k, width)[order], features.new_zeros(1, width)])
    sample = torch.cat([sample, sample.new_zeros(1)])
    rows = max(1, min(n, entries // (2 * n * k)))
    loads = _loads(experts, num_experts, rows)
    groups = list(_groups([sum(load) for load in zip(*loads, strict=True)], features.device))
    gradient = torch.zeros_like(tokens) if differentiate else None
    square = features.new_zeros(())
    for first, load in zip(range(0, n, rows), loads, strict=True):
        block, pieces = features.new_zeros(rows * n), []
        for group, places in groups:
            most = max(load[expert] for expert in group)
            if most:
                here = _within(sample, places, n * k, first, first + rows, most)
                products = tokens[here] @ tokens[places].mT  # [experts, tokens of the block, tokens]
                where = (sample[here] - first).clamp(0, rows - 1)[:, :, None] * n + sample[places][:, None, :]
                block.index_add_(0, where.reshape(-1), products.reshape(-1))
                pieces.append((here, places, where))
        square += block.square().sum()
        if gradient is not None:
            for here, places, where in pieces:
                gradient[here.reshape(-1)] = (4 * block[where] @ tokens[places]).reshape(-1, width)
    if gradient is None:
        return square, None
    back = torch.empty_like(tokens[:-1])
    back[order] = gradient[:-1]
    return square, back.reshape(n, k, width)


def _loads(experts: Tensor, num_experts: int, rows: int) -> list[list[int]]:
    """How many tokens each expert has in each block of rows; the only numbers that are read from the device."""
    n = len(experts)
    block = torch.arange(n, device=experts.device)[:, None] // rows
    flat = (block * num_experts + experts).reshape(-1)
    return torch.bincount(flat, minlength=-(-n // rows) * num_experts).reshape(-1, num_experts).tolist()


def _groups(counts: list[int], device: torch.device) -> Iterator[tuple[list[int], Tensor]]:
    """Experts and places [experts, most tokens] of their sorted tokens, group by group; the row of zeros fills up."""
    total, starts = sum(counts), [0]
    for count in counts:
        starts.append(starts[-1] + count)
    by_load: dict[int, list[int]] = {}
    for expert, count in enumerate(counts):
        if count:
            by_load.setdefault(count.bit_length(), []).append(expert)
    for group in by_load.values():
        load = torch.tensor([counts[expert] for expert in group], device=device)[:, None]
        start = torch.tensor([starts[expert] for expert in group], device=device)[:, None]
        place = torch.arange(max(counts[expert] for expert in group), device=device)[None, :]
        yield group, torch.where(place < load, start + place, total)


def _within(sample: Tensor, places: Tensor, empty: int, first: int, end: int, most: int) -> Tensor:
    """The places of samples from `first` to `end` - 1, moved to the front: [experts, most]."""
    inside = (places < empty) & (sample[places] >= first) & (sample[places] < end)
    front = torch.argsort(inside.to(torch.uint8), dim=1, descending=True, stable=True)[:, :most]
    return torch.where(inside.gather(1, front), places.gather(1, front), empty)
