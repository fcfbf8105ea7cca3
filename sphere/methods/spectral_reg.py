"""Spectral regularisation (Lewandowski 2024): the largest singular value of every layer is drawn towards 1."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sphere.methods.method import After, Look, Method, Role, Step, Term, Weights
from sphere.methods.power import first, forward, iterate, normalised
from sphere.nets import Linear
from sphere.variants import Placement


def linears(net: Any) -> list[Linear]:
    """All linear layers, output layers and routers included, with a leading expert axis."""
    layers = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, Linear))
    layers = [layer for layer in layers if isinstance(layer, Linear)]
    return [jax.tree.map(lambda leaf: leaf[None], one) if one.kernel.ndim == 2 else one for one in layers]


def excess(layer: Linear, u: Float[Array, "experts outer"]) -> Float[Array, ""]:
    """sum over experts of (sigma^2 - 1)^2 + ||b||^4; sigma by one power iteration from u, differentiated."""
    v = normalised(forward(layer.kernel, u))
    sigma = jnp.linalg.norm(jnp.einsum("eio,ei->eo", layer.kernel, v), axis=-1)
    total = jnp.sum(jnp.square(jnp.square(sigma) - 1))
    if layer.bias is not None:
        total += jnp.sum(jnp.square(jnp.sum(jnp.square(layer.bias), axis=-1)))
    return total


@dataclass(frozen=True)
class SpectralReg(Method):
    """Every layer's largest singular value is drawn towards 1 and its bias towards 0."""

    name: ClassVar[str] = "spectral-reg"
    label: ClassVar[str] = "Spectral Regularization"

    weight: float = 1e-4
    placement: Placement = "both"

    def init(self, nets: dict[Role, Any], key: PRNGKeyArray) -> Any:
        layers = {role: linears(nets[role]) for role in self.placed(nets)}
        us = iter(first([layer.kernel for found in layers.values() for layer in found], key))
        return {role: [next(us) for _ in found] for role, found in layers.items()}

    def term(self, own: Any, look: Look) -> Term | None:
        if look.role not in own:
            return None
        pairs = zip(linears(look.raw), own[look.role], strict=True)
        return Term(sum((excess(layer, u) for layer, u in pairs), start=jnp.zeros(())), self.weight)

    def after(self, own: Any, weights: dict[Role, Weights], step: Step) -> After:
        """The iterates that the step's loss went through, kept for the next."""
        new: dict[Role, Any] = {}
        for role in own:
            layers = linears(step.unpack[role](step.before[role]))
            new[role] = [iterate(layer.kernel, u) for layer, u in zip(layers, own[role], strict=True)]
        return After(new, weights)
