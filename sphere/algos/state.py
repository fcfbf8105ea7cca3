"""What a learner with networks and Adam carries from update to update, and what methods do to it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Integer, PRNGKeyArray

from sphere.algos.learner import Keep
from sphere.algos.packing import packing
from sphere.methods.method import Method, overrides
from sphere.nets import NetConfig

Methods = tuple[Method, ...]
Forms = dict[str, Callable[[Any], Any]]
"""By role, from one form of a network to another: packed or as it is."""

# Purposes of random keys: a key is used once, and a new consumer gets a new number.
INIT_ACTOR, INIT_CRITIC, ACT, SHUFFLE, INIT_METHODS, METHODS, SHUFFLE_OTHER, DRAW, SMOOTH = range(9)
RESET, RESET_EVALUATION = range(9, 11)


def key_of(seed: Integer[Any, ""], purpose: int, iteration: Integer[Any, ""]) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), iteration)


class TrainState(eqx.Module):
    """Learners add fields of their own."""

    nets: dict[str, Any]
    """By role. Inside an update in their packed form."""
    moments: dict[str, optax.ScaleByAdamState]
    methods: dict[str, Any]
    """The state of every method that has one, by its name."""


State = TypeVar("State", bound=TrainState)


def planned(methods: Methods, nets: dict[str, NetConfig]) -> dict[str, NetConfig]:
    """Settings of networks, by role, as methods want them built."""
    for method in methods:
        nets = {role: method.network(role, net) for role, net in nets.items()}
    return nets


def all_finite(nets: Mapping[str, Any]) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(nets)]))


def init_moments(nets: Mapping[str, Any]) -> dict[str, optax.ScaleByAdamState]:
    return {role: optax.scale_by_adam().init(net) for role, net in nets.items()}


def init_methods(methods: Methods, nets: Mapping[str, Any], seed: Integer[Array, ""]) -> dict[str, Any]:
    """The methods' own state, for networks as they are now."""
    key = jax.random.fold_in(jax.random.key(seed), INIT_METHODS)
    states = {method.name: method.init(dict(nets), jax.random.fold_in(key, i)) for i, method in enumerate(methods)}
    return {name: own for name, own in states.items() if own is not None}


def of_methods(methods: Methods, state: State, change: Callable[[Method, Any], Any]) -> State:
    """The state after every method that has one has changed its own."""
    own = {m.name: change(m, state.methods[m.name]) for m in methods if m.name in state.methods}
    return dataclasses.replace(state, methods=own)


def crossed(methods: Methods, old: State, fresh: State, keep: Keep, seed: Integer[Array, ""]) -> State:
    """The task has changed: networks, moments and methods' states are each kept or fresh. Other fields are fresh."""
    state = dataclasses.replace(
        fresh,
        nets=old.nets if keep.parameters else fresh.nets,
        moments=old.moments if keep.optimiser else fresh.moments,
        methods=old.methods,
    )
    if keep.methods and keep.parameters:  # what a method knows of parameters that are gone is of no use
        return of_methods(methods, state, lambda method, own: method.begin_task(own))
    return dataclasses.replace(state, methods=init_methods(methods, state.nets, seed))


def effective(methods: Methods, own: Mapping[str, Any], role: str, net: Any) -> Any:
    """A network as it acts: its parameters, and what methods make of them."""
    for method in methods:
        net = method.effective(own.get(method.name), role, net)
    return net


def changes_networks(methods: Methods) -> bool:
    return any(overrides(method, "effective") for method in methods)


def forms(nets: Mapping[str, Any]) -> tuple[Forms, Forms]:
    """`pack` and `unpack` for these networks, by role."""
    pairs = {role: packing(net) for role, net in nets.items()}
    return {role: pack for role, (pack, _) in pairs.items()}, {role: unpack for role, (_, unpack) in pairs.items()}


def in_form(methods: Methods, state: State, change: Forms) -> State:
    """Networks and moments in another form; counters as they are."""
    moments = {
        role: adam._replace(mu=change[role](adam.mu), nu=change[role](adam.nu)) for role, adam in state.moments.items()
    }
    state = of_methods(methods, state, lambda method, own: method.carried(own, change))
    return dataclasses.replace(
        state, nets={role: change[role](net) for role, net in state.nets.items()}, moments=moments
    )
