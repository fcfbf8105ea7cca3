"""A Top-K Mixture of Experts for PyTorch: the network of `sphere.nets` with kind="top-k", for policies and tests."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from sphere.torch.penalty import Mixture


class LinearBank(nn.Module):
    """`number` linear layers side by side: [..., inner] -> [..., number, outer]. LeCun-normal start, zero bias."""

    def __init__(self, number: int, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(number, inner, outer))
        self.bias = nn.Parameter(torch.zeros(number, outer))
        std = inner**-0.5 / 0.87962566  # a normal that is cut at two deviations has 0.8796 of its own
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("nei,eio->neo", x, self.weight) + self.bias


class TopK(nn.Module):
    """output_i = sum over the `top_k` best experts e of softmax_e(gate(x_i)) expert_e(x_i), softmax over the chosen.

    Gate and experts are MLPs of `depth` hidden layers of `width` units with ReLU. Every expert is computed on every
    row, the cheapest way for policies. After a call `mixture` holds what the penalty needs.
    """

    def __init__(
        self, inner: int, outer: int, experts: int = 10, top_k: int = 2, width: int = 256, depth: int = 3
    ) -> None:
        super().__init__()
        if min(inner, outer, width, depth) < 1 or not 1 <= top_k <= experts:
            raise ValueError(
                f"inner={inner}, outer={outer}, width={width}, depth={depth} must be positive and top_k={top_k} "
                f"from 1 to experts={experts}"
            )
        sizes = [inner] + [width] * depth
        layers = list(pairwise(sizes))
        self.gate = nn.ModuleList([LinearBank(1, *pair) for pair in [*layers, (width, experts)]])
        self.experts = nn.ModuleList([LinearBank(experts, *pair) for pair in [*layers, (width, outer)]])
        self.num_experts, self.top_k = experts, top_k
        self.mixture: Mixture | None = None

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self._run(self.gate, x[:, None])[0][:, 0].topk(self.top_k, dim=1)
        weight = best.softmax(dim=1)
        outputs, features = self._run(self.experts, x[:, None].expand(-1, self.num_experts, -1))
        rows = torch.arange(len(x), device=x.device)[:, None]
        self.mixture = Mixture(weight[:, :, None] * features[rows, chosen], chosen, self.num_experts)
        return (weight[:, :, None] * outputs[rows, chosen]).sum(dim=1)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"mixture": None}  # results of a forward pass can be neither copied nor saved

    @staticmethod
    def _run(layers: nn.ModuleList, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in layers[:-1]:
            x = torch.relu(layer(x))
        return layers[-1](x), x
