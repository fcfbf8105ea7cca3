"""The penalty's variants by name: the paper's, those of its two ablation tables, and a scale-free one of ours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Num

from sphere.nets.trace import Mixture, Trace, expert_signals, output_signals, sampled, traces_of, trunks_of
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
from sphere.values import moderate, nan_unless

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
"""Which of a learner's networks: the one with this role, or all of them."""


@dataclass(frozen=True)
class PenaltyConfig:
    """What is penalised and how strongly; the ratio rho itself is a number of the run, not of the program."""

    variant: Variant = "last"
    """last: SPHERE on the last hidden expert layer; the others are the paper's ablations and `scale-free`."""
    coefficient: Coefficient = "gradient-norm"
    """How rho becomes the penalty's weight: by ratio of gradient norms, by ratio of losses, or as it is."""
    floor: float | None = None
    """gradient-norm: the smallest norm of the penalty's gradient that counts, as a fraction of the task's. None: both
    norms are at least 1e-4, as released, and a penalty with a smaller gradient is felt less than rho says."""
    placement: Placement = "actor"
    mixtures: Literal["last", "all"] = "last"
    """Of a network with several mixtures: the last alone, or the sum over all of them."""
    rows: int | None = None
    """Of a network of tokens: A is made of at most so many tokens of a batch, spread evenly. None: of all, exact;
    the cost grows with their square."""
    target_scale: float = 1.0
    """fixed-scale: alpha in ||A - alpha I||^2."""
    entropy_weight: float = 1.0
    """layer-entropy: strength of the entropy of the layers' shares of the NTK's trace beside SPHERE's."""

    @property
    def strengths(self) -> tuple[float, ...] | None:
        """Of the terms, where there are several, beside each other; each has a coefficient of its own."""
        return {"feature+gradient": (1.0, 1.0), "layer-entropy": (1.0, self.entropy_weight)}.get(self.variant)


def layer_gram(mixture: Mixture, layer: int = -1, any_scale: bool = False) -> Gram:
    """Of A_l, the Gram of the gate-weighted features after one hidden layer, by the cheapest route. With `any_scale`,
    very large features are first brought down: for what does not depend on scale."""
    weighted = mixture.weighted(layer)
    if any_scale:
        weighted = moderate(weighted)[0]
    if mixture.aligned:
        found = gram(weighted.reshape(weighted.shape[0], -1))
    else:
        found = routed_gram(weighted, mixture.expert, mixture.num_experts)
    if mixture.real is None:
        return found
    # padding adds nothing to Phi^T Phi; A is the mean over the other rows
    ratio = len(mixture.real) / jnp.maximum(jnp.sum(mixture.real, dtype=found.trace.dtype), 1)
    return Gram(ratio * found.trace, ratio**2 * found.square, found.size)


def feature_blocks(mixture: Mixture, layer: int = -1) -> Float[Array, "n experts width"]:
    """Gate-weighted features by expert, zeros where an expert was not chosen."""
    weighted = mixture.weighted(layer)
    return weighted if mixture.aligned else spread(weighted, mixture.expert, mixture.num_experts)


def gradient_blocks(net: Callable, x: Num[Array, "n *input"], mixture: int = -1) -> Float[Array, "rows experts width"]:
    """Psi: each expert's own backprop signal at its last hidden layer z_e = W a_e, before a LayerNorm: g_e = d m_e /
    d z_e."""
    return expert_signals(net, x, mixture)[-2]


def gradient_gram(net: Callable, x: Num[Array, "n *input"], mixture: int = -1) -> Gram:
    """Of G_last = Psi^T Psi / N."""
    blocks = gradient_blocks(net, x, mixture)
    return gram(blocks.reshape(blocks.shape[0], -1))


def joint_layers(mixture: Mixture) -> Float[Array, ""]:
    """SPHERE on one Gram of the features of all hidden layers side by side: no block-diagonal approximation."""
    blocks = [feature_blocks(mixture, i).reshape(mixture.weight.shape[0], -1) for i in range(len(mixture.hidden))]
    return anisotropy(gram(jnp.concatenate(blocks, axis=1)))


def gate_only(mixture: Mixture) -> Float[Array, ""]:
    """SPHERE on the weights of the routed experts [N, E] instead of the features. Experts that are always on (DS-MoE's
    shared ones) are left out: their weights are ones, whatever the gate does."""
    if mixture.routing is None:
        raise ValueError("penalty variant 'gate' needs a gate, and a dense network has none; use a mixture")
    return anisotropy(gram(mixture.routing.gate[:, mixture.routing.shared :]))


def layer_entropy(net: Callable, x: Num[Array, "n *input"], trace: Trace, mixture: int = -1) -> Float[Array, ""]:
    """-sum over a mixture's expert layers of alpha_l log alpha_l, alpha_l the layer's share of the trace of the
    Gauss-Newton matrix: s_l = (1/N) sum over samples and slots of (||a||^2 + 1) ||g||^2, with all linear layers
    counted in the total and each slot by itself, also where slots share an owner."""
    shares = []
    for layer, signal in zip(trace.layers, output_signals(net, x), strict=True):
        if layer.kind == "linear":
            size = jnp.sum(jnp.square(layer.input), axis=-1) + layer.bias
            place = (layer.part, layer.mixture)
            shares.append((place, jnp.sum(size * jnp.sum(jnp.square(signal), axis=-1))))
    total = jnp.asarray(sum(share for _, share in shares))
    wanted = ("expert", mixture % len(trace.mixtures))
    total = jnp.where(total == 0, 1.0, total)
    alpha = jnp.stack([share / total for place, share in shares if place == wanted])
    return -jnp.sum(jnp.where(alpha == 0, 0.0, alpha * jnp.log(jnp.where(alpha == 0, 1.0, alpha))))


