"""Five ways to choose experts: Top-K, dense, DeepSeek-style, soft, and expert choice.

A router is called as `router(x, recorder)` and returns a `Plan`: which expert each slot of a sample goes to, with which
weight, and what the router decided in all (`Routing`).
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sphere.nets.mlp import MLP, Linear
from sphere.nets.trace import Recorder, Routing


class Plan(NamedTuple):
    weight: Float[Array, "n slots"]
    expert: Int[Array, "n slots"]
    inputs: Array  # [n, in], or [n, slots, in] where the router mixes the experts' inputs itself
    routing: Routing
    aligned: bool  # slot e is expert e
    max_tokens: int  # how many (sample, slot) pairs can be in use


def _temperature(value: float) -> Float[Array, ""]:
    if not value > 0:
        raise ValueError(f"gate temperature must be positive, not {value}")
    return jnp.asarray(value, float)  # strongly typed: a weak type would compile the update twice


def _spread(weight: Float[Array, "n k"], expert: Int[Array, "n k"], num_experts: int) -> tuple[Array, Array]:
    """Weights and choices by expert. Products with one-hot rows: no scatter, forward or backward."""
    hot = jax.nn.one_hot(expert, num_experts, dtype=weight.dtype)
    return jnp.einsum("nk,nke->ne", weight, hot), jnp.sum(hot, axis=1) > 0


def without_padding(plan: Plan, real: Bool[Array, " n"], num_experts: int) -> Plan:
    """The same plan with nothing for rows that are padding: no expert, no weight."""
    rows, routing = real[:, None], plan.routing
    shown = eqx.tree_at(
        lambda r: (r.gate, r.chosen), routing, (jnp.where(rows, routing.gate, 0), rows & routing.chosen)
    )
    return plan._replace(
        weight=jnp.where(rows, plan.weight, 0), expert=jnp.where(rows, plan.expert, num_experts), routing=shown
    )


class LinearGate(eqx.Module):
    """A router of one linear layer without bias, as on the tokens of a Transformer; it has no hidden units."""

    head: Linear

    def __init__(self, inner: int, num_experts: int, *, key: PRNGKeyArray):
        self.head = Linear(inner, num_experts, bias=False, key=key)

    def forward(self, x: Array, record: Callable[[str, Array, Array, bool], Array]) -> tuple[Array, tuple[Array, ...]]:
        """Logits, and as its features what it reads."""
        return record("linear", x, self.head(x), False), (x,)


def top_1(logits: Float[Array, "n experts"]) -> tuple[Float[Array, "n 1"], Int[Array, "n 1"]]:
    """`top_k` with K = 1, without sorting and, in its gradient, without a scatter."""
    expert = jax.lax.argmax(logits, 1, jnp.int32)[:, None]
    hot = jnp.arange(logits.shape[1])[None, :] == expert
    return jnp.sum(jnp.where(hot, logits, 0), axis=1, keepdims=True), expert


class TopK(eqx.Module):
    """The K largest logits, chosen by index (a threshold would keep more than K on ties); softmax over those K.

    With softmax="all" it is taken over all experts and the entries of the chosen ones are kept, not renormalised
    (Switch, V-MoE). With K = E both are the dense MoE: every expert on every sample.
    """

    gate: MLP | LinearGate
    temperature: Float[Array, ""]  # an array so that a sweep may vary it; never trained
    top_k: int = eqx.field(static=True)
    softmax: Literal["chosen", "all"] = eqx.field(static=True)

    def __init__(
        self,
        gate: MLP | LinearGate,
        top_k: int,
        temperature: float = 1.0,
        softmax: Literal["chosen", "all"] = "chosen",
    ):
        num_experts = gate.head.kernel.shape[-1]
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k={top_k} experts of {num_experts} cannot be chosen; use 1 to {num_experts}")
        self.gate, self.top_k, self.temperature = gate, top_k, _temperature(temperature)
        self.softmax = softmax

    def __call__(self, x: Float[Array, "n in"], recorder: Recorder) -> Plan:
        logits, hidden = self.gate.forward(x, recorder.part("gate"))
        logits = logits / jax.lax.stop_gradient(self.temperature)
        n, num_experts = logits.shape
        probability = jax.nn.softmax(logits)
        if self.top_k == num_experts:
            expert = jnp.broadcast_to(jnp.arange(num_experts), logits.shape)
            routing = Routing(logits, probability, probability, jnp.ones(logits.shape, bool), hidden[-1])
            return Plan(probability, expert, x, routing, True, n * num_experts)
        best, expert = top_1(logits) if self.top_k == 1 else jax.lax.top_k(logits, self.top_k)
        weight = jnp.take_along_axis(probability, expert, axis=1) if self.softmax == "all" else jax.nn.softmax(best)
        routing = Routing(logits, probability, *_spread(weight, expert, num_experts), hidden[-1])
        return Plan(weight, expert, x, routing, False, n * self.top_k)


class DeepSeek(eqx.Module):
    """The first `shared` experts are always on with weight 1; of the rest `top_k` are chosen, each weighted by its
    entry of the full softmax, not renormalised (DeepSeekMoE)."""

    gate: MLP
    temperature: Float[Array, ""]
    shared: int = eqx.field(static=True)
    top_k: int = eqx.field(static=True)

    def __init__(self, gate: MLP, shared: int, top_k: int, temperature: float = 1.0):
        routed = gate.head.kernel.shape[-1]
        if not 1 <= top_k <= routed:
            raise ValueError(f"top_k={top_k} of {routed} routed experts cannot be chosen; use 1 to {routed}")
        if shared < 0:
            raise ValueError(f"shared={shared} experts; use 0 or more")
        self.gate, self.shared, self.top_k, self.temperature = gate, shared, top_k, _temperature(temperature)

    def __call__(self, x: Float[Array, "n in"], recorder: Recorder) -> Plan:
        logits, hidden = self.gate.forward(x, recorder.part("gate"))
        logits = logits / jax.lax.stop_gradient(self.temperature)
        n, routed = logits.shape
        probability = jax.nn.softmax(logits)
        expert = jax.lax.top_k(logits, self.top_k)[1]  # of probabilities many may be 0, and then all alike
        weight = jnp.take_along_axis(probability, expert, axis=1)
        on = jnp.broadcast_to(jnp.arange(self.shared), (n, self.shared))
        weight = jnp.concatenate([jnp.ones((n, self.shared), weight.dtype), weight], axis=1)
        expert = jnp.concatenate([on, self.shared + expert], axis=1)
        gate, chosen = _spread(weight, expert, self.shared + routed)
        routing = Routing(logits, probability, gate, chosen, hidden[-1], shared=self.shared)
        return Plan(weight, expert, x, routing, False, expert.size)


class Soft(eqx.Module):
    """Soft MoE: each expert reads a convex combination of the sample's tokens; the output mixes all experts.

    One state is one vector, so it is first projected into `tokens` tokens; with a single token the dispatch would be
    constant. One slot per expert; the tokens' outputs are averaged, so an expert's weight is its mean combine weight.
    """

    tokenise: Linear
    slots: Linear
    temperature: Float[Array, ""]
    tokens: int = eqx.field(static=True)

    def __init__(
        self,
        inner: int,
        num_experts: int,
        tokens: int = 8,
        token_size: int = 64,
        temperature: float = 1.0,
        *,
        key: PRNGKeyArray,
    ):
        if tokens < 2:
            raise ValueError(f"tokens={tokens}: Soft MoE needs at least 2, one token makes the dispatch constant")
        first, second = jax.random.split(key)
        self.tokenise = Linear(inner, tokens * token_size, key=first)
        self.slots = Linear(token_size, num_experts, bias=False, key=second)
        self.tokens, self.temperature = tokens, _temperature(temperature)

    def __call__(self, x: Float[Array, "n in"], recorder: Recorder) -> Plan:
        n = x.shape[0]
        flat = recorder.part("gate")("linear", x, self.tokenise(x), True)
        tokens = flat.reshape(n, self.tokens, -1)
        every = jnp.zeros((n, self.tokens), jnp.int32)  # all tokens meet the same parameters
        same = recorder.part("gate", owner=every, to_slots=lambda v: v, to_bank=lambda v: v)
        logits = same("linear", tokens, jnp.matmul(tokens, self.slots.kernel), False)
        logits = logits / jax.lax.stop_gradient(self.temperature)
        dispatch = jax.nn.softmax(logits, axis=1)  # over tokens
        combine = jnp.mean(jax.nn.softmax(logits, axis=2), axis=1)  # over experts, then the mean over tokens
        inputs = jnp.einsum("nte,ntd->ned", dispatch, tokens)
        expert = jnp.broadcast_to(jnp.arange(combine.shape[1]), combine.shape)
        embedding = jnp.mean(tokens, axis=1)
        routing = Routing(jnp.mean(logits, axis=1), combine, combine, jnp.ones(combine.shape, bool), embedding)
        return Plan(combine, expert, inputs, routing, True, combine.size)


class ExpertChoice(eqx.Module):
    """Each expert takes the samples that rate it highest: ceil(c n / E) of every group of n; weights are raw softmax
    entries, and a sample may get none.

    The choice depends on the samples that stand in the same group. Batches are cut into groups of `group_size` in their
    order; the last may be smaller, as all are when fewer environments act. Learning shuffles, so an action's
    probability there is not the one it was taken with: the first ratios are not one.
    """

    gate: MLP
    temperature: Float[Array, ""]
    capacity: float = eqx.field(static=True)
    group_size: int = eqx.field(static=True)

    def __init__(self, gate: MLP, capacity: float = 2.0, group_size: int = 64, temperature: float = 1.0):
        num_experts = gate.head.kernel.shape[-1]
        if not 0 < capacity <= num_experts:
            raise ValueError(
                f"capacity={capacity}: a sample meets on average more than 0 and at most {num_experts} experts"
            )
        if group_size < 1:
            raise ValueError(f"group_size={group_size}; use 1 or more")
        self.gate, self.capacity, self.group_size = gate, float(capacity), group_size
        self.temperature = _temperature(temperature)

    def _take(self, size: int) -> int:
        """How many samples of a group each expert takes: ceil(c n / E)."""
        wanted = self.capacity * size / self.gate.head.kernel.shape[-1]
        return min(size, math.ceil(wanted - 1e-9))  # 2.2 * 50 / 11 is a little more than 10

    def _choose(self, probability: Float[Array, "groups size experts"]) -> Array:
        """Chosen samples by expert as a mask [groups, size, experts]."""
        size = probability.shape[1]
        best = jax.lax.top_k(jnp.moveaxis(probability, 1, 2), self._take(size))[1]  # [groups, experts, take]
        return jnp.moveaxis(jnp.sum(jax.nn.one_hot(best, size, dtype=jnp.int32), axis=2), 1, 2) > 0

    def __call__(self, x: Float[Array, "n in"], recorder: Recorder) -> Plan:
        logits, hidden = self.gate.forward(x, recorder.part("gate"))
        logits = logits / jax.lax.stop_gradient(self.temperature)
        probability = jax.nn.softmax(logits)
        n, num_experts = logits.shape
        whole = n - n % self.group_size
        parts = []
        if whole:
            parts.append(self._choose(probability[:whole].reshape(-1, self.group_size, num_experts)))
        if whole < n:
            parts.append(self._choose(probability[None, whole:]))
        chosen = jnp.concatenate([part.reshape(-1, num_experts) for part in parts])
        weight = jnp.where(chosen, probability, 0)
        expert = jnp.where(chosen, jnp.arange(num_experts)[None, :], num_experts)
        routing = Routing(logits, probability, weight, chosen, hidden[-1])
        taken = whole // self.group_size * self._take(self.group_size) + self._take(n - whole)
        return Plan(weight, expert, x, routing, True, num_experts * taken)
