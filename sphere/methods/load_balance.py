"""Load balancing of routed experts (Shazeer 2017; in the form of GShard and of the Switch Transformer)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sphere.methods.method import Look, Method, Role, Term
from sphere.nets import NetConfig, traces_of
from sphere.nets.trace import Routing
from sphere.variants import Placement

ALWAYS_EVEN = {
    "dense": "all experts are always chosen",
    "soft": "all experts are always chosen",
    "expert-choice": "every expert takes equally many samples",
}


def imbalance(routing: Routing, real: Bool[Array, " n"] | None = None) -> Float[Array, ""]:
    """E sum_i f_i P_i over the routed experts: f_i the share of all selections that went to i, P_i its mean
    probability.

    1 where both are uniform, up to E where one expert takes all. The gradient flows through P. `real`: rows that are no
    padding.
    """
    chosen = routing.chosen[:, routing.shared :].astype(routing.probability.dtype)
    share = jnp.sum(chosen, axis=0) / jnp.sum(chosen)
    probability = routing.probability
    if real is not None:
        probability = jnp.where(real[:, None], probability, 0) * (len(real) / jnp.maximum(jnp.sum(real), 1))
    return chosen.shape[1] * jnp.sum(share * jnp.mean(probability, axis=0))


@dataclass(frozen=True)
class LoadBalance(Method):
    """A loss that is least where the actor's experts are chosen equally often."""

    name: ClassVar[str] = "load-balance"
    label: ClassVar[str] = "Load balancing"
    placement: ClassVar[Placement] = "actor"

    weight: float = 1e-2
    """Of E sum_i f_i P_i in the actor's loss, summed over its mixtures."""

    def check(self, nets: Mapping[Role, NetConfig]) -> None:
        super().check(nets)
        actor = nets["actor"]
        if actor.kind == "mlp":
            raise ValueError("load-balance needs experts to balance, and the actor is one dense network; use a mixture")
        every = actor.kind == "top-k" and actor.top_k == actor.experts
        if every or actor.kind in ALWAYS_EVEN:
            why = ALWAYS_EVEN["dense" if every else actor.kind]
            raise ValueError(
                f"load-balance has no effect on a {actor.kind!r} actor: {why}; use top-k with K < E or deepseek"
            )

    def term(self, own: Any, look: Look) -> Term | None:
        if not self.acts_on(look.role):
            return None
        mixtures = [mixture for trace in traces_of(look.trace).values() for mixture in trace.mixtures]
        found = [imbalance(mixture.routing, mixture.real) for mixture in mixtures if mixture.routing is not None]
        return Term(reduce(add, found), self.weight) if found else None
