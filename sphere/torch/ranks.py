"""Several processes: which gradients are averages over them, and lengths of gradients that are spread over them."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from sphere.torch.coefficient import length as local_length

Gradients = Sequence[Tensor | None]


def sharded(weights: Sequence[Tensor]) -> bool:
    """Whether parameters are spread over processes, as `torch.distributed.fsdp.fully_shard` does."""
    return any(_is_shard(w) for w in weights)


def averaging(weights: Sequence[Tensor], ddp: Any) -> Any:
    """The group over which the penalty's gradient is averaged now; None: over no group."""
    if isinstance(ddp, DistributedDataParallel):
        return ddp.process_group if ddp.require_backward_grad_sync else None
    if ddp is not None and ddp is not False:
        raise TypeError(f"ddp is a {type(ddp).__name__}, wanted the DistributedDataParallel wrapper, False or None")
    running = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if ddp is None and running and not sharded(weights):
        raise ValueError(
            f"{dist.get_world_size()} processes run and ddp was not given: replicas would drift apart; pass ddp=model, "
            "its DistributedDataParallel wrapper, or ddp=False if processes have models of their own; for fully_shard "
            "take params = list(model.parameters()) before the forward pass, which puts whole ones in their place"
        )
    return None


def average(gradients: list[Tensor | None], weights: Sequence[Tensor], group: Any) -> None:
    """Every gradient becomes its mean over the processes, in place; all processes must come here. A parameter that the
    penalty reaches on some of them only counts as zero on the others."""
    for i, w in enumerate(weights):
        found = gradients[i]
        g = (torch.zeros_like(w) if found is None else found.contiguous()) / dist.get_world_size(group)
        dist.all_reduce(g, group=group)
        gradients[i] = g


def averaged_copy(gradients: Gradients, group: Any) -> list[Tensor | None]:
    """What DistributedDataParallel will have made of gradients that were there before the backward pass."""
    copies: list[Tensor | None] = []
    for g in gradients:
        copy = None if g is None else g.detach() / dist.get_world_size(group)
        if copy is not None:
            dist.all_reduce(copy, group=group)
        copies.append(copy)
    return copies


def minus(gradients: Gradients, others: Gradients) -> list[Tensor | None]:
    """Entry by entry; None counts as zero."""
    pairs = zip(gradients, others, strict=True)
    return [g if g is None or other is None else g - other for g, other in pairs]


def length(gradients: Gradients, shards: bool) -> Tensor:
    """Euclidean norm over all entries, on all processes if they are spread over them."""
    if not shards:
        return local_length(gradients)
    square = torch.zeros((), dtype=torch.float64)
    for g in gradients:
        if g is not None:
            full = g.norm(dtype=torch.float64) if not _is_shard(g) else g.double().norm().full_tensor()
            square += full.detach().cpu() ** 2
    return square.sqrt()


def _is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")
