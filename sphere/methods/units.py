"""Hidden units of a network: where they are, how active a batch found them, and how some of them begin anew.

A network's MLPs are its experts (a dense network counts as one) and, where it has one, its gate. Arrays by unit have the shape
[experts, width], with one expert for a gate and a dense network.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sphere.nets import MLP, Trace


def mlps(net: Any) -> dict[str, MLP]:
    """The MLPs of an actor or a critic by their part in its trace, every leaf with a leading expert axis."""
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
    if isinstance(net.trunk, MLP):
        return {"expert": net.trunk}
    gate = getattr(net.trunk.router, "gate", None)  # Soft MoE routes by two linear layers without hidden units
    return {"expert": net.trunk.experts} | ({} if gate is None else {"gate": gate})


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


def activity(trace: Trace, part: str) -> Activity:
    layers = [layer for layer in trace.layers if layer.part == part and layer.kind == "linear"]
    hidden = [jnp.abs(layer.input) for layer in layers[1:]]  # what a layer reads are the units of the one before
    if part == "gate" or trace.routing is None:
        count = jnp.full(1, len(hidden[0]), hidden[0].dtype) if hidden else jnp.ones(1)
        return Activity(tuple(jnp.sum(h, axis=0) for h in hidden), count)
    if trace.aligned:
        met = trace.routing.chosen.astype(hidden[0].dtype)[:, :, None]  # [n, slots, 1], slot e is expert e
        tokens = jnp.sum(met, axis=(0, 2))
        sums = [jnp.sum(met * h, axis=0) for h in hidden]
    else:
        hot = jax.nn.one_hot(trace.expert, trace.num_experts, dtype=hidden[0].dtype)  # no row for an empty slot
        tokens = jnp.sum(hot, axis=(0, 1))
        sums = [jnp.einsum("nke,nkw->ew", hot, h) for h in hidden]
    return Activity(tuple(sums), tokens)


def replanted(
    mlp: MLP,
    layer: int,
    units: Bool[Array, "experts width"],
    kernel: Float[Array, "experts #inner width"],
    scale: float = 1.0,
) -> MLP:
    """Some units of one hidden layer begin anew: incoming weights from `kernel`, bias 0, outgoing weights 0.

    The affine part of LayerNorm belongs to the unit and is reset too, to `scale` and 0. For Adam's moments: zeros and 0.
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
