"""Spectral normalisation (Miyato 2018) of the hidden layers as Bjorck 2021 does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from sphere.methods.method import After, Method, Role, Step, Weights
from sphere.methods.power import first, forward, iterate
from sphere.methods.units import mlps, with_mlps
from sphere.nets import MLP, NetConfig
from sphere.variants import Placement


@dataclass(frozen=True)
class SpectralNorm(Method):
    """Kernels act divided by their largest singular value, which one power iteration per step follows."""

    name: ClassVar[str] = "spectral-norm"
    label: ClassVar[str] = "Spectral Normalization"

    layers: Literal["inner", "hidden"] = "inner"
    """inner: hidden layers but the first; hidden: all hidden layers. Never the output layer."""
    placement: Placement = "both"

    def check(self, nets: Mapping[Role, NetConfig]) -> None:
        super().check(nets)
        for role in self.placed(nets):
            if self.layers == "inner" and nets[role].depth < 2:
                raise ValueError(
                    f"spectral-norm has no effect on the {role}: it acts on hidden layers after the first, and "
                    f"depth is {nets[role].depth}; use depth 2 or more, or layers 'hidden'"
                )

    def _kernels(self, mlp: MLP) -> list[Any]:
        return [layer.kernel for layer in mlp.hidden[self.layers == "inner" :]]

    def init(self, nets: dict[Role, Any], key: PRNGKeyArray) -> Any:
        """By role, part and layer: the iterates u, one per expert."""
        parts = {role: mlps(nets[role]) for role in self.placed(nets)}
        every = [kernel for found in parts.values() for mlp in found.values() for kernel in self._kernels(mlp)]
        us = iter(first(every, key))
        return {
            role: {part: [next(us) for _ in self._kernels(mlp)] for part, mlp in found.items()}
            for role, found in parts.items()
        }

    def effective(self, own: Any, role: Role, net: Any) -> Any:
        """K / ||K u||: at constant u the gradient of ||K u|| is that of v^T K u, as in the source."""
        if role not in own:
            return net

        def divided(mlp: MLP, iterates: list[Any]) -> MLP:
            old = self._kernels(mlp)
            sizes = [jnp.linalg.norm(forward(kernel, u), axis=-1) for kernel, u in zip(old, iterates, strict=True)]
            new = [kernel / size[:, None, None] for kernel, size in zip(old, sizes, strict=True)]
            return eqx.tree_at(self._kernels, mlp, new)

        return with_mlps(net, {part: divided(mlp, own[role][part]) for part, mlp in mlps(net).items()})

    def after(self, own: Any, weights: dict[Role, Weights], step: Step) -> After:
        """At the new parameters, so that the next rollout acts with what the first minibatch then learns from."""
        new: dict[Role, Any] = {}
        for role in own:
            found = mlps(step.unpack[role](weights[role].params))
            new[role] = {
                part: [iterate(kernel, u) for kernel, u in zip(self._kernels(found[part]), iterates, strict=True)]
                for part, iterates in own[role].items()
            }
        return After(new, weights)
