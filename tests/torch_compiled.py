"""Models and penalties under `torch.compile` and without: `python torch_compiled.py` prints how far they are apart.

A process of its own, since PyTorch's compiler cannot read through the type checks of the tests.
"""

import functools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch._functorch.config
from torch_mixtures import random_mixture

import sphere.torch as st

compiled = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
"""All of it becomes one graph; what PyTorch then makes of the graph is not ours."""


class Net(torch.nn.Module):
    """Top-2 of 8, which returns its features."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(4, 8)
        self.up = torch.nn.Parameter(torch.randn(8, 4, 32))
        self.down = torch.nn.Parameter(torch.randn(8, 32, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        best, expert = self.gate(x).topk(2)
        hidden = torch.relu(torch.einsum("nd,nkdh->nkh", x, self.up[expert]))
        features = best.softmax(-1)[:, :, None] * hidden
        return torch.einsum("nkh,nkho->no", features, self.down[expert]), features, expert


def apart(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one - two).abs().max() / two.abs().max())


def gradient(net: Net, called: Any, x: torch.Tensor, way: str) -> torch.Tensor:
    output, *mixture = called(x)
    net.zero_grad()
    st.penalised_backward(output.square().mean(), st.routed_penalty(*mixture, 8), net.parameters(), 0.1, way)
    return torch.cat([w.grad.flatten() for w in net.parameters()])  # type: ignore[union-attr]


def models() -> Iterator[tuple[str, Any]]:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(64, 4)
    for way in ("fixed", "loss-ratio"):
        yield way, apart(gradient(net, compiled(net), x, way), gradient(net, net, x, way))
    before = [torch.ones_like(w) for w in net.parameters()]
    for w, ones in zip(net.parameters(), before, strict=True):
        w.grad = ones
    output, *mixture = compiled(net)(x)
    try:
        st.penalised_backward(output.square().mean(), st.routed_penalty(*mixture, 8), net.parameters(), 0.1)
    except RuntimeError as error:
        yield "refused", str(error)
    yield "untouched", all(w.grad is g and bool((g == 1).all()) for w, g in zip(net.parameters(), before, strict=True))
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False
    way = "gradient-norm"
    yield way, apart(gradient(net, compiled(net), x, way), gradient(net, net, x, way))


def penalties() -> Iterator[tuple[str, Any]]:
    """By the Gram matrix of features, by that of samples, and of samples that are drawn."""
    for name, n, samples in (("features", 600, None), ("samples", 64, None), ("drawn", 64, 16)):
        features, chosen = random_mixture(np.random.default_rng(0), n, 2, 16, 8)
        experts, found = torch.tensor(chosen), []
        for penalty in (compiled(st.routed_penalty), st.routed_penalty):
            ours = torch.tensor(features, dtype=torch.float32, requires_grad=True)
            torch.manual_seed(0)
            value = penalty(ours, experts, 8, samples)
            found.append((value.detach(), *torch.autograd.grad(value, ours)))
        yield name, max(apart(one, two) for one, two in zip(*found, strict=True))
    yield "huge", float(compiled(st.sphere_penalty)(torch.full((3, 4), 1e12)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(dict([*models(), *penalties()])))
