"""The empirical neural tangent kernel K = J J^T of a network, exact from layer factors, or estimated for any function.

A layer's gradient is an outer product g a^T, so its share of K needs no Jacobian:
K_ij = sum over layers and over slots that met the same parameters of (a_i . a_j + 1) (g_i . g_j).
The scalar output per sample is the sum of the network's outputs; the log standard deviation of a policy is left out.

The 1 is the bias's. An expert that was not chosen has g = 0; one that was has its gate weight in g. LayerNorm's scale
and bias add a term of their own. One forward pass and one backward pass by the taps give all factors: sample i's
output does not depend on sample j's taps. The sum by part (gate, expert, shared) gives the coupling terms of
`sphere.bounds`. For other functions there is stochastic Lanczos quadrature with a standard error, `slq_effective_rank`
(`sphere/slq.py`); each is the other's test.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Num

from sphere.checks import checked, finite
from sphere.nets.moe import with_compute
from sphere.nets.routers import ExpertChoice
from sphere.nets.trace import Layer, Window, expert_signals, only_trunk, output_signals, trunks_of
from sphere.slq import Estimate as Estimate
from sphere.slq import lanczos as lanczos
from sphere.slq import slq_effective_rank as slq_effective_rank
from sphere.spectrum import effective_rank_spsd


class Factor(eqx.Module):
    """A layer with its backprop signals: everything about its share of the NTK."""

    layer: Layer
    signal: Float[Array, "n slots outer"]


def _states(arguments: Mapping[str, Any]) -> dict[str, Array]:
    """One input of the network's shape for each sample; those of any other function are rows."""
    shape = getattr(next(iter(trunks_of(arguments["net"]).values())), "input_shape", (0,))
    return {"x": finite("x", arguments["x"], 1 + len(shape))}


def _tapped(arguments: Mapping[str, Any]) -> None:
    """A network says by a trace what its layers saw; a function does not."""
    net = arguments["net"]
    for trunk in trunks_of(net).values():
        if not callable(trunk) or "taps" not in inspect.signature(trunk).parameters:
            raise TypeError(
                f"net is {net!r:.60}, wanted a network of sphere.nets, called as net(x, taps); for any other function "
                "there is sphere.ntk.slq_effective_rank(fn, params, x, key)"
            )


def _groups(net: Any) -> list[int]:
    """Sizes of the groups of samples that are routed together."""
    nodes = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, ExpertChoice))
    return [node.group_size for node in nodes if isinstance(node, ExpertChoice)]


def _chunk(net: Any, n: int, batch_size: int | None) -> int:
    if batch_size is None or batch_size >= n:
        return n
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; use 1 or more, or None for all samples at once")
    whole = math.lcm(*_groups(net))  # a group must stay together
    return -(-batch_size // whole) * whole


def factors(net: Callable, x: Num[Array, "n *input"], batch_size: int | None = None) -> tuple[Factor, ...]:
    """Inputs and signals of every layer of one trunk, or of a head's; `batch_size` bounds the samples per pass, not the
    result."""
    net = only_trunk(net)
    chunk = _chunk(net, x.shape[0], batch_size)
    together = bool(_groups(net))
    parts = []
    for start in range(0, x.shape[0], chunk):
        states = x[start : start + chunk]
        count = len(states)
        if count < chunk and not together:  # by its size a network may choose another form for its last samples
            states = jnp.concatenate([states, jnp.broadcast_to(states[:1], (chunk - count, *x.shape[1:]))])
        found = (net(states)[1].layers, output_signals(net, states))
        parts.append(jax.tree.map(lambda leaf, count=count: leaf[:count], found))
    layers, signals = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts) if len(parts) > 1 else parts[0]
    return tuple(Factor(layer, signal) for layer, signal in zip(layers, signals, strict=True))


def layer_gram(factor: Factor) -> Float[Array, "n n"]:
    """One layer's share of K: J_l J_l^T."""
    a, g, layer = factor.layer.input, factor.signal, factor.layer
    if layer.window is not None:
        return _of_gradients(layer, g)
    (n, slots, inner), outer = a.shape, g.shape[2]
    cheaper = outer * inner * (slots + n) <= n * slots**2 * (inner + outer)  # multiplications, than all pairs of tokens
    if layer.one_copy and layer.kind != "lookup" and cheaper:
        return _of_gradients(layer, g)
    if layer.kind == "scale":  # y = scale * a + bias, entry by entry: the gradients are g * a and g
        if layer.owner is None:
            return jnp.einsum("nsd,msd->nm", a * g, a * g) + jnp.einsum("nsd,msd->nm", g, g)
        flat = [v.reshape(n * slots, -1) for v in (a * g, g)]
        products = flat[0] @ flat[0].T + flat[1] @ flat[1].T
    elif layer.kind == "lookup":  # the input is a row's number: gradients meet where that is the same
        rows, signals = a.reshape(n * slots), g.reshape(n * slots, -1)
        products = jnp.where(rows[:, None] == rows[None, :], signals @ signals.T, 0)
    else:
        if layer.owner is None:
            inputs = jnp.einsum("nsd,msd->snm", a, a) + layer.bias
            return jnp.sum(inputs * jnp.einsum("nsd,msd->snm", g, g), axis=0)
        flat = [v.reshape(n * slots, -1) for v in (a, g)]
        products = (flat[0] @ flat[0].T + layer.bias) * (flat[1] @ flat[1].T)
    owner = jnp.asarray(layer.owner).reshape(-1)
    products = jnp.where(owner[:, None] == owner[None, :], products, 0)
    return jnp.sum(products.reshape(n, slots, n, slots), axis=(1, 3))


