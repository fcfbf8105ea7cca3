"""The SPHERE penalty for PyTorch: how far the Gram matrix of gate-weighted expert features is from a multiple of I.

Values and gradients are those of `sphere.penalty`. All of it is computed in float32 at least, also under autocast.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sphere.torch import blockwise, checks

SMALL = 2**20
"""Entries of a token-by-token matrix up to which it is simply formed: 4 MB in float32. Four times as many on a GPU,
which takes less time for them than for the programs that would be started to have fewer."""


class Mixture(NamedTuple):
    """What one layer of experts did with a batch; `routed_penalty(*mixture)` is its penalty."""

    features: Tensor  # [n, k, width], of the chosen experts, times their gate weights
    experts: Tensor  # [n, k], which experts were chosen
    num_experts: int


class Gram(NamedTuple):
    """What a penalty needs to know of an SPSD matrix A [m, m]."""

    trace: Tensor
    square: Tensor  # ||A||_F^2
    size: int  # m


def anisotropy(gram: Gram) -> Tensor:
    """||A - (tr(A) / m) I||_F^2 = ||A||_F^2 - tr(A)^2 / m: the SPHERE penalty."""
    return torch.addcmul(gram.square, gram.trace, gram.trace, value=-1 / gram.size)


def scale_free(gram: Gram) -> Tensor:
    """||A / (tr(A) / m) - I||_F^2 / m = m ||A||_F^2 / tr(A)^2 - 1; 0 for A = 0.

    It does not change when A is scaled, so its gradient cannot be followed by shrinking the features. A trace below
    1e-12 counts as 0: float32 holds neither its square nor the gradient's third power.
    """
    dead = gram.trace < 1e-12
    trace = torch.where(dead, torch.ones_like(gram.trace), gram.trace)
    value = gram.size * (gram.square / trace / trace) - 1
    return torch.where(dead, torch.zeros_like(value), value)


def gram(phi: Tensor) -> Gram:
    """Of A = phi^T phi / n for phi [n, m], by the smaller of the feature Gram [m, m] and the sample Gram [n, n]."""
    largest = checks.magnitude("phi", checks.shaped("phi", phi, 2, "[samples, features]"))
    with torch.autocast(phi.device.type, enabled=False):
        return _fitting("phi", _dense(checks.wide(phi)), phi.numel() * largest * largest)


def routed_gram(features: Tensor, experts: Tensor, num_experts: int, samples: int | None = None) -> Gram:
    """Of the same A, from the chosen experts alone: row i of phi holds features[i, j] in the block of experts[i, j].

    Memory grows linearly with the number of rows (`sphere.torch.blockwise`). `samples` bounds the work: that many rows,
    drawn at random without replacement, stand for all of them. The value is then that of a smaller batch.
    """
    if samples is not None and samples < 1:
        raise ValueError(f"samples={samples}; wanted at least 1, or None for all rows")
    features = checks.shaped("features", features, 3, "[samples, chosen experts, width]")
    experts = checks.choices("experts", experts, features.shape[:2], num_experts, features.device)
    n, k, width = features.shape
    n = min(n, samples or n)
    drawn = n < len(features)
    size, tokens = num_experts * width, (n * k) ** 2
    dense = size <= n and n * size * size < tokens * width
    small = tokens <= (4 * SMALL if features.is_cuda else SMALL)
    largest = 0.0
    if (drawn or dense or small) and not torch.compiler.is_compiling():  # a plan does it otherwise
        largest, _ = checks.mixture(features, experts, num_experts)
    if drawn:  # not by an index, whose gradient would sort the rows
        rows = torch.randperm(len(features), device=features.device)[:n]
        features, experts = features.index_select(0, rows), experts.index_select(0, rows)
    with torch.autocast(features.device.type, enabled=False):
        if dense:
            found = _dense(spread(checks.wide(features), experts, num_experts))
        elif small:
            found = _of_samples(*_small(checks.wide(features), experts), n, size)
        else:
            plan = blockwise.plan(features, experts, num_experts)
            found, largest = _of_samples(*blockwise.planned_moments(features, experts, plan), n, size), plan.largest
        # k: so many of a row's features may be added, where one expert is named k times
        return _fitting("features", found, k * features.numel() * largest * largest)


def spread(features: Tensor, experts: Tensor, num_experts: int) -> Tensor:
    """phi [n, experts * width]: features by expert, zeros where an expert was not chosen."""
    n, k, width = features.shape
    empty = features.new_zeros(n, num_experts, width)
    return empty.scatter_add(1, experts[:, :, None].expand(n, k, width), features).reshape(n, -1)


def sphere_penalty(phi: Tensor) -> Tensor:
    """||A - (tr(A)/m) I||_F^2 with A = phi^T phi / n, for phi [n samples, m features].

    For a Mixture of Experts phi holds, side by side, the features of every expert times its gate weight, zeros for an
    expert that was not chosen; for a dense network, the last hidden features. Zero features have penalty 0. Features
    beyond about 1e9, whose penalty float32 cannot hold, are refused (inside `torch.compile` it is infinite or NaN).
    """
    return anisotropy(gram(phi))


def routed_penalty(features: Tensor, experts: Tensor, num_experts: int, samples: int | None = None) -> Tensor:
    """The same penalty from the chosen experts alone, in memory linear in the number of rows.

    `features[i, j]` are the features of row i's j-th chosen expert times its gate weight, `experts[i, j]` says which
    expert that is. `samples`: use that many rows, drawn at random.
    """
    return anisotropy(routed_gram(features, experts, num_experts, samples))


def _fitting(name: str, gram: Gram, most: float) -> Gram:
    """Of features beyond about 1e9 the squares of A, their fourth powers, are no numbers of float32. No trace exceeds
    `most` and no sum of squares its square: where that fits nothing is computed, and no GPU is waited for."""
    if most * most < torch.finfo(gram.square.dtype).max / 2:
        return gram
    largest = torch.maximum(gram.square.detach(), gram.trace.detach() ** 2)
    if not bool(torch.isfinite(largest)):
        raise ValueError(
            f"{name} is too large: the squares of its Gram matrix do not fit into {gram.square.dtype} (up to about "
            "1e9 they do in float32); divide it by a constant, or look for a network that diverged"
        )
    return gram


def _dense(phi: Tensor) -> Gram:
    n, m = phi.shape
    a = (phi.T @ phi if m <= n else phi @ phi.T) / n
    return Gram(a.diagonal().sum(), (a * a).sum(), m)


def _of_samples(trace: Tensor, square: Tensor, n: int, size: int) -> Gram:
    """From tr(S) and ||S||_F^2 of S = phi phi^T."""
    return Gram(trace / n, square / n**2, size)


def _small(features: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
    """tr(S) and ||S||_F^2 of S = phi phi^T, with all products of tokens at once."""
    n, k, width = features.shape
    tokens, owner = features.reshape(n * k, width), experts.reshape(n * k)
    products = (tokens @ tokens.T).masked_fill(owner[:, None] != owner, 0)
    s = products.reshape(n, k, n, k).sum(dim=(1, 3))
    return s.diagonal().sum(), s.square().sum()
