"""The networks of the streams in PyTorch, on the parameters of ours, as one would write them there: whole batches,
PyTorch's own attention, experts one after the other on the tokens that chose them. And a task's training and
evaluation, for one seed."""

import math
from typing import Any

import jax
import numpy as np
import torch
from torch.nn import functional as F

ACTIVATIONS: dict[str, Any] = {"relu": F.relu, "gelu": F.gelu}


def as_torch(net: Any) -> tuple[list[torch.Tensor], Any]:
    """Tensors to be learned, and the network of them: the same fields, other arrays. Gate temperatures are not."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(net)
    made, learned = [], []
    for path, leaf in leaves:
        trained = "temperature" not in jax.tree_util.keystr(path)
        made.append(torch.tensor(np.asarray(leaf), requires_grad=trained))
        learned += [made[-1]] if trained else []
    return learned, jax.tree.unflatten(structure, made)


def linear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    y = x @ layer.kernel
    return y if layer.bias is None else y + layer.bias


def norm(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], layer.scale, layer.bias, eps=1e-6)


def gate_logits(gate: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in getattr(gate, "hidden", ()):
        x = ACTIVATIONS[gate.activation](linear(layer, x))
    return linear(gate.head, x)


def mixture(moe: Any, x: torch.Tensor) -> torch.Tensor:
    """Top-K of rows [n, width]: each expert on its own rows, added to where they came from."""
    logits = gate_logits(moe.router.gate, x) / moe.router.temperature
    best, chosen = torch.topk(logits, moe.router.top_k)
    weight = torch.softmax(logits, 1).gather(1, chosen) if moe.router.softmax == "all" else torch.softmax(best, 1)
    layers = [*moe.experts.hidden, moe.experts.head]
    kernels, biases = ([getattr(layer, name).unbind() for layer in layers] for name in ("kernel", "bias"))
    act = ACTIVATIONS[moe.experts.activation]
    out = x.new_zeros(len(x), layers[-1].kernel.shape[-1])
    for e in range(moe.experts.head.kernel.shape[0]):
        row, slot = torch.where(chosen == e)
        if len(row):
            h = x[row]
            for i in range(len(layers)):
                h = torch.addmm(biases[i][e], h, kernels[i][e])
                h = act(h) if i + 1 < len(layers) else h
            out = out.index_add(0, row, weight[row, slot, None] * h)
    return out


def attention(layer: Any, h: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    n, tokens, width = h.shape
    q, k, v = (
        linear(one, h).reshape(n, tokens, layer.heads, -1).transpose(1, 2)
        for one in (layer.query, layer.key, layer.value)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return linear(layer.output, mixed.transpose(1, 2).reshape(n, tokens, width))


def text_logits(net: Any, ids: torch.Tensor) -> torch.Tensor:
    """Of texts [n, tokens], 0 for padding: it is neither attended to, nor routed, nor pooled."""
    real = ids != 0
    longest = int(real.sum(1).max())  # as a collate function pads
    ids, real = ids[:, :longest], real[:, :longest]
    h = F.embedding(ids, net.embed.words.table) + net.positions.table[:longest]
    for block in net.blocks:
        h = h + attention(block.attention, norm(block.attention_norm, h), real[:, None, None, :])
        rows = mixture(block.mixture, norm(block.mixture_norm, h)[real])
        h = h.index_put((real,), rows, accumulate=True)
    pooled = (norm(net.norm, h) * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)
    return linear(net.head, pooled)


def logits(net: Any, x: torch.Tensor) -> torch.Tensor:
    return text_logits(net, x.long()) if hasattr(net, "blocks") else mixture(net, x)


class Loop:
    """One seed: what a PyTorch user would write around the network."""

    def __init__(self, net: Any, rate: float, weight_decay: float):
        learned, self.net = as_torch(net)
        self.optimiser = torch.optim.AdamW(learned, lr=rate, weight_decay=weight_decay, fused=True)

    def train(self, obs: torch.Tensor, label: torch.Tensor, allowed: torch.Tensor, batch: int) -> float:
        """One epoch over a task; the last loss."""
        loss = torch.tensor(math.nan)
        for x, y in zip(obs.split(batch), label.split(batch), strict=True):
            self.optimiser.zero_grad()
            loss = F.cross_entropy(logits(self.net, x).masked_fill(~allowed, -math.inf), y)
            loss.backward()
            self.optimiser.step()
        return loss.item()

    @torch.no_grad()
    def accuracy(self, obs: torch.Tensor, label: torch.Tensor, allowed: torch.Tensor, batch: int) -> float:
        """Within the classes of the task."""
        found = torch.cat([logits(self.net, x) for x in obs.split(batch)]).masked_fill(~allowed, -math.inf)
        return (found.argmax(1) == label).float().mean().item()
