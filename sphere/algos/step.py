"""One gradient step of networks with all that methods add to it, for any learner.

`descend` is such a step: it takes the loss of every network and runs all that methods do around it. Of its two parts,
`gradient` gives the gradient of one network's loss with the terms of all methods, and `after_step` lets methods change
parameters, moments and their own state when all networks have moved.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Num, PRNGKeyArray

from sphere.algos.learner import Numbers
from sphere.algos.optimiser import clipped_adam
from sphere.algos.state import Methods, TrainState, effective
from sphere.coefficient import Penalised
from sphere.methods.method import Look, Step, Term, Weights, overrides
from sphere.nets import Trace

Loss = Callable[[Any], tuple[Float[Array, ""], Any, Any]]
"""Of a network: its loss, what else is known of it, and the trace of its forward pass (of twins, by name)."""


def as_it_is(net: Any) -> Any:
    return net


class Surroundings(NamedTuple):
    """What surrounds a minibatch in an update. By default nothing: parameters are carried as networks."""

    unpack: Mapping[str, Callable[[Any], Any]] | None = None
    """Makes the networks of what the state holds for them, by role."""
    pack: Mapping[str, Callable[[Any], Any]] | None = None
    other_inputs: Num[Array, "n ..."] | None = None
    """Inputs of a second minibatch, for methods that ask for one."""
    steps: Integer[Array, ""] | int = 0
    """Steps of the run before this one."""
    key: PRNGKeyArray | None = None
    """Of this step's methods; none is needed where no method draws random numbers."""

    def unpacked(self, role: str) -> Callable[[Any], Any]:
        return as_it_is if self.unpack is None else self.unpack[role]

    def packed(self, role: str) -> Callable[[Any], Any]:
        return as_it_is if self.pack is None else self.pack[role]


class LossFacts(NamedTuple):
    """What is known of one network's loss beside its value."""

    task: Float[Array, ""]
    """The loss without what methods add."""
    facts: Any
    terms: dict[str, Term]
    """Of methods, by name."""
    trace: Trace


def gradient(
    methods: Methods,
    state: TrainState,
    numbers: Numbers,
    role: str,
    loss: Loss,
    inputs: Num[Array, "n ..."],
    around: Surroundings,
) -> tuple[Penalised, Any]:
    """Of the loss of one network with all that methods add to it; `aux` of the first is a `LossFacts`."""
    own, unpack = state.methods, around.unpacked(role)

    def build(params: Any) -> Any:
        return effective(methods, own, role, unpack(params))

    def function(params: Any) -> tuple[Array, Look, LossFacts]:
        raw = unpack(params)
        net = effective(methods, own, role, raw)
        value, facts, trace = loss(net)
        task = value
        look = Look(role, net, raw, inputs, trace, around.other_inputs, build)
        found = {method.name: method.term(own.get(method.name), look) for method in methods}
        terms = {name: term for name, term in found.items() if term is not None}
        for term in terms.values():
            value = value + term.weight * term.value
        return value, look, LossFacts(task, facts, terms, trace)

    for method in methods:
        balanced = method.gradient(role, function)
        if balanced is not None:
            values, grad = balanced(state.nets[role], numbers[method.strength or "rho"])
            break
    else:
        plain = jax.value_and_grad(lambda params: function(params)[::2], has_aux=True)
        (value, side), grad = plain(state.nets[role])
        values = Penalised(value, jnp.zeros_like(value), jnp.zeros_like(value), side)
    # Clip and Adam are then compiled alike with and without the penalty, and rho = 0 gives the same bits.
    return values, jax.lax.optimization_barrier(grad)


def added(values: Mapping[str, Penalised]) -> tuple[Array, Array, Array]:
    """Penalties of all methods and networks before they are weighted, their weights, and how long the gradient was that
    a penalty weighted by gradients added, beside the task's; of several, the sums."""
    sides: list[LossFacts] = [one.aux for one in values.values()]
    terms = [term for side in sides for term in side.terms.values()]
    weights = {name: term.weight for side in sides for name, term in side.terms.items()}
    first, *others = values.values()
    penalty = sum((one.penalty for one in others), start=first.penalty)
    coefficient = sum((one.coefficient for one in others), start=first.coefficient)
    felt = sum((one.felt for one in values.values() if one.felt is not None), start=jnp.zeros_like(first.loss))
    return sum((term.value for term in terms), start=penalty), sum(weights.values(), start=coefficient), felt


