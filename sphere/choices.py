"""Methods and actors by name: `sphere train --method cbp --actor ds-moe`."""

import dataclasses
from typing import Any, get_args, get_type_hints

from sphere import envs
from sphere.algos.state import Mitigations
from sphere.methods import Parseval
from sphere.methods.method import Method
from sphere.nets import widened
from sphere.nets.build import Kind
from sphere.training.settings import FleetConfig
from sphere.variants import PenaltyConfig

ALIASES = {"pw": "parseval"}

BY_SUITE: dict[str, dict[str, Method]] = {"humanoidbench": {"parseval": Parseval(weight=1e-4)}}
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
    fields = (field.name.replace("_", "-") for field in dataclasses.fields(Mitigations))
    return ["none", "sphere", *fields]


def with_method(config: FleetConfig, name: str) -> FleetConfig:
    """The same fleet with this method, or with several joined by +, in the place of those it has."""
    names = [ALIASES.get(one, one) for one in name.split("+")]
    known = method_names()
    for one in names:
        if one not in known:
            raise envs.unknown("method", one, known)
    if len(set(names)) < len(names) or ("none" in names and len(names) > 1):
        raise ValueError(f"method {name!r} cannot be: name each method once, and none alone")
    suite = config.tasks[0].split("/")[0]
    kinds = {field: get_args(hint)[0] for field, hint in get_type_hints(Mitigations).items()}
    chosen: dict[str, Any] = {
        one.replace("-", "_"): BY_SUITE.get(suite, {}).get(one) or kinds[one.replace("-", "_")]()
        for one in names
        if one not in ("none", "sphere")
    }
    penalty: PenaltyConfig | None = None
    rho: tuple[float, ...] = (0.0,)
    if "sphere" in names:
        penalty, rho = config.ppo.penalty or PenaltyConfig(), config.rho if any(config.rho) else (0.1,)
    ppo = dataclasses.replace(config.ppo, penalty=penalty, mitigations=Mitigations(**chosen))
    return dataclasses.replace(config, rho=rho, ppo=ppo)


def method_name(config: FleetConfig) -> str:
    """The name by which `with_method` would give these methods; settings aside."""
    program = config.ppo if any(config.rho) else dataclasses.replace(config.ppo, penalty=None)
    return "+".join(method.name for method in program.methods) or "none"


def with_actor(config: FleetConfig, name: str) -> FleetConfig:
    """The same fleet with this kind of actor; sizes stay as they are."""
    if name not in ACTORS:
        raise envs.unknown("actor", name, ACTORS)
    actor = dataclasses.replace(config.ppo.actor, kind=ACTORS[name])
    return dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, actor=actor))


def tenfold(config: FleetConfig) -> FleetConfig:
    """PPO(10x): the actor so wide that it has ten times its parameters, for the observations and actions of the tasks."""
    with envs.make(config.tasks[0], num_envs=1, seed=0, workers=0, **config.simulator.given()) as pool:
        sizes = pool.single_observation_space.shape[0], pool.single_action_space.shape[0]
    actor = widened(config.ppo.actor, *sizes, 10)
    return dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, actor=actor))
