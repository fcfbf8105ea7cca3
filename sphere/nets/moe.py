"""Mixture of Experts: a router and a bank of MLPs, each a full network with its own head; the outputs are mixed."""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from sphere.checks import checked
from sphere.nets import dispatch
from sphere.nets.block_loop import forward_in_blocks
from sphere.nets.mlp import MLP, readable
from sphere.nets.routers import DeepSeek, ExpertChoice, Soft, TopK, without_padding
from sphere.nets.trace import Mixture, Recorder, Trace

Compute = Literal["auto", "dense", "grouped"]


def pick_compute(num_experts: int, tokens: int, n: int, width: int) -> str:
    """Dense unless it wastes more than the sorting costs.

    On a GPU products cost little beside reading all parameters, which an update does anyway; copies of parameters and
    sorting pay only for the many tokens of a Transformer.
    """
    waste = num_experts * n / max(tokens, 1)
    least = 2**18 if jax.default_backend() == "cpu" else 2**24
    return "grouped" if waste >= 2.5 and n * num_experts * width >= least else "dense"


LARGE_BLOCK = 128
"""Rows of a block where blocks go through a loop, and at least on a GPU: enough for products at full speed."""


def loops(num_experts: int, tokens: int) -> bool:
    """Whether grouped tokens go through a loop: on a CPU, where every expert may expect several blocks."""
    return jax.default_backend() == "cpu" and tokens >= 4 * LARGE_BLOCK * num_experts


def largest_block(num_experts: int, tokens: int, loop: bool) -> int:
    """Rows of a block, up to the next power of two. On a GPU an expert has four to eight blocks where tokens are many:
    larger ones save copies of its parameters, and few are left half empty."""
    if jax.default_backend() == "cpu":
        return LARGE_BLOCK if loop else 32
    return max(LARGE_BLOCK, tokens // (8 * num_experts))


class MoE(eqx.Module):
    """output_i = sum over slots s of weight_is * expert_is(x_i)."""

    router: TopK | DeepSeek | Soft | ExpertChoice
    experts: MLP
    """One module whose every leaf carries a leading expert axis."""
    compute: Compute = eqx.field(static=True)

    def __init__(
        self,
        router: TopK | DeepSeek | Soft | ExpertChoice,
        num_experts: int,
        inner: int,
        outer: int,
        width: int = 256,
        depth: int = 3,
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        compute: Compute = "auto",
        key: PRNGKeyArray,
    ):
        if num_experts < 1:
            raise ValueError(f"num_experts={num_experts}; a mixture needs at least one expert")

        @eqx.filter_vmap
        def experts(key: PRNGKeyArray) -> MLP:
            return MLP(inner, outer, width, depth, activation=activation, layer_norm=layer_norm, key=key)

        self.router, self.compute = router, compute
        self.experts = experts(jax.random.split(key, num_experts))

    @property
    def num_experts(self) -> int:
        return self.experts.head.kernel.shape[-3]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        # the experts of Soft MoE read tokens, not states
        first = self.router.tokenise if isinstance(self.router, Soft) else self.experts.hidden[0]
        return (first.kernel.shape[-2],)

    def with_compute(self, compute: Compute) -> "MoE":
        """The same network, its experts computed in another way."""
        other = object.__new__(type(self))
        for field in dataclasses.fields(self):
            object.__setattr__(other, field.name, getattr(self, field.name))
        object.__setattr__(other, "compute", compute)
        return other

    def mix(
        self, x: Float[Array, "n inner"], recorder: Recorder, real: Bool[Array, " n"] | None = None
    ) -> Float[Array, "n outer"]:
        """As a part of a larger network: one mixture of it. `real`: rows that are no padding; others are not routed."""
        plan = self.router(x, recorder)
        if real is not None:
            plan = without_padding(plan, real, self.num_experts)
        weight, expert, inputs, routing, aligned, tokens = plan
        how: str = self.compute
        if how == "auto":
            how = pick_compute(self.num_experts, tokens, x.shape[0], self.experts.head.kernel.shape[-2])
        dense = how == "dense" or self.num_experts == 1
        loop = not dense and loops(self.num_experts, tokens) and recorder.taps is None
        if dense:  # one expert has nothing to group, and equals the MLP bit for bit
            route = dispatch.dense(self.num_experts)
            weight, aligned = routing.gate, True
            expert = jnp.broadcast_to(jnp.arange(self.num_experts), weight.shape)
        else:
            route = dispatch.grouped(expert, self.num_experts, tokens, largest_block(self.num_experts, tokens, loop))
        complete = aligned and (how == "dense" or tokens == x.shape[0] * self.num_experts)
        owner = None if aligned else expert
        record = recorder.part("expert", owner, route.to_slots, route.to_bank)
        if loop and route.blocks is not None:
            rows, hidden = forward_in_blocks(self.experts, route.enter(inputs), *route.blocks, record)
        else:
            rows, hidden = route.parameters(self.experts).forward(route.enter(inputs), record)
        expert_output = route.to_slots(rows)
        recorder.close(
            Mixture(
                hidden=tuple(route.to_slots(h) for h in hidden),
                weight=weight,
                expert=expert,
                expert_output=expert_output,
                routing=routing,
                num_experts=self.num_experts,
                aligned=aligned,
                complete=complete,
                real=real,
            )
        )
        return jnp.einsum("ns,nso->no", weight, expert_output)

    @checked(readable)
    def __call__(
        self, x: Float[Array, "n inner"], taps: tuple[Array, ...] | None = None
    ) -> tuple[Float[Array, "n outer"], Trace]:
        recorder = Recorder(taps)
        return self.mix(x, recorder), recorder.finish()


def with_compute(net: Any, compute: Compute) -> Any:
    """The same network, the experts of all its mixtures computed in another way."""
    return jax.tree.map(
        lambda node: node.with_compute(compute) if isinstance(node, MoE) else node,
        net,
        is_leaf=lambda node: isinstance(node, MoE),
    )
