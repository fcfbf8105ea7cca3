"""How plastic a network is and how its experts specialise, on one batch of states: `diagnose` and what it is made of.

Formulas, sources and conventions: docs/diagnostics.md. NaN means "does not apply": pairs of experts where no state
has two, clusters where there is one, a gate where there is none. All else is finite if parameters and states are, and
features and gradients small enough for the squares that K is made of; NaN in gives NaN out.

The functions below take one mixture of a trace or plain arrays, of one network and one batch; a fleet adds
`filter_vmap`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Num

from sphere import ntk
from sphere.geometry import NEIGHBOURS, distances, knn_jaccard, silhouette
from sphere.nets.heads import Gaussian
from sphere.nets.trace import Mixture, Routing, of_tokens, only_trunk
from sphere.penalty import spread
from sphere.spectrum import effective_rank_spsd, spectral_entropy
from sphere.values import moderate, nan_unless

Scalar = Float[Array, ""]

DORMANT = 0.025  # tau of Sokar et al. (2023); the paper reports a dormant ratio without one
TOKENS = 1024  # of a batch that numbers of a mixture are taken from: some need the distances of all pairs


class Diagnostics(NamedTuple):
    """One number each; `_asdict()` for a record."""

    ntk_rank: Scalar  # r_e(K)
    feature_rank: Scalar  # r_e(A_last)
    dormant_ratio: Scalar
    feature_norm: Scalar  # mean over states of ||Phi_i||
    gradient_norm: Scalar  # mean over states of sqrt(K_ii)
    overlap: Scalar  # NaN: no state has two experts
    orthogonality: Scalar  # NaN: as above
    silhouette: Scalar  # NaN: no gate, or one label only
    knn_jaccard: Scalar  # NaN: no gate, or one state only
    max_violation: Scalar
    active_ratio: Scalar
    routing_entropy: Scalar
    trace_weight_entropy: Scalar  # H(beta) / log E


@eqx.filter_jit  # inside jit values are not looked at: nothing waits for the device, and a dead network has rank 0
def diagnose(
    net: Callable, x: Num[Array, "n *input"], *, tau: float = DORMANT, neighbours: int = NEIGHBOURS
) -> Diagnostics:
    """All diagnostics of a trunk, an actor or a value on states x. Numbers of a mixture are those of the last one;
    `diagnose_mixtures` gives those of all.

    For a fleet: `eqx.filter_jit(eqx.filter_vmap(diagnose))(nets, states)`, both with a leading run axis.
    """
    trunk = only_trunk(net)
    # A GPU rounds float32 products to TF32, which lifts the spectrum's floor from 1e-7 to 1e-3 of its top.
    with jax.default_matmul_precision("highest"):
        kernel = ntk.gram(net, x)
        mixture = of_tokens(trunk(x)[1].mixtures[-1], len(x), TOKENS)
        rank = effective_rank_spsd(kernel)
        return Diagnostics(ntk_rank=rank, gradient_norm=gradient_norm(kernel), **health(mixture, tau, neighbours))


@eqx.filter_jit
def diagnose_mixtures(
    net: Callable, x: Num[Array, "n *input"], *, tau: float = DORMANT, neighbours: int = NEIGHBOURS
) -> dict[str, Scalar]:
    """Where a network has several mixtures, the numbers of each: "mixture0/feature_rank"; where it has one, nothing."""
    with jax.default_matmul_precision("highest"):
        mixtures = only_trunk(net)(x)[1].mixtures
        numbers = [health(of_tokens(one, len(x), TOKENS), tau, neighbours) for one in mixtures if len(mixtures) > 1]
    return {f"mixture{i}/{name}": value for i, each in enumerate(numbers) for name, value in each.items()}


def health(mixture: Mixture, tau: float = DORMANT, neighbours: int = NEIGHBOURS) -> dict[str, Scalar]:
    """All that is of one mixture, by the names of `Diagnostics`."""
    counts = selections(mixture)
    return {
        "feature_rank": feature_rank(mixture),
        "dormant_ratio": dormant_ratio(mixture, tau),
        "feature_norm": feature_norm(mixture),
        **pair_similarity(mixture)._asdict(),
        **gate_geometry(mixture, neighbours)._asdict(),
        "max_violation": max_violation(counts),
        "active_ratio": active_ratio(counts),
        "routing_entropy": routing_entropy(counts),
        "trace_weight_entropy": trace_weight_entropy(mixture),
    }


# Slots and experts


def used(mixture: Mixture) -> Bool[Array, "n slots"]:
    """Whether the slot holds a selected expert. By choice, not by weight: a softmax entry may underflow to 0."""
    if mixture.aligned and mixture.routing is not None:
        return mixture.routing.chosen
    return mixture.expert < mixture.num_experts


def expert_sums(mixture: Mixture, values: Float[Array, "n slots width"]) -> Float[Array, "experts width"]:
    """For every expert the sum of `values` over the states that were routed to it."""
    values = jnp.where(used(mixture)[:, :, None], values, 0)
    if mixture.aligned:
        return jnp.sum(values, axis=0)
    return jnp.einsum("nse,nsw->ew", jax.nn.one_hot(mixture.expert, mixture.num_experts, dtype=values.dtype), values)


# Plasticity


def feature_rank(mixture: Mixture) -> Scalar:
    """r_e(A_last), A = Phi^T Phi / N of the gate-weighted last features, from the smaller of A and Phi Phi^T / N."""
    n, slots, width = mixture.features.shape
    rows, _ = moderate(mixture.weighted())
    if mixture.num_experts * width <= n:
        phi = (rows if mixture.aligned else spread(rows, mixture.expert, mixture.num_experts)).reshape(n, -1)
        return effective_rank_spsd(phi.T @ phi / n)
    if mixture.aligned:
        return effective_rank_spsd(jnp.einsum("nsw,msw->nm", rows, rows) / n)
    tokens, owner = rows.reshape(n * slots, width), mixture.expert.reshape(-1)
    products = jnp.where(owner[:, None] == owner[None, :], tokens @ tokens.T, 0)
    return effective_rank_spsd(jnp.sum(products.reshape(n, slots, n, slots), axis=(1, 3)) / n)


def dormant_ratio(mixture: Mixture, tau: float = DORMANT) -> Scalar:
    """Share of expert units, over all hidden layers, with mean|h_u| / (layer's mean of mean|h| + 1e-9) <= tau.

    Means are over the states routed to the expert. Experts without a state are left out: `active_ratio` counts them.
    """
    count = expert_sums(mixture, jnp.ones_like(mixture.weight)[:, :, None])  # [experts, 1]
    seen = count > 0
    dormant, known = [], jnp.asarray(True)
    for hidden in mixture.hidden:
        size = expert_sums(mixture, jnp.abs(hidden)) / jnp.maximum(count, 1)
        score = size / (jnp.mean(size, axis=1, keepdims=True) + 1e-9)  # 1e-9: google/dopamine's ReDo
        dormant.append(seen & (score <= tau))
        known = known & ~jnp.any(jnp.isnan(score))
    units = sum(hidden.shape[2] for hidden in mixture.hidden) * jnp.sum(seen)
    return nan_unless(known, sum(jnp.sum(d) for d in dormant) / jnp.maximum(units, 1).astype(mixture.weight.dtype))


def feature_norm(mixture: Mixture) -> Scalar:
    """Mean over states of ||Phi_i||_2, the gate-weighted last features of all selected experts side by side."""
    rows, factor = moderate(mixture.weighted())
    return jnp.mean(jnp.sqrt(jnp.sum(jnp.square(rows), axis=(1, 2)))) / factor


def gradient_norm(kernel: Float[Array, "n n"]) -> Scalar:
    """Mean over states of ||d f(s_i) / d theta||_2 = sqrt(K_ii), f the summed outputs: no loss, no advantages."""
    return jnp.mean(jnp.sqrt(jnp.maximum(jnp.diagonal(kernel), 0)))


def trace_weight_entropy(mixture: Mixture) -> Scalar:
    """H(beta) / log E,  beta_e = Tr(A_ee) / Tr(A) as in `spectrum.routed_trace_weights`, over all experts."""
    mass = expert_sums(mixture, jnp.sum(jnp.square(moderate(mixture.weighted())[0]), axis=2, keepdims=True))
    return _share_of_log(spectral_entropy(mass[:, 0]), mixture.num_experts)


def saturation(policy: Gaussian, low: Float[Any, " act"], high: Float[Any, " act"]) -> Scalar:
    """Probability that a component of an action lies outside the box, mean over states and components.

    The simulator cuts it off there, so that no reward says in which direction to move.
    """
    below, above = low[None] - policy.mean, policy.mean - high[None]
    return jnp.mean(sum(jax.scipy.stats.norm.cdf(far * jnp.exp(-policy.log_std)[None]) for far in (below, above)))


# Specialisation


class Similarity(NamedTuple):
    overlap: Scalar
    orthogonality: Scalar


def pair_similarity(mixture: Mixture) -> Similarity:
    """Means of cos and of 1 - |cos| over all states i and pairs e != e' in S_i of the last features, not weighted.

    cos = 0 where a feature vector is zero; NaN where there is no pair. Needs [n, slots, slots] numbers.
    """
    features, _ = moderate(mixture.features)
    norm = jnp.linalg.norm(features, axis=2, keepdims=True)
    unit = jnp.where(norm == 0, 0, features / jnp.where(norm == 0, 1, norm))
    cosine = jnp.einsum("nsw,ntw->nst", unit, unit)
    on = used(mixture)
    pair = on[:, :, None] & on[:, None, :] & ~jnp.eye(on.shape[1], dtype=bool)[None]
    return Similarity(_mean(cosine, pair), _mean(1 - jnp.abs(cosine), pair))


class Geometry(NamedTuple):
    silhouette: Scalar
    knn_jaccard: Scalar


def gate_geometry(mixture: Mixture, neighbours: int = NEIGHBOURS) -> Geometry:
    """`silhouette` by Top-1 expert and `knn_jaccard` of the routed experts; NaN for a network without a gate."""
    if mixture.routing is None:
        return Geometry(*[jnp.full((), jnp.nan, mixture.weight.dtype)] * 2)
    routing = mixture.routing
    distance = distances(moderate(routing.embedding)[0])
    return Geometry(
        silhouette(distance, top_expert(routing), routing.probability.shape[1]),
        knn_jaccard(distance, routing.chosen[:, routing.shared :], neighbours),
    )


def top_expert(routing: Routing) -> Int[Array, " n"]:
    """The routed expert that the gate rates highest: also where expert choice did not give it the state."""
    return jnp.argmax(routing.probability, axis=1)


# Load, from the counts c_e


def selections(mixture: Mixture) -> Float[Array, " routed"]:
    """c_e: how many states selected expert e. Experts that are always on (`shared`) are left out.

    NaN where the gate is: the largest of NaN is no choice.
    """
    if mixture.routing is None:
        return jnp.full(1, mixture.weight.shape[0], mixture.weight.dtype)
    routing = mixture.routing
    counts = jnp.sum(routing.chosen[:, routing.shared :], axis=0).astype(mixture.weight.dtype)
    return nan_unless(~jnp.any(jnp.isnan(routing.probability)), counts)


def expert_load(mixture: Mixture) -> Float[Array, " routed"]:
    """p_e = c_e / sum_e' c_e', for heat maps over time."""
    counts = selections(mixture)
    return counts / jnp.maximum(jnp.sum(counts), 1)


def max_violation(counts: Float[Array, " experts"]) -> Scalar:
    """MaxVio = max_e |c_e - mean c| / mean c: 0 if balanced, E / K - 1 if the same K experts take all."""
    mean = jnp.mean(counts)
    return jnp.max(jnp.abs(counts - mean)) / jnp.where(mean > 0, mean, 1)


def active_ratio(counts: Float[Array, " experts"]) -> Scalar:
    """|{e: c_e > 0}| / E."""
    return nan_unless(~jnp.any(jnp.isnan(counts)), jnp.mean(counts > 0, dtype=counts.dtype))


def routing_entropy(counts: Float[Array, " experts"]) -> Scalar:
    """H(p) / log E,  p_e = c_e / sum_e' c_e'; 0 for a single expert."""
    return _share_of_log(spectral_entropy(counts), counts.size)


def _share_of_log(entropy: Scalar, number: int) -> Scalar:
    return entropy / math.log(number) if number > 1 else jnp.zeros_like(entropy)


def _mean(values: Float[Array, "*shape"], where: Bool[Array, "*shape"]) -> Scalar:
    """NaN, not an error and not 0, where nothing is left."""
    count = jnp.sum(where)
    return jnp.where(count > 0, jnp.sum(jnp.where(where, values, 0)) / jnp.maximum(count, 1), jnp.nan)
