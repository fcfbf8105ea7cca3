"""`capture`: gate-weighted expert features of Hugging Face mixtures (transformers 5), with their gradients.

Experts there are no modules but three-dimensional weights, run by a function from a registry. `capture` registers one
that runs the model's own (eager, batched_mm or grouped_mm), operation by operation, and keeps what enters the down
projection.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sphere.torch.penalty import Mixture, routed_penalty

NAME = "sphere"


class Captured:
    """What the mixtures of a model did in its last forward pass; `remove()` gives the model back as it was."""

    def __init__(self, model: nn.Module, blocks: dict[nn.Module, str], before: Any) -> None:
        self.mixtures: dict[str, Mixture] = {}
        """By the name of the experts, in the order of the layers; padding is left out."""
        self._model, self._blocks, self._before = model, blocks, before
        self._mask: Tensor | None = None
        self._recording = False
        self._handles = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, always_call=True),
        ]

    def penalties(self, samples: int | None = None) -> tuple[Tensor, ...]:
        """The penalty of every layer of experts, for `penalised_backward`, which gives each a lambda of its own."""
        if not self.mixtures:
            raise ValueError("no forward pass has been captured; call the model first")
        return tuple(routed_penalty(*mixture, samples=samples) for mixture in self.mixtures.values())

    def penalty(self, samples: int | None = None) -> Tensor:
        """The sum over the layers."""
        terms = self.penalties(samples)
        return torch.stack([term.to(terms[0].device) for term in terms]).sum()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        for block in self._blocks:
            del block.sphere_captured
        self._model.set_experts_implementation(self._before)
        self.mixtures = {}

    def __enter__(self) -> "Captured":
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _begin(self, model: nn.Module, inputs: tuple, named: dict[str, Any]) -> None:
        mask = named.get("attention_mask", inputs[1] if len(inputs) > 1 else None)
        self._mask = mask.reshape(-1).bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None
        self.mixtures, self._recording = {}, True

    def _end(self, *_: Any) -> None:
        """Padding goes here, outside of checkpoints, which want the same operations in their second run: after this
        one."""
        self._recording = False
        if self._mask is not None:
            self.mixtures = {name: _without(self._mask, mixture) for name, mixture in self.mixtures.items()}

    def keep(self, block: nn.Module, features: Tensor, experts: Tensor) -> None:
        if self._recording:
            self.mixtures[self._blocks[block]] = Mixture(features, experts, block.num_experts)


def _without(mask: Tensor, mixture: Mixture) -> Mixture:
    if len(mask) != len(mixture.features):
        return mixture
    rows = mask.to(mixture.features.device)
    return Mixture(mixture.features[rows], mixture.experts[rows], mixture.num_experts)


def capture(model: nn.Module) -> Captured:
    """Keeps the expert features of every forward pass of a transformers 5 mixture: Mixtral, Qwen2-MoE, Qwen3-MoE,
    OLMoE, DeepSeek-V2, DeepSeek-V3, GPT-OSS and others whose experts use the registry. The outputs stay the same, bit
    for bit.

    Tokens that a two-dimensional `attention_mask` leaves out are left out; experts that are always on are not routed
    and not captured. Gradient checkpointing must be the one without reentrance, the default of transformers 5: the
    other runs its forward pass without gradients, and the penalty then says that it has none.
    """
    if hasattr(model, "module"):
        raise ValueError(f"{type(model).__name__} wraps a model; pass the model inside, as model.module")
    blocks = {block: name for name, block in model.named_modules() if _is_bank(block)}
    if not blocks:
        lists = [name for name, block in model.named_modules() if name.endswith("experts")]
        found = f"its {lists[0]} is of another kind (transformers 4?); " if lists else ""
        raise ValueError(
            f"{type(model).__name__} has no mixture that can be captured; {found}wanted a transformers 5 model whose "
            "experts have gate_up_proj and down_proj; for other models pass features to routed_penalty"
        )
    if any(hasattr(block, "sphere_captured") for block in blocks):
        raise ValueError("the model is captured already; use that one, or call its remove() first")
    if any(getattr(block, "_is_expert_parallel", False) for block in blocks):
        raise ValueError("the experts are spread over processes, each of which sees some of them: not supported")
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    before = model.get_experts_implementation()
    inner = {block: _implementation(block) for block in blocks}
    ALL_EXPERTS_FUNCTIONS.register(NAME, _captured_forward)
    model.set_experts_implementation(NAME)
    captured = Captured(model, blocks, before)
    for block in blocks:
        block.sphere_captured = (captured, inner[block])
    return captured


def _is_bank(block: nn.Module) -> bool:
    return all(hasattr(block, name) for name in ("down_proj", "num_experts", "has_gate", "is_transposed"))


def _implementation(block: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    name = block.config._experts_implementation or "eager"
    known = {"eager": _eager, "batched_mm": _batched, "grouped_mm": _grouped}
    if name not in known:
        raise ValueError(
            f"the experts run by {name!r}, whose inner results cannot be seen; wanted {', '.join(known)}: "
            "call model.set_experts_implementation('grouped_mm') first"
        )
    return known[name]


def _captured_forward(block: nn.Module, hidden: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    captured, inner = block.sphere_captured
    output, features = inner(block, hidden, experts, weights)
    # computed also where nobody keeps it: a checkpoint wants the same operations when it runs a block again
    captured.keep(block, features * weights[:, :, None], experts)
    return output


def _watched(block: nn.Module, function: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The result of a function and what the activation in it gave."""
    name = "_apply_gate" if block.has_gate else "act_fn"
    original, seen = getattr(block, name), []

    def watch(x: Tensor) -> Tensor:
        seen.append(original(x))
        return seen[-1]

    block.__dict__[name] = watch  # before methods and submodules
    try:
        return function(), seen[0]
    finally:
        del block.__dict__[name]


