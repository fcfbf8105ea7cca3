"""Settings as values: what an experiment trains, from presets, methods and actors by name, at one of three scales."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sphere.choices import with_actor, with_method
from sphere.nets import widened
from sphere.presets import preset
from sphere.report.labels import flatten, number
from sphere.storage import run_directory
from sphere.training.settings import HOW, Evaluation, FleetConfig

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)

SEEDS: dict[Scale, int] = {"smoke": 2, "small": 3, "paper": 5}
"""Seeds of a cell; experiments may ask for more at the paper's scale."""

SMOKE = (
    "SMOKE: a few steps of tiny networks on two tasks. It shows that everything from runs to page works; its numbers say "
    "nothing about any method."
)
SMALL = (
    "SMALL: a tenth of the paper's steps per task, three seeds unless said otherwise; not comparable with its numbers."
)

SIZES = {"metaworld": (39, 4), "humanoidbench": (51, 19)}
"""Observation and action; known here so that a plan needs no simulator."""


@dataclass(frozen=True)
class Cell:
    """Runs of one setting that a table or figure shows under one name."""

    label: str
    """As the paper calls it."""
    config: FleetConfig
    """Its seeds are those of the scale, in the end."""


def settings(
    name: str,
    method: str = "none",
    actor: str = "top-k",
    *,
    rho: float | None = None,
    net: Mapping[str, Any] | None = None,
    penalty: Mapping[str, Any] | None = None,
) -> FleetConfig:
    """A preset with a method, an actor, changes to the actor's network and to SPHERE's settings."""
    config = with_method(with_actor(preset(name), actor), method)
    if actor == "ppo-10x":
        wide = widened(config.ppo.actor, *SIZES[config.tasks[0].split("/")[0]], 10)
        config = _with_ppo(config, actor=wide)
    if net:
        config = _with_ppo(config, actor=dataclasses.replace(config.ppo.actor, **net))
    if penalty:
        if config.ppo.penalty is None:
            raise ValueError(f"method {method!r} has no penalty to be changed; use sphere")
        config = _with_ppo(config, penalty=dataclasses.replace(config.ppo.penalty, **penalty))
    return config if rho is None else dataclasses.replace(config, rho=(rho,))


def cell(label: str, name: str, *arguments: Any, **changes: Any) -> Cell:
    return Cell(label, settings(name, *arguments, **changes))


def _with_ppo(config: FleetConfig, **changes: Any) -> FleetConfig:
    return dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, **changes))


def at_scale(config: FleetConfig, scale: Scale, seeds: tuple[int, ...]) -> FleetConfig:
    """paper: as it is. small: a tenth of the steps. smoke: seconds per fleet, on the real simulator."""
    config = dataclasses.replace(config, seeds=seeds)
    if scale == "paper":
        return config
    if scale == "small":
        shorter = dataclasses.replace(config.evaluation, every=config.evaluation.every // 10)
        return dataclasses.replace(config, steps_per_task=config.steps_per_task // 10, evaluation=shorter)
    nets: dict[str, Any] = {
        role: dataclasses.replace(net, width=net.width // 16, depth=2, token_size=16)
        for role, net in (("actor", config.ppo.actor), ("critic", config.ppo.critic))
    }
    ppo = dataclasses.replace(config.ppo, num_envs=4, rollout_steps=64, batch_size=64, epochs=2, **nets)
    return dataclasses.replace(
        config,
        tasks=config.tasks[:2],
        steps_per_task=1024,
        ppo=ppo,
        simulator=dataclasses.replace(config.simulator, horizon=50),
        evaluation=Evaluation(every=256, episodes=2, heldout=32),
        checkpoint_every=2,
    )


def apart(config: FleetConfig) -> list[FleetConfig]:
    """Under RL a fleet for every task: they do not depend on each other, so they can be trained at the same time."""
    if config.protocol != "rl":
        return [config]
    return [dataclasses.replace(config, tasks=(task,)) for task in config.tasks]


UNIMPORTANT = ("seeds", *HOW)
"""Settings in which two runs may differ and still be the same experiment; the seed is compared by itself."""


def identity(config: Mapping[str, Any]) -> str:
    """Of one run by its config.json, its seed aside: runs of the same identity and seed have the same numbers.

    With rho 0 the penalty makes no difference, so it is no part of the identity then; nor is what is not set: a setting that
    came with a later version does not make another run of an old one.
    """
    rest = {name: value for name, value in config.items() if name not in UNIMPORTANT}
    found = {name: number(value) for name, value in flatten(rest).items() if value is not None}
    if not any(config["rho"]):
        found = {name: value for name, value in found.items() if not name.startswith("ppo.penalty")}
    return json.dumps(found, sort_keys=True)


def identity_of(config: FleetConfig) -> str:
    return identity(run_directory.plain(dataclasses.asdict(config)))
