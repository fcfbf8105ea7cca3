"""Small Transformers, and a plain statement of one in PyTorch, token by token and expert by expert."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sphere.nets import NetConfig, Transformer, TransformerConfig, build

try:
    import torch
except ImportError:
    torch = None
"""None: not installed, and a test that calls `as_torch` is skipped."""

LENGTH, VOCABULARY, CLASSES, EXPERTS = 6, 11, 4, 3
PIXELS = 3 * 8 * 8


def config(
    top_k: int = 2, softmax: str = "chosen", layers: int = 1, norm: str = "before", masked: bool = True, **settings
) -> NetConfig:
    encoder = TransformerConfig(layers, 2, 8, 4, softmax, norm, masked)
    small = {"width": 10, "depth": 1, "activation": "gelu", "experts": EXPERTS, "top_k": top_k, "transformer": encoder}
    return NetConfig(**(small | settings))


def filled(net, seed: int = 0):
    """Every leaf moved, biases and LayerNorm too, so that each counts."""
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        return leaf if "temperature" in name else jnp.asarray(leaf + 0.2 * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, net)


def text_net(top_k: int = 2, softmax: str = "chosen", seed: int = 0, **settings) -> Transformer:
    made = build(config(top_k, softmax, **settings), LENGTH, CLASSES, key=jax.random.key(seed), vocabulary=VOCABULARY)
    return filled(made)


def image_net(top_k: int = 2, softmax: str = "chosen", seed: int = 0, **settings) -> Transformer:
    return filled(build(config(top_k, softmax, **settings), PIXELS, CLASSES, key=jax.random.key(seed)))


def texts(n: int = 5, seed: int = 1) -> np.ndarray:
    """Of different lengths; a word comes in several of them."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, VOCABULARY, size=(n, LENGTH))
    for row, length in zip(ids, rng.permutation(np.arange(n) % LENGTH) + 1, strict=True):
        row[length:] = 0
    return ids.astype(np.float32)  # observations are real numbers, ids too


def images(n: int = 5, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, PIXELS)).astype(np.float32)


# PyTorch, from the definition
# --------------------------------------------------------------------------------------------


def as_torch(net, dtype="float32"):
    """All arrays of a network as tensors that gradients are taken by, in the order of its leaves, and the network of
    them."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    leaves, structure = jax.tree.flatten(net)
    kind = getattr(torch, dtype)
    tensors = [torch.tensor(np.asarray(leaf), dtype=kind, requires_grad=True) for leaf in leaves]
    return tensors, jax.tree.unflatten(structure, tensors)


def linear(layer, x):
    y = x @ layer.kernel
    return y if layer.bias is None else y + layer.bias


def norm(layer, x):
    mean, variance = x.mean(), x.var(unbiased=False)
    return layer.scale * (x - mean) / torch.sqrt(variance + 1e-6) + layer.bias


def mixture(moe, x):
    """Of one token: the output and what it adds to Phi."""
    logits = x @ moe.router.gate.head.kernel / moe.router.temperature.detach()
    best = sorted(range(len(logits)), key=lambda e: (-logits[e].item(), e))[: moe.router.top_k]
    every = torch.softmax(logits, 0)
    weights = every[best] if moe.router.softmax == "all" else torch.softmax(logits[best], 0)
    out, phi = 0, [torch.zeros(moe.experts.head.kernel.shape[1], dtype=x.dtype) for _ in logits]
    for e, weight in zip(best, weights, strict=True):
        first = moe.experts.hidden[0]
        hidden = torch.nn.functional.gelu(x @ first.kernel[e] + first.bias[e])
        out = out + weight * (hidden @ moe.experts.head.kernel[e] + moe.experts.head.bias[e])
        phi[e] = weight * hidden
    return out, torch.cat(phi)


def attend(layer, rows):
    """Of the tokens of one sample."""
    width = len(rows[0]) // layer.heads
    q, k, v = ([linear(one, row) for row in rows] for one in (layer.query, layer.key, layer.value))
    found = []
    for i in range(len(rows)):
        heads = []
        for h in range(layer.heads):
            part = slice(h * width, (h + 1) * width)
            scores = torch.stack([q[i][part] @ other[part] for other in k]) / math.sqrt(width)
            weights = torch.softmax(scores, 0)
            heads.append(sum(w * other[part] for w, other in zip(weights, v, strict=True)))
        found.append(linear(layer.output, torch.cat(heads)))
    return found


def embedded(net, sample):
    """Tokens of one sample without its padding."""
    if hasattr(net.embed, "words"):
        rows = [net.embed.words.table[int(i)] for i in sample if i != 0]
    else:
        side, patch = net.embed.side, net.embed.patch
        image = torch.tensor(np.asarray(sample), dtype=net.head.kernel.dtype).reshape(side, side, 3)
        corners = [(y, x) for y in range(0, side, patch) for x in range(0, side, patch)]
        squares = [image[y : y + patch, x : x + patch].reshape(-1) for y, x in corners]
        rows = [linear(net.embed.linear, square) for square in squares]
    return [row + net.positions.table[i] for i, row in enumerate(rows)]


def forward(net, x):
    """Outputs [n, classes], and for each mixture the rows of Phi."""
    outputs, phis = [], [[] for _ in net.blocks]
    for sample in x:
        rows = embedded(net, sample)
        for block, phi in zip(net.blocks, phis, strict=True):
            one, two = block.attention_norm, block.mixture_norm
            pre = net.norm is not None  # pre-LN has one more behind its last block
            more = attend(block.attention, [norm(one, row) for row in rows] if pre else rows)
            rows = [row + new if pre else norm(one, row + new) for row, new in zip(rows, more, strict=True)]
            pairs = [mixture(block.mixture, norm(two, row) if pre else row) for row in rows]
            rows = [row + out if pre else norm(two, row + out) for row, (out, _) in zip(rows, pairs, strict=True)]
            phi += [one for _, one in pairs]
        rows = rows if net.norm is None else [norm(net.norm, row) for row in rows]
        outputs.append(linear(net.head, sum(rows) / len(rows)))
    return torch.stack(outputs), [torch.stack(phi) for phi in phis]
