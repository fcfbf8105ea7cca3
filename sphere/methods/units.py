"""Hidden units of a network: where they are, how active a batch found them, and how some of them are reset.

A network's MLPs are, for each of its mixtures, the experts (a dense network counts as one) and the gate, where it has
one. Mixtures are found by walking the network: their order there must be the order in which they run, and every MLP
must be (in) a mixture. A part is called "expert" or "gate"; before it stands the number of its mixture where there
are several, and before that the name of its trunk where a head has several: "first/0/expert".

Arrays by unit have the shape [experts, width], with one expert for a gate and a dense network.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sphere.nets import MLP, Mixture, MoE, Trace, traces_of, trunks_of


def mlps(net: Any) -> dict[str, MLP]:
    """The MLPs of a network or head by name, every leaf with a leading expert axis."""
    found = _mlps(net)
    return {part: jax.tree.map(lambda leaf: leaf[None], mlp) if _alone(mlp) else mlp for part, mlp in found.items()}


def with_mlps(net: Any, changed: dict[str, MLP]) -> Any:
    """The same network with other MLPs, as `mlps` gives them."""
    old = _mlps(net)
    new = [
        jax.tree.map(lambda leaf: leaf[0], changed[part]) if _alone(mlp) else changed[part] for part, mlp in old.items()
    ]
    return eqx.tree_at(lambda net: list(_mlps(net).values()), net, new)


def _mlps(net: Any) -> dict[str, MLP]:
    found = {}
    for trunk, network in trunks_of(net).items():
        mixtures = _walk(network, MoE | MLP)
        for index, mixture in enumerate(mixtures):
            name = _namer(trunk, index, len(mixtures))
            found[name("expert")] = mixture.experts if isinstance(mixture, MoE) else mixture
            # Soft MoE routes by two linear layers without hidden units
            found |= {name("gate"): gate for gate in (_walk(mixture.router, MLP) if isinstance(mixture, MoE) else [])}
    return found


def _walk(net: Any, kind: Any) -> list[Any]:
    """All modules of a kind in a network, in the order of its fields."""
    nodes = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def _namer(trunk: str, index: int, mixtures: int) -> Callable[[str], str]:
    prefix = [trunk] * (trunk != "") + [str(index)] * (mixtures > 1)
    return lambda part: "/".join([*prefix, part])


def _alone(mlp: MLP) -> bool:
    return mlp.head.kernel.ndim == 2


def unit_shapes(mlp: MLP) -> list[tuple[int, int]]:
    """[experts, width] of every hidden layer, of an MLP as `mlps` gives it."""
    return [(layer.kernel.shape[0], layer.kernel.shape[-1]) for layer in mlp.hidden]


class Activity(NamedTuple):
    """Of the hidden units of one part, by the samples that met them."""

    total: tuple[Float[Array, "experts width"], ...]
    """Sum of |h| over them, of every hidden layer."""
    tokens: Float[Array, " experts"]
    """How many samples the expert had: without any, there is no evidence about its units."""

    @property
    def seen(self) -> Bool[Array, " experts"]:
        return self.tokens > 0

    @property
    def mean(self) -> tuple[Float[Array, "experts width"], ...]:
        """Mean |h|; 0 for an expert without samples."""
        count = jnp.maximum(self.tokens, 1)[:, None]
        return tuple(total / count for total in self.total)


def activities(trace: Trace | Mapping[str, Trace], names: Collection[str]) -> dict[str, Activity]:
    """Of the parts of a network or head with these names, as `mlps` gives them."""
    found = {}
    for trunk, one in traces_of(trace).items():
        for index, mixture in enumerate(one.mixtures):
            name = _namer(trunk, index, len(one.mixtures))
            for part in ("expert", "gate"):
                if name(part) in names:
                    layers = [layer for layer in one.layers if (layer.mixture, layer.part) == (index, part)]
                    inputs = [layer.input for layer in layers if layer.kind == "linear"]
                    # by the mixture's rows, which may be tokens
                    rows = [a.reshape(len(mixture.weight), -1, a.shape[-1]) for a in inputs]
                    found[name(part)] = activity(mixture, part, rows)
    return found


def activity(mixture: Mixture, part: str, inputs: list[Float[Array, "n slots _"]]) -> Activity:
    """Of one part, from what its linear layers read."""
    hidden = [jnp.abs(a) for a in inputs[1:]]  # what a layer reads are the units of the one before
    if part == "gate" or mixture.routing is None:
        count = jnp.full(1, len(hidden[0]), hidden[0].dtype) if hidden else jnp.ones(1)
        return Activity(tuple(jnp.sum(h, axis=0) for h in hidden), count)
    if mixture.aligned:
        met = mixture.routing.chosen.astype(hidden[0].dtype)[:, :, None]  # [n, slots, 1], slot e is expert e
        tokens = jnp.sum(met, axis=(0, 2))
        sums = [jnp.sum(met * h, axis=0) for h in hidden]
    else:
        hot = jax.nn.one_hot(mixture.expert, mixture.num_experts, dtype=hidden[0].dtype)  # no row for an empty slot
        tokens = jnp.sum(hot, axis=(0, 1))
        sums = [jnp.einsum("nke,nkw->ew", hot, h) for h in hidden]
    return Activity(tuple(sums), tokens)


def reset_units(
    mlp: MLP,
    layer: int,
    units: Bool[Array, "experts width"],
    kernel: Float[Array, "experts #inner width"],
    scale: float = 1.0,
) -> MLP:
    """Some units of one hidden layer start again: incoming weights from `kernel`, bias 0, outgoing weights 0.

    The affine part of LayerNorm belongs to the unit and is reset too, to `scale` and 0. For Adam's moments: zeros and
    0.
    """
    into, out, normed = mlp.hidden[layer], (*mlp.hidden, mlp.head)[layer + 1], bool(mlp.norms)

    def where(mlp: MLP) -> list[Any]:
        norm = [mlp.norms[layer].scale, mlp.norms[layer].bias] if normed else []
        after = (*mlp.hidden, mlp.head)[layer + 1]
        return [mlp.hidden[layer].kernel, mlp.hidden[layer].bias, after.kernel, *norm]

    new = [
        jnp.where(units[:, None, :], kernel, into.kernel),
        None if into.bias is None else jnp.where(units, 0.0, into.bias),
        jnp.where(units[:, :, None], 0.0, out.kernel),
    ]
    if normed:
        norm = mlp.norms[layer]
        new += [jnp.where(units, scale, norm.scale), jnp.where(units, 0.0, norm.bias)]
    return eqx.tree_at(where, mlp, new)


def cut(vector: Float[Array, " numbers"], shapes: list[tuple[int, ...]]) -> Iterator[Array]:
    """A vector as arrays of these shapes, one after the other."""
    begin = 0
    for shape in shapes:
        size = math.prod(shape)
        yield vector[begin : begin + size].reshape(shape)
        begin += size
