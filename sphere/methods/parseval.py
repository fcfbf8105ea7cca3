"""PW: Parseval regularisation of the hidden weights (Chung 2024)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from sphere.methods.method import Look, Method, Term
from sphere.methods.units import mlps
from sphere.variants import Placement


def distance(kernel: Float[Array, "experts inner outer"], scale: float) -> Float[Array, ""]:
    """sum over experts of ||W W^T - s I||_F^2, W = kernel^T; with fewer inputs than outputs ||W^T W - s I||_F^2."""
    inner, outer = kernel.shape[-2:]
    left, right = ("eio,eip->eop", outer) if outer <= inner else ("eio,ejo->eij", inner)
    gram = jnp.einsum(left, kernel, kernel)
    return jnp.sum(jnp.square(gram - scale * jnp.eye(right, dtype=gram.dtype)[None]))


@dataclass(frozen=True)
class Parseval(Method):
    """Hidden kernels are drawn towards scaled orthogonality: not the output layer, not biases."""

    name: ClassVar[str] = "parseval"
    label: ClassVar[str] = "PW"

    weight: float = 1e-3
    """At width 64; times (64 / width)^2 at others. 1e-3 on MetaWorld, 1e-4 for locomotion."""
    scale: float = 2.0
    """s in ||W W^T - s I||^2."""
    placement: Placement = "both"

    def term(self, own: Any, look: Look) -> Term | None:
        if not self.acts_on(look.role):
            return None
        layers = [
            (layer.kernel, (64 / mlp.head.kernel.shape[-2]) ** 2)
            for mlp in mlps(look.raw).values()
            for layer in mlp.hidden
        ]
        total = sum((factor * distance(kernel, self.scale) for kernel, factor in layers), start=jnp.zeros(()))
        return Term(total, self.weight)