def _batched(block: nn.Module, hidden: Tensor, experts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    from transformers.integrations.moe import batched_mm_experts_forward

    output, features = _watched(block, lambda: batched_mm_experts_forward(block, hidden, experts, weights))
    return output, features.reshape(*experts.shape, -1)


def _grouped(block: nn.Module, hidden: Tensor, experts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    from transformers.integrations.moe import grouped_mm_experts_forward

    output, features = _watched(block, lambda: grouped_mm_experts_forward(block, hidden, experts, weights))
    place = torch.argsort(torch.sort(experts.reshape(-1))[1])  # it sorts tokens by expert, with the same call
    return output, features[place].reshape(*experts.shape, -1)


def _eager(block: Any, hidden: Tensor, experts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The loop of the models themselves."""
    up = block.gate_up_proj if block.has_gate else block.up_proj
    up_bias = (block.gate_up_proj_bias if block.has_gate else block.up_proj_bias) if block.has_bias else None
    output, pieces, places = torch.zeros_like(hidden), [], []

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        y = x @ weight[expert] if block.is_transposed else F.linear(x, weight[expert])
        return y if bias is None else y + bias[expert]

    for expert in experts.unique().tolist():
        slot, token = torch.where((experts == expert).T)
        inner = linear(hidden[token], up, up_bias, expert)
        inner = block._apply_gate(inner) if block.has_gate else block.act_fn(inner)
        outer = linear(inner, block.down_proj, block.down_proj_bias if block.has_bias else None, expert)
        outer = block.post_expert_norm(outer) if getattr(block, "has_post_expert_norm", False) else outer
        output.index_add_(0, token, (outer * weights[token, slot, None]).to(output.dtype))
        pieces.append(inner)
        places.append(token * experts.shape[1] + slot)
    back = torch.argsort(torch.cat(places))
    return output, torch.cat(pieces)[back].reshape(*experts.shape, -1)
