"""tr(A) and ||A||_F^2 of routed tokens in memory linear in their number, exact: blocks of rows, expert by expert.

Row i of phi holds features[i, j] in the block of experts[i, j]. S = phi phi^T [n, n] is made a block of rows at a time
and forgotten: as d||S||^2 / d features[i, j] = 4 sum over tokens (i', j') of the same expert of S_ii' features[i', j'],
the gradient of a block's tokens is known as soon as its rows are. It is kept for the backward pass, as large as the
features. Two products in all, each of them one for many experts: on a GPU starting a program takes longer than most of
them run, so there are few, and one number of the device is waited for.

Experts are multiplied together with zeros in the empty places: all of them where that costs at most three times the
products, else groups in which none has more than twice the tokens of another.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sphere.torch import checks

ENTRIES = 2**22
"""How many products are held at a time, about: 16 MB in float32."""

GPU_ENTRIES = 2**26
"""The same on a GPU: 256 MB in the worst case, 60 MB with eight experts. All of 4,096 rows with two experts each."""


def routed_moments(
    features: Tensor, experts: Tensor, num_experts: int, entries: int | None = None
) -> tuple[Tensor, Tensor]:
    """tr(S) and sum over i, i' of S_ii'^2, in float32 at least. They can be differentiated once."""
    if entries is None:
        entries = GPU_ENTRIES if features.is_cuda else ENTRIES
    return _RoutedMoments.apply(features, experts, num_experts, entries)


class _RoutedMoments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, experts: Tensor, num_experts: int, entries: int) -> tuple[Tensor, Tensor]:
        found = features.detach() if stays_half(features) else checks.wide(features.detach())
        trace, square, gradient = _moments(found, experts, num_experts, entries, ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(features, experts, gradient)
        return trace, square

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_trace: Tensor, by_square: Tensor) -> tuple[Tensor | None, ...]:
        features, experts, gradient = ctx.saved_tensors
        with torch.autocast(features.device.type, enabled=False):
            # an expert that is named twice in a row counts with the sum
            same = (experts[:, :, None] == experts[:, None, :]).to(features.dtype)
            change = product(same, features) * (2 * by_trace)
            return torch.addcmul(change, gradient, 4 * by_square).to(features.dtype), None, None, None


def stays_half(features: Tensor) -> bool:
    """Whether a product takes bfloat16 and gives float32, on the fast units of a GPU and without an error: products of
    two such numbers are numbers of float32. Since PyTorch 2.8, on CUDA alone."""
    return features.dtype == torch.bfloat16 and features.is_cuda and hasattr(torch.ops.aten.bmm, "dtype")


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b for every expert, sums in float32 at least."""
    if stays_half(a):
        return torch.bmm(a, b, out_dtype=torch.float32)
    return checks.wide(a) @ checks.wide(b)


def weighted(weights: Tensor, tokens: Tensor) -> Tensor:
    """weights tokens, weights in float32. For tokens in bfloat16 they are split in two: 16 of their 24 digits, twice
    as many as the gradient will have."""
    if tokens.dtype != torch.bfloat16:
        return weights @ tokens
    high = weights.bfloat16()
    return product(high, tokens).add_(product((weights - high).bfloat16(), tokens))


class _Slots(NamedTuple):
    """Tokens of some experts, each from its first place on; behind the last of them zeros."""

    token: Tensor  # [experts, places]; the number of all tokens: none
    sample: Tensor  # [experts, places]; where there is none any, lest all zeros be added to one number, in turn
    features: Tensor  # [experts, places, width]


def _moments(
    features: Tensor, experts: Tensor, num_experts: int, entries: int, differentiate: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """tr(S), ||S||^2 and a quarter of the gradient of the latter."""
    n, k, width = features.shape
    rows = max(1, min(n, entries // (2 * n * k)))
    tokens = features.reshape(n * k, width)
    owner, order = experts.reshape(-1).sort(stable=True)  # by expert, then by sample
    starts = _starts(owner * n + order // k, n, rows, num_experts)
    known = starts.tolist()  # the only numbers that are read from the device

    def slots(group: Tensor | None, block: slice, number: int) -> _Slots:
        start, end = (starts[:, i] if group is None else starts[group, i] for i in (block.start, block.stop))
        first, size = block.start * rows, min(n, (block.stop - block.start) * rows)
        return _slots(tokens, order, k, start[:, None], end[:, None], _even(number, tokens), first, size)

    blocks = len(known[0]) - 1
    groups = []
    for group in _groups([load[-1] - load[0] for load in known]):
        chosen = None if len(group) == num_experts else torch.tensor(group, device=features.device)
        most = max(known[expert][-1] - known[expert][0] for expert in group)
        groups.append((group, chosen, slots(chosen, slice(0, blocks), most)))
    kind = {"dtype": torch.promote_types(features.dtype, torch.float32), "device": features.device}
    trace, square = torch.zeros((), **kind), torch.zeros((), **kind)
    gradient = torch.empty(n * k + 1, width, **kind) if differentiate else None  # the last row is for empty places
    for i in range(blocks):
        block, pieces = torch.zeros(rows * n, **kind), []
        for group, chosen, every in groups:
            most = max(known[expert][i + 1] - known[expert][i] for expert in group)
            if most:
                here = every if blocks == 1 else slots(chosen, slice(i, i + 1), most)
                where = here.sample[:, :, None] * n + every.sample[:, None, :]
                block.index_add_(0, where.reshape(-1), product(here.features, every.features.mT).reshape(-1))
                pieces.append((here.token, where, every.features))
        trace += block.reshape(rows, n)[:, i * rows :].diagonal().sum()
        square += block.square().sum()
        if gradient is not None:
            for token, where, inner in pieces:
                weights = block.index_select(0, where.reshape(-1)).reshape(where.shape)
                gradient.index_copy_(0, token.reshape(-1), weighted(weights, inner).reshape(-1, width))
    return trace, square, None if gradient is None else gradient[:-1].reshape(n, k, width)


def _starts(keys: Tensor, n: int, rows: int, num_experts: int) -> Tensor:
    """Where each expert's tokens of each block of rows begin, and where the last end: [experts, blocks + 1]."""
    edges = torch.arange(0, n + rows, rows, device=keys.device).clamp(max=n)
    return torch.searchsorted(keys, torch.arange(num_experts, device=keys.device)[:, None] * n + edges)


def _slots(
    tokens: Tensor, order: Tensor, k: int, start: Tensor, end: Tensor, number: int, first: int, size: int
) -> _Slots:
    """Places `start` to `end` - 1 of the sorted tokens; samples are counted from `first`."""
    place = torch.arange(number, device=tokens.device)
    filled = start + place < end
    token = order[(start + place).clamp(max=len(order) - 1)]
    sample = torch.where(filled, token // k - first, place % size).int()
    return _Slots(torch.where(filled, token, len(order)), sample, tokens[token].mul_(filled[:, :, None]))


def _even(number: int, tokens: Tensor) -> int:
    """Fast units want rows of whole 16 bytes."""
    return -(-number // 16) * 16 if tokens.dtype == torch.bfloat16 else number


def _groups(counts: list[int]) -> Iterator[list[int]]:
    """Experts that are multiplied together."""
    if len(counts) * max(counts) ** 2 <= 3 * sum(count**2 for count in counts):
        yield list(range(len(counts)))
        return
    by_load: dict[int, list[int]] = {}
    for expert, count in enumerate(counts):
        if count:
            by_load.setdefault(count.bit_length(), []).append(expert)
    yield from by_load.values()
