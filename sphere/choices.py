"""Methods, actors and learners by name: `sphere train --method cbp --actor ds-moe`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sphere import registry
from sphere.errors import unknown
from sphere.methods.method import Method
from sphere.nets import widened
from sphere.nets.build import Kind
from sphere.training.settings import FleetConfig

ALIASES = {"pw": "parseval"}

BY_SUITE: dict[str, dict[str, Mapping[str, Any]]] = {"humanoidbench": {"parseval": {"weight": 1e-4}}}
"""Where a method's published settings depend on the tasks; else they are its defaults."""

ACTORS: dict[str, Kind] = {
    "ppo": "mlp",
    "ppo-10x": "mlp",
    "top-k": "top-k",
    "dense-moe": "dense",
    "ds-moe": "deepseek",
    "soft-moe": "soft",
    "expert-choice": "expert-choice",
}
"""The paper's actors and the kind of network of each."""


def method_names() -> list[str]:
    return ["none", *registry.METHODS]


def with_method(config: FleetConfig, name: str) -> FleetConfig:
    """The same fleet with this method, or several joined by +, instead of its own. Those that stay keep their
    settings."""
    names = [ALIASES.get(one, one) for one in name.split("+")]
    known = method_names()
    for one in names:
        if one not in known:
            raise unknown("method", one, known)
    if len(set(names)) < len(names) or ("none" in names and len(names) > 1):
        raise ValueError(f"method {name!r} cannot be: name each method once, and none alone")
    before = {method.name: method for method in config.learner.methods}
    chosen: list[Method] = []
    for one in sorted(set(names) - {"none"}, key=known.index):
        published = BY_SUITE.get(config.suite, {}).get(one, {})
        chosen.append(before.get(one) or registry.method(one)(**published))
    rho: tuple[float, ...] = (0.0,)
    if any(method.strength == "rho" for method in chosen):
        rho = config.rho if any(config.rho) else (0.1,)
    return dataclasses.replace(config, rho=rho, learner=dataclasses.replace(config.learner, methods=tuple(chosen)))


def method_name(config: FleetConfig) -> str:
    """The name by which `with_method` would give these methods; settings aside."""
    used = [method.name for method in config.learner.methods if method.strength != "rho" or any(config.rho)]
    return "+".join(used) or "none"


def with_actor(config: FleetConfig, name: str) -> FleetConfig:
    """The same fleet with this kind of actor; sizes stay as they are."""
    if name not in ACTORS:
        raise unknown("actor", name, ACTORS)
    return with_learner(config, actor=dataclasses.replace(config.learner.actor, kind=ACTORS[name]))


def with_learner(config: FleetConfig, **changes: Any) -> FleetConfig:
    """The same fleet with other settings of its learner."""
    return dataclasses.replace(config, learner=dataclasses.replace(config.learner, **changes))


def tenfold(config: FleetConfig, observation: int, action: int) -> FleetConfig:
    """PPO(10x): the actor so wide that it has ten times its parameters, for observations and actions of these sizes."""
    return with_learner(config, actor=widened(config.learner.actor, observation, action, 10))