def _of_gradients(layer: Layer, g: Float[Array, "n slots outer"]) -> Float[Array, "n n"]:
    """Where all slots met one copy: every sample's gradient, formed, and the products of these."""
    form = "nsi,nsi->ni" if layer.kind == "scale" else "nsi,nso->nio"
    if layer.window is not None:
        kernel = _of_convolution(layer.window, layer.input, g)
    else:
        kernel = jnp.einsum(form, layer.input, g).reshape(len(g), -1)
    bias = jnp.sum(g, axis=1)
    return kernel @ kernel.T + (bias @ bias.T if layer.bias else 0)


def _of_convolution(window: Window, a: Float[Array, "n places inner"], g: Array) -> Float[Array, "n weights"]:
    """Every sample's gradient by a convolution's kernel: patches times signals, some samples at a time, for patches
    are as many times larger than images as a kernel has places."""
    half, sides = (window.size // 2,) * 2, (window.size,) * 2

    def one(own: tuple[Array, Array]) -> Array:
        image = own[0].reshape(1, window.height, window.width, -1)
        strides = (window.stride,) * 2
        patches = jax.lax.conv_general_dilated_patches(
            image, sides, strides, (half, half), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return (patches.reshape(own[1].shape[0], -1).T @ own[1]).reshape(-1)

    return jax.lax.map(one, (a, g), batch_size=8)


class NTKParts(NamedTuple):
    """K by parameter group: K = gate + expert + shared. Zeros where a network has no such part."""

    gate: Float[Array, "n n"]
    expert: Float[Array, "n n"]
    shared: Float[Array, "n n"]
    """Of all that is outside of mixtures: embeddings, attention, a head."""


@checked(_tapped)
def blocks(net: Callable, x: Num[Array, "n *input"], batch_size: int | None = None) -> NTKParts:
    """J_gate J_gate^T, J_expert J_expert^T and J_shared J_shared^T, each summed over the network's mixtures and over
    the trunks of a head; with `sphere.bounds` they give the gate-expert coupling."""
    zero = jnp.zeros((x.shape[0], x.shape[0]), _precision(x))
    return NTKParts(**({"shared": zero} | _shares(net, x, batch_size)))


def _precision(x: Array) -> Any:
    return jnp.promote_types(x.dtype, jnp.float32)  # images are bytes


def _shares(net: Any, x: Array, batch_size: int | None) -> dict[str, Array]:
    """Of gate, expert and, if any layer is, of what is shared."""
    zero = jnp.zeros((x.shape[0], x.shape[0]), _precision(x))
    sums = {"gate": zero, "expert": zero}
    for trunk in trunks_of(net).values():
        for factor in factors(trunk, x, batch_size):
            part = factor.layer.part
            sums[part] = sums.get(part, zero) + layer_gram(factor)
    return sums


class KroneckerFactors(NamedTuple):
    """Of one expert layer: A = phi^T phi / N and G = psi^T psi / N after the last two axes are flattened."""

    phi: Float[Array, "n experts inner"]  # gate-weighted inputs h_e a_e, bias column left out
    psi: Float[Array, "n experts outer"]  # each expert's own signal d m_e / d z_e, not weighted


@checked(_tapped)
def kronecker_factors(net: Any, x: Num[Array, "n *input"]) -> tuple[KroneckerFactors, ...]:
    """The factors of A_(l-1) and G_l for every expert layer of the last mixture; all experts on all samples, chosen
    or not, as the paper defines them."""
    trunk = with_compute(only_trunk(net), "dense")
    trace = trunk(x)[1]
    index, mixture = len(trace.mixtures) - 1, trace.mixtures[-1]
    layers = [layer for layer in trace.layers if (layer.mixture, layer.part, layer.kind) == (index, "expert", "linear")]
    return tuple(
        KroneckerFactors(mixture.weight[:, :, None] * layer.input.reshape(*mixture.weight.shape, -1), signal)
        for layer, signal in zip(layers, expert_signals(trunk, x), strict=True)
    )


@checked(_states)
def gram(net: Callable, x: Num[Array, "n *input"], batch_size: int | None = None) -> Float[Array, "n n"]:
    """K = J J^T of a network from `sphere.nets` (a trunk, an actor, a value, a pair of Q functions) on states x.

    Exact, without the Jacobian. Of a head with several trunks it is the sum over them; x is what they read, for a
    pair of Q functions [observation, action].
    """
    _tapped({"net": net})
    return reduce(add, _shares(net, x, batch_size).values())


def effective_rank(net: Callable, x: Num[Array, "n *input"], batch_size: int | None = None) -> Float[Array, ""]:
    """r_e(K), spectral plasticity: in how many directions an update can move the outputs on these states.

    In float32 it is 1% too small where states lie ten times as far from zero as from each other, and K has one large
    eigenvalue: the smallest are lost in its rounding (docs/metrics.md).
    """
    return effective_rank_spsd(gram(net, x, batch_size))
