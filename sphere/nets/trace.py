"""What a forward pass hands back: every layer's input, the routing, and the expert features.

A network is called as `net(x, taps)` and returns `(output, trace)`. *Taps* are arrays added to the pre-activations, one per
layer of `trace.layers` and of the shape of its `output`; zeros change nothing, and the gradient by them is the backprop
signal g of that layer. Together with the layer's input this is all that the NTK, its factors and the penalties need.

Everything per sample has a *slot* axis: the places in which one sample meets an expert. A dense network has one slot; a
Top-K MoE has K when its experts are computed by group and E when they are computed densely (then slot e is expert e and
the trace is called *aligned*).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Layer(eqx.Module):
    """One parametrised layer as one batch saw it."""

    input: Float[Array, "n slots inner"]
    """`linear`: the input a. `scale` (the affine part of LayerNorm): the normalised input."""
    output: Float[Array, "n slots outer"]
    """The pre-activation, tap included."""
    owner: Int[Array, "n slots"] | None
    """Which copy of the parameters each slot used; None: slot s used copy s."""
    kind: str = eqx.field(static=True)
    part: str = eqx.field(static=True)
    """`gate` or `expert`; a dense network counts as one expert."""
    bias: bool = eqx.field(static=True)


class Routing(eqx.Module):
    """What the router decided, expert by expert."""

    logits: Float[Array, "n routed"]
    probability: Float[Array, "n routed"]
    """The full softmax over the routed experts, before any of them was dropped."""
    gate: Float[Array, "n experts"]
    """The weight of each expert in the output, 0 where it was not chosen."""
    chosen: Bool[Array, "n experts"]
    embedding: Float[Array, "n width"]
    """The gate's last hidden features."""
    shared: int = eqx.field(static=True, default=0)
    """How many experts, the first ones, are always on and not routed."""


class Trace(eqx.Module):
    """Everything that others want to look at in one forward pass."""

    hidden: tuple[Float[Array, "n slots _"], ...]
    """Expert features after each hidden layer (after its activation), not weighted by the gate."""
    weight: Float[Array, "n slots"]
    expert: Int[Array, "n slots"]
    """The expert of each slot; `num_experts` for a slot that is not used."""
    expert_output: Float[Array, "n slots out"]
    layers: tuple[Layer, ...]
    routing: Routing | None
    num_experts: int = eqx.field(static=True)
    aligned: bool = eqx.field(static=True)
    complete: bool = eqx.field(static=True)
    """Every expert was computed for every sample; if not, what was not chosen is zero."""

    @property
    def features(self) -> Float[Array, "n slots width"]:
        """Features of the last hidden expert layer: what A_last is made of."""
        return self.hidden[-1]

    def weighted(self, layer: int = -1) -> Float[Array, "n slots width"]:
        """Gate-weighted features h_e a_e of one hidden layer, slot by slot."""
        return self.weight[:, :, None] * self.hidden[layer]


class Recorder:
    """Collects layers in the order in which they run and adds the tap of each.

    `to_slots` and `to_bank` translate between the layout in which a bank of experts computes and the slot layout of the
    trace; the identity with one slot is the default.
    """

    def __init__(self, taps: tuple[Array, ...] | None):
        self.taps = taps
        self.layers: list[Layer] = []

    def part(
        self,
        part: str,
        owner: Int[Array, "n slots"] | None = None,
        to_slots: Callable[[Array], Array] = lambda v: v[:, None],
        to_bank: Callable[[Array], Array] = lambda v: v[:, 0],
    ) -> Callable[[str, Array, Array, bool], Array]:
        def record(kind: str, inputs: Array, output: Array, bias: bool) -> Array:
            if self.taps is not None:
                output = output + to_bank(self.taps[len(self.layers)])
            self.layers.append(Layer(to_slots(inputs), to_slots(output), owner, kind, part, bias))
            return output

        return record

    def finish(self) -> tuple[Layer, ...]:
        if self.taps is not None and len(self.taps) != len(self.layers):
            raise ValueError(
                f"{len(self.taps)} taps came for a network of {len(self.layers)} layers; make them with "
                "sphere.nets.zero_taps(net, x)"
            )
        return tuple(self.layers)


def zero_taps(net: Callable, x: Float[Array, "n obs"]) -> tuple[Array, ...]:
    """Taps that change nothing, of the right shapes for this network and batch."""
    trace = eqx.filter_eval_shape(lambda net, x: net(x)[1], net, x)
    return tuple(jnp.zeros(layer.output.shape, layer.output.dtype) for layer in trace.layers)


def output_signals(net: Callable, x: Float[Array, "n obs"]) -> tuple[Array, ...]:
    """g_l = d f / d z_l for every layer of the trace, f the sum of the network's outputs per sample.

    One backward pass: sample i's output does not depend on sample j's taps. An expert that was not chosen gets 0, one that
    was gets its gate weight times its own signal.
    """
    net = getattr(net, "trunk", net)  # of a head
    return jax.grad(lambda taps: jnp.sum(net(x, taps)[0]))(zero_taps(net, x))


def expert_signals(net: Callable, x: Float[Array, "n obs"]) -> tuple[Array, ...]:
    """g_e,l = d m_e / d z_e,l for every linear expert layer z = W a, m_e the sum of expert e's own outputs, before the gate
    weighs them."""
    signals = jax.grad(lambda taps: jnp.sum(net(x, taps)[1].expert_output))(zero_taps(net, x))
    layers = eqx.filter_eval_shape(lambda net, x: net(x)[1], net, x).layers
    wanted = [(layer.part, layer.kind) == ("expert", "linear") for layer in layers]
    return tuple(signal for signal, kept in zip(signals, wanted, strict=True) if kept)
