"""`penalised_backward`: what `loss.backward()` does, with the penalty's gradient added at a strength that rho sets."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sphere.torch import checks, ranks
from sphere.torch import coefficient as strengths

KNOWN = ("gradient-norm", "loss-ratio", "fixed")


class Penalised(NamedTuple):
    """Values before the step. Where the penalty is a tuple of terms, so are penalty, coefficient and felt."""

    loss: Tensor
    penalty: Any
    coefficient: Any  # lambda in loss + lambda * penalty
    felt: Any  # length of what was added over length of the task's gradient; NaN where that was not measured


def penalised_backward(
    loss: Tensor,
    penalty: Tensor | Sequence[Tensor],
    params: Iterable[Tensor],
    rho: float | Sequence[float],
    coefficient: str = "gradient-norm",
    *,
    floor: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    ddp: Any = None,
) -> Penalised:
    """Adds the gradient of loss + lambda * penalty to `.grad`, as `loss.backward()` does; lambda follows rho:

    - `gradient-norm` (the paper's default): lambda = rho * ||grad loss|| / ||grad penalty||, lengths over `params`. Two
      backward passes. `floor` says what happens to short gradients, see `sphere.torch.coefficient.strength`.
    - `loss-ratio`: lambda = rho * |loss| / (penalty + 1e-8), and `fixed`: lambda = rho. One backward pass; felt is NaN.

    The penalty is added to the gradients of `params`; other parameters that the loss reaches get the loss's gradient.
    What `.grad` held before stays (accumulation): each call sets lambda by its own batch. Clip afterwards. A tuple of
    penalties has a lambda each, and may have a rho each. With a `scaler` gradients are scaled: continue with
    `scaler.unscale_(optimiser)`.

    With several processes say whose gradients are averaged: `ddp=model`, its DistributedDataParallel wrapper, makes
    both gradients averages over processes (inside `no_sync` neither is); `ddp=False` if processes have models of their
    own. For parameters sharded by `fully_shard` both are averages, by hooks of their own; take `params` before the
    forward pass.
    """
    terms = tuple(penalty) if isinstance(penalty, tuple | list) else (penalty,)
    rhos = strengths.check(rho, floor, coefficient, KNOWN, len(terms))
    values = _values(loss, terms)
    weights = trainable(params)
    scale = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0
    several = isinstance(penalty, tuple | list)
    if not any(rhos) or coefficient != "gradient-norm":
        bases = [1.0 if coefficient != "loss-ratio" else abs(values[0]) / (max(v, 0) + 1e-8) for v in values[1:]]
        lambdas = [ratio * base if ratio else 0.0 for ratio, base in zip(rhos, bases, strict=True)]
        total = loss
        for weight, term in zip(lambdas, terms, strict=True):
            total = torch.add(total, term, alpha=weight) if weight else total
        (total if scaler is None else scaler.scale(total)).backward()
        return _result(loss, terms, lambdas, [float("nan") if weight else 0.0 for weight in lambdas], several)
    group = ranks.averaging(weights, ddp)
    sharded = ranks.sharded(weights)
    before = [w.grad if w.grad is None or group is None else w.grad.clone() for w in weights]
    try:
        added = [_gradient(term, weights, scale, loss if sharded else None) for term in terms]
        if group is not None:
            for gradients in added:
                ranks.average(gradients, weights, group)
        for w in weights:
            if group is None:  # else leave it in place: DDP averages what was accumulated too
                w.grad = None
        kept = ranks.averaged_copy(before, group) if group is not None else None
        (loss if scaler is None else scaler.scale(loss)).backward()
        task = [w.grad for w in weights] if kept is None else ranks.minus([w.grad for w in weights], kept)
        lambdas, felt = combine(task, added, weights, rhos, floor, scale, sharded, scaler is None)
    except BaseException:
        for w, g in zip(weights, before, strict=True):
            w.grad = g  # nothing half-written
        raise
    for w, g in zip(weights, before, strict=True):
        if kept is None and g is not None:
            w.grad = g if w.grad is None else g.add_(w.grad)
    return _result(loss, terms, lambdas, felt, several)


def combine(
    task: Sequence[Tensor | None],
    added: Sequence[Sequence[Tensor | None]],
    weights: Sequence[Tensor],
    rhos: Sequence[float],
    floor: float | None,
    scale: float,
    sharded: bool,
    raise_for_nan: bool,
) -> tuple[list[float], list[float]]:
    """Adds lambda times each penalty's gradient to `.grad`; the lambdas, and their effect beside the task's
    gradient."""
    if all(g is None for g in task):
        raise ValueError("the loss reaches none of the parameters; pass those of the model that made it")
    lengths = [ranks.length(gradients, sharded) for gradients in (task, *added)]
    size, *sizes = (one / scale for one in torch.stack([one.to(lengths[0].device) for one in lengths]).tolist())
    if raise_for_nan and not all(map(math.isfinite, (size, *sizes))):
        what = "loss" if not math.isfinite(size) else "penalty"
        raise ValueError(
            f"the gradient of the {what} holds NaN or infinite numbers; .grad was left as it was; "
            "look for a square root or a division at zero, or use a GradScaler for half precision"
        )
    lambdas, felt = [], []
    for rho, gradients, length in zip(rhos, added, sizes, strict=True):
        lambdas.append(strengths.strength(size, length, rho, floor))
        felt.append(abs(lambdas[-1]) * length / size if size != 0 else (float("inf") if length > 0 else 0.0))
        strengths.warn_if_far(rho, felt[-1], size, length, floor)
        if rho:
            add(weights, gradients, lambdas[-1])
    return lambdas, felt


@torch.no_grad()
def add(weights: Sequence[Tensor], gradients: Sequence[Tensor | None], factor: float) -> None:
    """factor * gradient into `.grad`, in its type. In half precision the sum is rounded, not the factor."""
    alike: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}  # one program adds to many tensors of a type
    for w, g in zip(weights, gradients, strict=True):
        if g is not None and w.grad is None:
            w.grad = (checks.wide(g) * factor).to(w.dtype)
        elif g is not None:
            sums, changes = alike.setdefault((type(w.grad), w.dtype, w.device), ([], []))
            sums.append(w.grad)
            changes.append(checks.wide(g))
    for sums, changes in alike.values():
        torch._foreach_add_(sums, changes, alpha=factor)


def gradient(term: Tensor, weights: Sequence[Tensor], scale: float = 1.0) -> list[Tensor | None]:
    """Of the penalty, by every parameter; the graph stays for the loss."""
    with _twice():
        found = torch.autograd.grad(
            term, weights, torch.full_like(term, scale), retain_graph=True, allow_unused=True, materialize_grads=False
        )
    if all(g is None for g in found):
        raise ValueError("the penalty reaches none of the parameters; pass those of the model that made the features")
    return list(found)


def _gradient(term: Tensor, weights: Sequence[Tensor], scale: float, loss: Tensor | None) -> list[Tensor | None]:
    if loss is None:
        return gradient(term, weights, scale)
    for w in weights:  # only their own hooks bring gradients of shards together, and they write to .grad
        w.grad = None
    total = term + 0 * loss  # the hooks sit at the outputs of modules, which features may not have gone through
    with _twice():
        total.backward(torch.full_like(total, scale), retain_graph=True)
    return [w.grad for w in weights]


@contextmanager
def _twice() -> Iterator[None]:
    """What `torch.compile` made may use the memory of the forward pass for the first backward pass, and refuses two."""
    try:
        yield
    except RuntimeError as error:
        if "donated_buffer" not in str(error):
            raise
        raise RuntimeError(
            "torch.compile keeps a forward pass for one backward pass, and coefficient='gradient-norm' takes two; "
            "write `import torch._functorch.config; torch._functorch.config.donated_buffer = False` before the first "
            "forward pass, or pass coefficient='fixed'"
        ) from error


def _values(loss: Tensor, terms: Sequence[Tensor]) -> list[float]:
    """Of loss and penalties, as numbers."""
    named = [("loss", loss), *(("penalty", term) for term in terms)]
    if not terms:
        raise ValueError("the penalty has no terms; pass at least one")
    for name, value in named:
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}, wanted a tensor with one number")
        if value.numel() != 1:
            raise ValueError(f"{name} has shape {tuple(value.shape)}, wanted one number; take its mean")
        if not value.requires_grad:
            raise ValueError(
                f"{name} has no gradient; were the features or outputs detached, or made under no_grad "
                "(rollouts, reentrant gradient checkpointing)?"
            )
        if value.device != loss.device:
            raise ValueError(f"penalty is on {value.device} and loss on {loss.device}, wanted one device; move one")
    with torch.autocast(loss.device.type, enabled=False):
        found = torch.stack([value.detach().reshape(()) for _, value in named]).tolist()
    for (name, _), value in zip(named, found, strict=True):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{name} is {value}, wanted a finite number; .grad was left as it was")
    return found


def trainable(params: Iterable[Tensor]) -> list[Tensor]:
    if isinstance(params, Tensor):
        raise TypeError("params is one tensor, wanted a list of parameters; pass model.parameters()")
    weights = [w for w in params if w.requires_grad]
    if not weights:
        raise ValueError("params holds no parameters that require gradients; pass model.parameters() of a new iterator")
    if not all(w.is_leaf for w in weights):
        raise ValueError("params holds tensors that are results of others, wanted parameters; pass model.parameters()")
    if len({id(w) for w in weights}) < len(weights):
        raise ValueError("params holds a parameter twice, wanted each once; pass list(set(params))")
    return weights


def _result(
    loss: Tensor, terms: Sequence[Tensor], lambdas: Sequence[float], felt: Sequence[float], several: bool
) -> Penalised:
    kind: Any = {"dtype": torch.promote_types(loss.dtype, torch.float32), "device": loss.device}
    columns = [[term.detach() for term in terms], *([torch.full((), v, **kind) for v in c] for c in (lambdas, felt))]
    return Penalised(loss.detach(), *(tuple(column) if several else column[0] for column in columns))
