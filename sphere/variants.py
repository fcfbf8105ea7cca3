"""The penalty's variants by name: the paper's, those of its two ablation tables, and a scale-free one of ours."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from sphere.nets.trace import Trace, expert_signals, output_signals
from sphere.penalty import (
    Gram,
    anisotropy,
    fixed_scale,
    gram,
    khatri_rao_gram,
    kronecker_gram,
    per_expert,
    routed_gram,
    scale_free,
    spread,
)

Variant = Literal[
    "last",
    "scale-free",
    "fixed-scale",
    "all-layers",
    "joint-layers",
    "per-expert",
    "unweighted",
    "gate",
    "gradient",
    "feature+gradient",
    "kronecker",
    "khatri-rao",
    "layer-entropy",
]
Coefficient = Literal["gradient-norm", "loss-ratio", "fixed"]
Placement = Literal["actor", "critic", "both"]


@dataclass(frozen=True)
class PenaltyConfig:
    """What is penalised and how strongly; the ratio rho itself is a number of the run, not of the program."""

    variant: Variant = "last"
    """last: SPHERE on the last hidden expert layer; the others are the paper's ablations and `scale-free`."""
    coefficient: Coefficient = "gradient-norm"
    """How rho becomes the penalty's weight: by ratio of gradient norms, by ratio of losses, or as it is."""
    placement: Placement = "actor"
    target_scale: float = 1.0
    """fixed-scale: alpha in ||A - alpha I||^2."""
    entropy_weight: float = 1.0
    """layer-entropy: strength of the entropy of the layers' shares of the NTK's trace beside SPHERE's."""

    @property
    def strengths(self) -> tuple[float, ...] | None:
        """Of the terms, where there are several, beside each other; each has a coefficient of its own."""
        return {"feature+gradient": (1.0, 1.0), "layer-entropy": (1.0, self.entropy_weight)}.get(self.variant)


def layer_gram(trace: Trace, layer: int = -1) -> Gram:
    """Of A_l, the Gram of the gate-weighted features after one hidden layer, by the cheapest route."""
    weighted = trace.weighted(layer)
    if trace.aligned:
        return gram(weighted.reshape(weighted.shape[0], -1))
    return routed_gram(weighted, trace.expert, trace.num_experts)


def feature_blocks(trace: Trace, layer: int = -1) -> Float[Array, "n experts width"]:
    """Gate-weighted features by expert, zeros where an expert was not chosen."""
    weighted = trace.weighted(layer)
    return weighted if trace.aligned else spread(weighted, trace.expert, trace.num_experts)


def gradient_blocks(net: Callable, x: Float[Array, "n obs"]) -> Float[Array, "n experts width"]:
    """Psi: each expert's own backprop signal at its last hidden layer z_e = W a_e, before a LayerNorm: g_e = d m_e / d z_e."""
    return expert_signals(net, x)[-2]


def gradient_gram(net: Callable, x: Float[Array, "n obs"]) -> Gram:
    """Of G_last = Psi^T Psi / N."""
    return gram(gradient_blocks(net, x).reshape(x.shape[0], -1))


def joint_layers(trace: Trace) -> Float[Array, ""]:
    """SPHERE on one Gram of the features of all hidden layers side by side: no block-diagonal approximation."""
    blocks = [feature_blocks(trace, i).reshape(trace.weight.shape[0], -1) for i in range(len(trace.hidden))]
    return anisotropy(gram(jnp.concatenate(blocks, axis=1)))


def gate_only(trace: Trace) -> Float[Array, ""]:
    """SPHERE on the gate's weights [N, E] instead of the features."""
    if trace.routing is None:
        raise ValueError("penalty variant 'gate' needs a gate, and a dense network has none; use a mixture")
    return anisotropy(gram(trace.routing.gate))


def layer_entropy(net: Callable, x: Float[Array, "n obs"], trace: Trace) -> Float[Array, ""]:
    """-sum over expert layers of alpha_l log alpha_l, alpha_l the layer's share of the trace of the Gauss-Newton matrix:
    s_l = (1/N) sum over samples and slots of (||a||^2 + 1) ||g||^2, gate layers counted in the total."""
    shares = []
    for layer, signal in zip(trace.layers, output_signals(net, x), strict=True):
        if layer.kind == "linear":
            size = jnp.sum(jnp.square(layer.input), axis=-1) + layer.bias
            shares.append((layer.part, jnp.sum(size * jnp.sum(jnp.square(signal), axis=-1))))
    total = sum(share for _, share in shares)
    alpha = jnp.stack([share / total for part, share in shares if part == "expert"])
    return -jnp.sum(jnp.where(alpha > 0, alpha * jnp.log(jnp.where(alpha > 0, alpha, 1.0)), 0.0))


VARIANTS: dict[str, Callable[[PenaltyConfig, Callable, Array, Trace], Array | tuple[Array, ...]]] = {
    "last": lambda c, net, x, t: anisotropy(layer_gram(t)),
    "scale-free": lambda c, net, x, t: scale_free(layer_gram(t)),
    "fixed-scale": lambda c, net, x, t: fixed_scale(layer_gram(t), c.target_scale),
    "all-layers": lambda c, net, x, t: sum(
        (anisotropy(layer_gram(t, i)) for i in range(len(t.hidden))), start=jnp.zeros(())
    ),
    "joint-layers": lambda c, net, x, t: joint_layers(t),
    "per-expert": lambda c, net, x, t: per_expert(feature_blocks(t)),
    "unweighted": lambda c, net, x, t: anisotropy(gram(t.features.reshape(x.shape[0], -1))),
    "gate": lambda c, net, x, t: gate_only(t),
    "gradient": lambda c, net, x, t: anisotropy(gradient_gram(net, x)),
    "feature+gradient": lambda c, net, x, t: (anisotropy(layer_gram(t)), anisotropy(gradient_gram(net, x))),
    "kronecker": lambda c, net, x, t: anisotropy(kronecker_gram(layer_gram(t), gradient_gram(net, x))),
    "khatri-rao": lambda c, net, x, t: anisotropy(khatri_rao_gram(feature_blocks(t), gradient_blocks(net, x))),
    "layer-entropy": lambda c, net, x, t: (anisotropy(layer_gram(t)), -layer_entropy(net, x, t)),
}
ALL_EXPERTS = frozenset({"unweighted", "gradient", "feature+gradient", "kronecker", "khatri-rao"})
"""Variants that look at experts which the gate did not choose; the network must be computed densely."""


def penalty(config: PenaltyConfig, net: Callable, x: Float[Array, "n obs"], trace: Trace) -> Float[Array, ""]:
    """The penalty of one network on one batch. `trace` is that of `net(x)`, so that the forward pass is not done twice."""
    found = terms(config, net, x, trace)
    if not isinstance(found, tuple):
        return found
    return sum((s * term for s, term in zip(config.strengths or (), found, strict=True)), start=jnp.zeros(()))


def terms(
    config: PenaltyConfig, net: Callable, x: Float[Array, "n obs"], trace: Trace
) -> Float[Array, ""] | tuple[Float[Array, ""], ...]:
    """The penalty, or its terms where it has several, to be weighted one by one."""
    if config.variant not in VARIANTS:
        raise ValueError(f"penalty variant {config.variant!r} is not known; use one of {', '.join(VARIANTS)}")
    if config.variant in ALL_EXPERTS and not trace.complete:
        raise ValueError(
            f"penalty variant {config.variant!r} looks at all experts of every sample, but only the chosen ones were "
            "computed; build the network with compute='dense'"
        )
    return VARIANTS[config.variant](config, net, x, trace)
