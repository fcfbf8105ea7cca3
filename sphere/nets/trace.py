"""What a forward pass hands back: every layer's input and, for each mixture, the routing and expert features.

A network is called as `net(x, taps)` and returns `(output, trace)`. *Taps* are arrays added to the pre-activations,
one per layer of `trace.layers` and of the shape of its `output`; zeros change nothing, and the gradient by them is
the backprop signal g of that layer. Together with the layer's input this is all that the NTK, its factors and the
penalties need.

Everything per sample has a *slot* axis: the places in which one sample meets a copy of the parameters. A dense
network has one slot; a Top-K MoE has K when its experts are computed by group and E when they are computed densely
(then slot e is expert e and the mixture is called *aligned*). A layer that all tokens of a sample share has a slot
for each token, all of one owner.

A network writes its layers to a `Recorder` in the order in which they run and closes each mixture with
`recorder.close`.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

Part = Literal["gate", "expert", "shared"]


class Window(NamedTuple):
    """Of a convolution: the size of what it reads, its own, and its stride."""

    height: int
    width: int
    size: int
    stride: int


class Layer(eqx.Module):
    """One parametrised layer as one batch saw it."""

    input: Float[Array, "n places inner"]
    """`linear`: the input a. `scale` (the affine part of LayerNorm): the normalised input. `lookup`: the row's
    number."""
    output: Float[Array, "n slots outer"]
    """The pre-activation, tap included."""
    owner: Int[Array, "n slots"] | None
    """Which copy of the parameters each slot used; None: slot s used copy s."""
    kind: str = eqx.field(static=True)
    part: Part = eqx.field(static=True)
    """`shared`: outside of all mixtures (embedding, attention, head). A dense network counts as one expert."""
    bias: bool = eqx.field(static=True)
    mixture: int | None = eqx.field(static=True)
    """The mixture that a gate or expert layer belongs to, its place in `Trace.mixtures`; None where it is shared."""
    one_copy: bool = eqx.field(static=True, default=False)
    """All tokens of a sample used the same copy of the parameters."""
    window: Window | None = eqx.field(static=True, default=None)
    """`conv`: its slots are positions, those of the input and those of the output."""


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


class Mixture(eqx.Module):
    """One mixture of experts in one forward pass; a dense network is a mixture of one.

    A row of the first axis is what is routed: a sample or, in a network of tokens, a token (the first sample's first).
    """

    hidden: tuple[Float[Array, "n slots _"], ...]
    """Expert features after each hidden layer (after its activation), not weighted by the gate."""
    weight: Float[Array, "n slots"]
    expert: Int[Array, "n slots"]
    """The expert of each slot; `num_experts` for a slot that is not used."""
    expert_output: Float[Array, "n slots out"]
    routing: Routing | None
    num_experts: int = eqx.field(static=True)
    aligned: bool = eqx.field(static=True)
    complete: bool = eqx.field(static=True)
    """Every expert was computed for every row; if not, what was not chosen is zero."""
    real: Bool[Array, " n"] | None = None
    """Rows that are no padding; None: all. Padding has no expert and no weight."""

    @property
    def features(self) -> Float[Array, "n slots width"]:
        """Features of the last hidden expert layer: what A_last is made of."""
        return self.hidden[-1]

    def weighted(self, layer: int = -1) -> Float[Array, "n slots width"]:
        """Gate-weighted features h_e a_e of one hidden layer, slot by slot."""
        return self.weight[:, :, None] * self.hidden[layer]


def sampled(mixture: Mixture, most: int, fill: bool = False) -> Mixture:
    """At most so many rows, spread evenly over those that are no padding, the same ones for the same batch. Where
    there are fewer, all of them; the rest is padding or, with `fill`, some of them again."""
    n = len(mixture.weight)
    if mixture.real is None and n <= most:
        return mixture
    most = min(most, n)
    real = jnp.ones(n, bool) if mixture.real is None else mixture.real
    found = jnp.sum(real, dtype=jnp.int32)
    count = found if fill else jnp.maximum(found, most)
    place = jnp.arange(most, dtype=jnp.int32)
    first, end = place * count // most, (place + 1) * count // most
    within = (place * 40503) % 65536  # by the golden ratio: not always the same place of its part
    rank = first + within * (end - first) // 65536
    rows = jnp.argsort(~real, stable=True)[rank]  # padding stands behind all others
    # unless some are taken again, no two are the same: said, so that no GPU sorts their gradients to add them up
    taken = jax.tree.map(lambda leaf: leaf.at[rows].get(unique_indices=not fill), mixture)
    return eqx.tree_at(lambda m: m.real, taken, None) if fill and mixture.real is not None else taken


def of_tokens(mixture: Mixture, samples: int, most: int) -> Mixture:
    """Where rows are tokens of so many samples: at most `most` of them, none of them padding."""
    return sampled(mixture, most, fill=True) if len(mixture.weight) > samples else mixture


class Trace(eqx.Module):
    """Everything that others want to look at in one forward pass."""

    mixtures: tuple[Mixture, ...]
    """In the order in which they ran; an MLP or a single MoE has one."""
    layers: tuple[Layer, ...]
    """All parametrised layers in the order in which they ran; each has parameters that no other layer uses."""


class Recorder:
    """Collects layers and mixtures in the order in which they run and adds the tap of each layer.

    `to_slots` and `to_bank` translate between the layout in which a bank of experts computes and the slot layout of the
    trace; the identity with one slot is the default.
    """

    def __init__(self, taps: tuple[Array, ...] | None):
        self.taps = taps
        self.layers: list[Layer] = []
        self.mixtures: list[Mixture] = []
        self.number: int | None = None

    def tokens(self, number: int) -> "Recorder":
        """The same record for layers that compute on rows of tokens [n * number, ...], `number` of them to a sample."""
        view = copy.copy(self)  # the lists are the same
        view.number = number
        return view

    def part(
        self,
        part: Part,
        owner: Int[Array, "n slots"] | None = None,
        to_slots: Callable[[Array], Array] = lambda v: v[:, None],
        to_bank: Callable[[Array], Array] = lambda v: v[:, 0],
    ) -> Callable[[str, Array, Array, bool], Array]:
        """A function that records one layer of this part; gates and experts belong to the mixture closed next."""
        mixture = None if part == "shared" else len(self.mixtures)

        def record(kind: str, inputs: Array, output: Array, bias: bool) -> Array:
            if self.taps is not None:
                output = output + to_bank(self._rows(self.taps[len(self.layers)]))
            seen, given = to_slots(inputs), to_slots(output)
            who = self._owner(owner, given)
            one = owner is None and self.number is not None and given.shape[1] == 1
            self.layers.append(Layer(self._samples(seen), self._samples(given), who, kind, part, bias, mixture, one))
            return output

        return record

    def convolution(
        self, inputs: Float[Array, "n h w inner"], output: Float[Array, "n h2 w2 outer"], window: Window, bias: bool
    ) -> Float[Array, "n h2 w2 outer"]:
        """Record a convolution of images, outside of all mixtures."""
        if self.taps is not None:
            output = output + self.taps[len(self.layers)].reshape(output.shape)
        seen, given = (v.reshape(v.shape[0], -1, v.shape[-1]) for v in (inputs, output))
        self.layers.append(Layer(seen, given, None, "conv", "shared", bias, None, True, window))
        return output

    def _samples(self, rows: Array) -> Array:
        """Rows of tokens [n * number, slots, ...] as samples [n, number * slots, ...]."""
        if self.number is None:
            return rows
        return rows.reshape(-1, self.number * rows.shape[1], *rows.shape[2:])

    def _rows(self, samples: Array) -> Array:
        if self.number is None:
            return samples
        return samples.reshape(-1, samples.shape[1] // self.number, *samples.shape[2:])

    def _owner(self, owner: Array | None, output: Array) -> Array | None:
        if owner is None and self.number is not None:  # slot s of every token used copy s
            owner = jnp.broadcast_to(jnp.arange(output.shape[1]), output.shape[:2])
        return None if owner is None else self._samples(owner)

    def close(self, mixture: Mixture) -> None:
        """A mixture is complete: gate and expert layers recorded from here on belong to the next."""
        self.mixtures.append(mixture)

    def finish(self) -> Trace:
        if self.taps is not None and len(self.taps) != len(self.layers):
            raise ValueError(
                f"{len(self.taps)} taps came for a network of {len(self.layers)} layers; make them with "
                "sphere.nets.zero_taps(net, x)"
            )
        return Trace(tuple(self.mixtures), tuple(self.layers))


def trunks_of(net: Any) -> dict[str, Any]:
    """The networks under a head by name; a network that is no head is its own and has the name ""."""
    return getattr(net, "trunks", None) or {"": net}


def traces_of(trace: Trace | Mapping[str, Trace]) -> dict[str, Trace]:
    """What a head or network gave back as its trace, by the names of its trunks."""
    return dict(trace) if isinstance(trace, Mapping) else {"": trace}


def only_trunk(net: Any) -> Any:
    """The network itself, or the one under a head."""
    trunks = trunks_of(net)
    if len(trunks) > 1:
        names = " or ".join(f"net.trunks[{name!r}]" for name in trunks)
        raise TypeError(f"net is a head with {len(trunks)} trunks, wanted one network; pass {names}")
    return next(iter(trunks.values()))


def shape_of_trace(net: Callable, x: Num[Array, "n *input"]) -> Trace:
    """The trace of net(x) without its numbers."""
    return eqx.filter_eval_shape(lambda net, x: net(x)[1], net, x)


def zero_taps(net: Callable, x: Num[Array, "n *input"]) -> tuple[Array, ...]:
    """Taps that change nothing, of the right shapes for this network and batch."""
    return tuple(jnp.zeros(layer.output.shape, layer.output.dtype) for layer in shape_of_trace(net, x).layers)


def output_signals(net: Callable, x: Num[Array, "n *input"]) -> tuple[Array, ...]:
    """g_l = d f / d z_l for every layer of the trace, f the sum of the network's outputs per sample.

    One backward pass: sample i's output does not depend on sample j's taps. An expert that was not chosen gets 0, one
    that was gets its gate weight times its own signal.
    """
    net = only_trunk(net)
    return jax.grad(lambda taps: jnp.sum(net(x, taps)[0]))(zero_taps(net, x))


def expert_signals(net: Callable, x: Num[Array, "n *input"], mixture: int = -1) -> tuple[Array, ...]:
    """g_e,l = d m_e / d z_e,l for every linear expert layer z = W a of one mixture, m_e the sum of expert e's own
    outputs, before the gate weighs them; by the mixture's rows [n, slots, outer]."""
    signals = jax.grad(lambda taps: jnp.sum(net(x, taps)[1].mixtures[mixture].expert_output))(zero_taps(net, x))
    trace = shape_of_trace(net, x)
    index, rows = mixture % len(trace.mixtures), trace.mixtures[mixture].weight.shape
    wanted = [(layer.mixture, layer.part, layer.kind) == (index, "expert", "linear") for layer in trace.layers]
    return tuple(signal.reshape(*rows, -1) for signal, kept in zip(signals, wanted, strict=True) if kept)