State = TypeVar("State", bound=TrainState)


class Descent(NamedTuple):
    """What one step of all networks was, by role."""

    values: dict[str, Penalised]
    """Losses with what methods add; `aux` is a `LossFacts`."""
    norms: dict[str, Float[Array, ""]]
    """Of the gradients, before they are clipped."""
    replaced: Float[Array, ""]
    """Units that methods have reset."""


def descend(
    methods: Methods,
    state: State,
    numbers: Numbers,
    losses: Mapping[str, Loss],
    inputs: Num[Array, "n ..."],
    rate: Float[Array, ""],
    around: Surroundings = Surroundings(),  # noqa: B008 - a value
    *,
    max_norm: float,
    eps: float,
    rate_fraction: Float[Array, ""] | float = 1.0,
    task_losses: Callable[[dict[str, LossFacts]], dict[str, Array]] | None = None,
) -> tuple[State, Descent]:
    """One step of Adam for every network that has a loss, each gradient clipped by its norm, with all that methods do.

    `rate_fraction`: the rate against that at the start of the task. `task_losses`: what methods are told of the
    task's losses, if not the losses themselves.
    """
    found = {role: gradient(methods, state, numbers, role, loss, inputs, around) for role, loss in losses.items()}
    values = {role: one for role, (one, _) in found.items()}
    moved = {
        role: clipped_adam(state.nets[role], state.moments[role], grad, rate, max_norm=max_norm, eps=eps)
        for role, (_, grad) in found.items()
    }
    stepped = dataclasses.replace(
        state,
        nets=state.nets | {role: net for role, (net, _, _) in moved.items()},
        moments=state.moments | {role: moments for role, (_, moments, _) in moved.items()},
    )
    sides = {role: one.aux for role, one in values.items()}
    told = task_losses(sides) if task_losses else {role: side.task for role, side in sides.items()}
    fraction = jnp.asarray(rate_fraction, rate.dtype)
    stepped, replaced = after_step(methods, state, stepped, values, told, fraction, around)
    return stepped, Descent(values, {role: norm for role, (_, _, norm) in moved.items()}, replaced)


def after_step(
    methods: Methods,
    before: TrainState,
    state: State,
    values: Mapping[str, Penalised],
    losses: Mapping[str, Array],
    rate_fraction: Float[Array, ""],
    around: Surroundings,
) -> tuple[State, Float[Array, ""]]:
    """The state after all methods have done what they do after a step, and how many units were reset.

    `losses`: of each network, of the task alone.
    """
    replaced = jnp.zeros_like(rate_fraction)
    if not any(overrides(method, "after") for method in methods):
        return state, replaced
    key = jax.random.key(0) if around.key is None else around.key
    own = dict(state.methods)
    weights = {role: Weights(net, state.moments[role].mu, state.moments[role].nu) for role, net in state.nets.items()}
    for i, method in enumerate(methods):
        step = Step(
            before=dict(before.nets),
            trace={role: one.aux.trace for role, one in values.items()},
            loss=dict(losses),
            terms={role: one.aux.terms for role, one in values.items()},
            rate_fraction=rate_fraction,
            steps=jnp.asarray(around.steps, jnp.int32),
            key=jax.random.fold_in(key, i),
            unpack={role: around.unpacked(role) for role in state.nets},
            pack={role: around.packed(role) for role in state.nets},
        )
        after = method.after(own.get(method.name), weights, step)
        weights, replaced = after.weights, replaced + after.replaced
        if method.name in own:
            own[method.name] = after.own
    moments = {role: adam._replace(mu=weights[role].mu, nu=weights[role].nu) for role, adam in state.moments.items()}
    nets = {role: one.params for role, one in weights.items()}
    return dataclasses.replace(state, nets=nets, moments=moments, methods=own), replaced
