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
    return planned_moments(features, experts, plan(features, experts, num_experts, entries))


class Plan(NamedTuple):
    """Which tokens are multiplied together; all that is read from the device, and checked, in one wait."""

    order: Tensor  # [n * k], the tokens by expert, then by sample
    starts: Tensor  # [experts, blocks + 1], where each expert's tokens of a block of rows begin, and where they end
    known: list[list[int]]  # the same
    rows: int  # of a block
    largest: float  # absolute value of a feature


@torch.no_grad()
def plan(features: Tensor, experts: Tensor, num_experts: int, entries: int | None = None) -> Plan:
    """For about `entries` products at a time."""
    if entries is None:
        entries = GPU_ENTRIES if features.is_cuda else ENTRIES
    n, k, _ = features.shape
    rows = max(1, min(n, entries // (2 * n * k)))
    blocks = -(-n // rows)
    span, device = blocks * rows, experts.device
    keys = torch.add(torch.arange(n, device=device)[:, None], experts, alpha=span)  # expert * span + sample
    keys, order = keys.reshape(-1).sort()
    edges = torch.searchsorted(keys, torch.arange(0, num_experts * span + 1, rows, device=device))
    largest, read = checks.mixture(features, experts, num_experts, edges)
    known = [read[expert * blocks : (expert + 1) * blocks + 1] for expert in range(num_experts)]
    return Plan(order, edges.unfold(0, blocks + 1, blocks), known, rows, largest)


def planned_moments(features: Tensor, experts: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """`routed_moments` by a plan for these experts."""
    return _RoutedMoments.apply(features, experts, plan)


class _RoutedMoments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, experts: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        found = features.detach() if stays_half(features) else checks.wide(features.detach())
        trace, square, gradient = _moments(found, plan, ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(features, experts, gradient)
        return trace, square

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_trace: Tensor, by_square: Tensor) -> tuple[Tensor | None, ...]:
        features, experts, gradient = ctx.saved_tensors
        n, k, _ = features.shape
        with torch.autocast(features.device.type, enabled=False):
            # an expert that is named twice in a row counts with the sum
            same = torch.eq(experts[:, :, None], experts[:, None, :], out=features.new_empty(n, k, k))
            change = product(same, features).mul_(2 * by_trace)
            total = torch.addcmul(change, gradient, by_square, value=4, out=torch.empty_like(features))
            return total, None, None


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
    low = torch.sub(weights, high, out=torch.empty_like(high))
    return product(high, tokens).add_(product(low, tokens))


class _Slots(NamedTuple):
    """Tokens of some experts, each from its first place on; behind the last of them zeros."""

    token: Tensor  # [experts, places]; the number of all tokens: none
    sample: Tensor  # [experts, places]; where there is none that of another, lest all zeros be added to one number
    features: Tensor  # [experts, places, width]


def _moments(features: Tensor, plan: Plan, differentiate: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """tr(S), ||S||^2 and a quarter of the gradient of the latter."""
    n, k, width = features.shape
    tokens = features.reshape(n * k, width)
    order, starts, known, rows, _ = plan

    def slots(group: Tensor | None, first: int, last: int, number: int) -> _Slots:
        start, end = (starts[:, i] if group is None else starts[group, i] for i in (first, last))
        return _slots(tokens, order, k, start[:, None], end[:, None], _even(number, tokens))

    blocks = len(known[0]) - 1
    groups = []
    for group in _groups([load[-1] - load[0] for load in known]):
        chosen = None if len(group) == len(known) else torch.tensor(group).to(features.device, non_blocking=True)
        most = max(known[expert][-1] - known[expert][0] for expert in group)
        groups.append((group, chosen, slots(chosen, 0, blocks, most)))
    kind = {"dtype": torch.promote_types(features.dtype, torch.float32), "device": features.device}
    traces, squares = [], []
    gradient = torch.empty(n * k + 1, width, **kind) if differentiate else None  # the last row is for empty places
    for i in range(blocks):
        block, pieces = torch.zeros(rows * n, **kind), []
        for group, chosen, every in groups:
            most = max(known[expert][i + 1] - known[expert][i] for expert in group)
            if most:
                here = every if blocks == 1 else slots(chosen, i, i + 1, most)
                row = here.sample if blocks == 1 else here.sample % rows
                where = torch.add(every.sample[:, None, :], row[:, :, None], alpha=n)
                block.index_add_(0, where.reshape(-1), product(here.features, every.features.mT).reshape(-1))
                pieces.append((here.token, where, every.features))
        traces.append(block.reshape(rows, n)[:, i * rows :].diagonal().sum())
        squares.append(block.square().sum())
        if gradient is not None:
            for token, where, inner in pieces:
                weights = block.index_select(0, where.reshape(-1)).reshape(where.shape)
                gradient.index_copy_(0, token.reshape(-1), weighted(weights, inner).reshape(-1, width))
    trace, square = (sum(parts[1:], parts[0]) for parts in (traces, squares))
    return trace, square, None if gradient is None else gradient[:-1].reshape(n, k, width)


def _slots(tokens: Tensor, order: Tensor, k: int, start: Tensor, end: Tensor, number: int) -> _Slots:
    """Places `start` to `end` - 1 of the sorted tokens, and behind them those of others, for their samples alone."""
    place = start + torch.arange(number, device=tokens.device)
    empty, token = place >= end, order[place % len(order)]
    features = tokens[token].masked_fill_(empty[:, :, None], 0)
    return _Slots(token.masked_fill(empty, len(order)), (token // k).int(), features)


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