class Place(NamedTuple):
    """A mixture of a network on a batch: where a penalty is taken."""

    net: Callable
    x: Num[Array, "n *input"]
    trace: Trace
    number: int

    @property
    def mixture(self) -> Mixture:
        return self.trace.mixtures[self.number]

    @property
    def features(self) -> Gram:
        return layer_gram(self.mixture)

    @property
    def gradients(self) -> Gram:
        """NaN where a feature is: the slope of a ReLU there is 0, and the signals would not show it."""
        found, known = gradient_gram(self.net, self.x, self.number), ~jnp.any(jnp.isnan(self.mixture.features))
        return Gram(nan_unless(known, found.trace), nan_unless(known, found.square), found.size)

    @property
    def unweighted(self) -> Gram:
        features = self.mixture.features
        return gram(features.reshape(features.shape[0], -1))


def all_layers(mixture: Mixture) -> Float[Array, ""]:
    """SPHERE on each hidden layer, summed."""
    return sum((anisotropy(layer_gram(mixture, i)) for i in range(len(mixture.hidden))), start=jnp.zeros(()))


def khatri_rao(p: Place) -> Float[Array, ""]:
    return anisotropy(khatri_rao_gram(feature_blocks(p.mixture), gradient_blocks(p.net, p.x, p.number)))


VARIANTS: dict[str, Callable[[PenaltyConfig, Place], Array | tuple[Array, ...]]] = {
    "last": lambda c, p: anisotropy(p.features),
    "scale-free": lambda c, p: scale_free(layer_gram(p.mixture, any_scale=True)),
    "fixed-scale": lambda c, p: fixed_scale(p.features, c.target_scale),
    "all-layers": lambda c, p: all_layers(p.mixture),
    "joint-layers": lambda c, p: joint_layers(p.mixture),
    "per-expert": lambda c, p: per_expert(feature_blocks(p.mixture)),
    "unweighted": lambda c, p: anisotropy(p.unweighted),
    "gate": lambda c, p: gate_only(p.mixture),
    "gradient": lambda c, p: anisotropy(p.gradients),
    "feature+gradient": lambda c, p: (anisotropy(p.features), anisotropy(p.gradients)),
    "kronecker": lambda c, p: anisotropy(kronecker_gram(p.features, p.gradients)),
    "khatri-rao": lambda c, p: khatri_rao(p),
    "layer-entropy": lambda c, p: (anisotropy(p.features), -layer_entropy(*p)),
}
ALL_EXPERTS = frozenset({"unweighted", "gradient", "feature+gradient", "kronecker", "khatri-rao"})
"""Variants that look at experts which the gate did not choose; the network must be computed densely."""


Traces = Trace | Mapping[str, Trace]


def penalty(config: PenaltyConfig, net: Callable, x: Num[Array, "n *input"], trace: Traces) -> Float[Array, ""]:
    """The penalty of one network on one batch. `trace` is that of `net(x)`, which has been computed before."""
    found = terms(config, net, x, trace)
    if not isinstance(found, tuple):
        return found
    return sum((s * term for s, term in zip(config.strengths or (), found, strict=True)), start=jnp.zeros(()))


def terms(
    config: PenaltyConfig, net: Any, x: Num[Array, "n *input"], trace: Traces
) -> Float[Array, ""] | tuple[Float[Array, ""], ...]:
    """The penalty, or its terms where it has several, to be weighted one by one. Of a network or of a head, whose
    trunks read x: summed over its trunks and, by `config.mixtures`, over their mixtures."""
    if config.variant not in VARIANTS:
        raise ValueError(f"penalty variant {config.variant!r} is not known; use one of {', '.join(VARIANTS)}")
    found = [VARIANTS[config.variant](config, place) for place in _places(config, net, x, traces_of(trace))]
    if isinstance(found[0], tuple):
        return tuple(reduce(add, each) for each in zip(*found, strict=True))
    return reduce(add, found)


def _places(config: PenaltyConfig, net: Any, x: Array, traces: Mapping[str, Trace]) -> list[Place]:
    found = []
    for name, trunk in trunks_of(net).items():
        trace = traces[name]
        if config.rows is not None:
            trace = Trace(tuple(sampled(mixture, config.rows) for mixture in trace.mixtures), trace.layers)
        count = len(trace.mixtures)
        found += [Place(trunk, x, trace, i) for i in range(0 if config.mixtures == "all" else count - 1, count)]
    if config.variant in ALL_EXPERTS and config.rows is not None:
        raise ValueError(f"penalty variant {config.variant!r} takes all rows of a batch; leave rows={config.rows} out")
    if config.variant in ALL_EXPERTS and not all(place.mixture.complete for place in found):
        raise ValueError(
            f"penalty variant {config.variant!r} looks at all experts of every sample, but only the chosen ones were "
            "computed; build the network with compute='dense'"
        )
    return found
