"""From arms to the settings of fleets, and from settings to the identity of a run.

This is the only module of experiments that looks into a `FleetConfig`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sphere.choices import method_name, tenfold, with_actor, with_learner, with_method
from sphere.experiments.arms import Arm
from sphere.experiments.experiment import Scale
from sphere.presets import preset
from sphere.report.names import number
from sphere.storage.files import flatten
from sphere.storage.fleet_directory import UNIMPORTANT
from sphere.training.progress import plural
from sphere.training.settings import Evaluation, FleetConfig, from_json, to_json
from sphere.variants import ALL_EXPERTS

SIZES = {"metaworld": (39, 4), "humanoidbench": (51, 19)}
"""Observation and action; known here so that a plan needs no simulator."""

SMOKE = {
    "num_envs": 4,
    "rollout_steps": 64,
    "batch_size": 64,
    "epochs": 2,
    "update_ratio": 0.05,
    "learning_starts": 128,
    "buffer_size": 2048,
}
"""Settings of learners, where they have them, for the scale `smoke`."""

# Settings of an arm


def config_of(arm: Arm) -> FleetConfig:
    """At the paper's scale."""
    config = with_method(with_actor(preset(arm.preset), arm.actor), arm.method)
    if arm.actor == "ppo-10x":
        config = tenfold(config, *SIZES[config.suite])
    if arm.net:
        config = with_learner(config, actor=dataclasses.replace(config.learner.actor, **arm.net))
    if arm.penalty:
        config = with_learner(config, methods=tuple(_changed(arm, method) for method in config.learner.methods))
    if arm.rho is not None:
        config = dataclasses.replace(config, rho=(arm.rho,))
    return dataclasses.replace(config, tasks=config.tasks[: arm.tasks])


def _changed(arm: Arm, method: Any) -> Any:
    """SPHERE with the arm's settings; other methods as they are."""
    return dataclasses.replace(method, **arm.penalty) if method.name == "sphere" else method


def at_scale(config: FleetConfig, scale: Scale, seeds: tuple[int, ...]) -> FleetConfig:
    """paper: as it is. small: a tenth of the steps. smoke: seconds per fleet, on the real simulator."""
    config = dataclasses.replace(config, seeds=seeds)
    if scale == "paper":
        return config
    if config.source.kind == "stream":
        return _shorter_stream(config, scale)
    if scale == "small":
        shorter = dataclasses.replace(config.evaluation, every=config.evaluation.every // 10)
        return dataclasses.replace(config, steps_per_task=config.steps_per_task // 10, evaluation=shorter)
    nets = {
        role: dataclasses.replace(net, width=net.width // 16, depth=2, token_size=16)
        for role, net in config.learner.nets.items()
    }
    known = {one.name for one in dataclasses.fields(config.learner)}
    config = with_learner(config, **{name: value for name, value in SMOKE.items() if name in known}, **nets)
    return dataclasses.replace(
        config,
        tasks=config.tasks[:2],
        steps_per_task=1024,
        source=dataclasses.replace(config.source, horizon=50),
        evaluation=Evaluation(every=256, episodes=2, heldout=32),
        checkpoint_every=2,
    )


def _shorter_stream(config: FleetConfig, scale: Scale) -> FleetConfig:
    """small: a tenth of the tasks. smoke: two tasks, a small network, a few examples."""
    if scale == "small":
        return dataclasses.replace(config, tasks=config.tasks[: max(2, len(config.tasks) // 10)])
    net, source = config.learner.actor, config.source
    encoder = net.transformer and dataclasses.replace(net.transformer, layers=1, heads=2, width=16)
    few = dataclasses.replace(net, width=16, experts=min(net.experts, 8), transformer=encoder)
    classes = min(source.classes, 5)
    config = with_learner(config, actor=few, examples=4 * classes, batch_size=2 * classes)
    return dataclasses.replace(
        config,
        tasks=config.tasks[:2],
        steps_per_task=8 * classes,
        source=dataclasses.replace(source, classes=classes, per_class=4, test_per_class=10, length=32, vocabulary=1000),
        evaluation=Evaluation(heldout=8),
        checkpoint_every=2,
    )


def by_task(config: FleetConfig) -> list[FleetConfig]:
    """Under RL a fleet for every task: they do not depend on each other, so they can be trained at the same time."""
    if config.protocol != "rl":
        return [config]
    return [dataclasses.replace(config, tasks=(task,)) for task in config.tasks]


# Single runs and their identity


def identity(settings: Mapping[str, Any]) -> str:
    """Of one run by its settings, its seed aside: runs of the same identity and seed have the same numbers.

    With rho 0 the penalty makes no difference, so it is no part of the identity then. What is not set is no part of it
    either, so that a setting added by a later version does not change the identity of older runs.
    """
    found = {name: number(value) for name, value in flatten(settings).items() if value is not None}
    left_out = {"seeds", *UNIMPORTANT}
    penalty = "learner.methods.sphere." if not any(settings["rho"]) else None
    return json.dumps(
        {
            name: value
            for name, value in found.items()
            if name not in left_out and value != {} and not (penalty and name.startswith(penalty))
        },
        sort_keys=True,
    )


def identity_of(config: FleetConfig) -> str:
    return identity(to_json(config))


def identity_on_any_task(config: FleetConfig) -> str:
    """Under RL the same for all tasks: a report joins runs of one arm whose tasks were trained apart."""
    settings = to_json(config)
    return identity({**settings, "tasks": []} if config.protocol == "rl" else settings)


def same_run(config: FleetConfig) -> tuple[str, int]:
    """Of a single run. Equal for two runs exactly if their numbers would be."""
    return identity_of(config), config.seeds[0]


def singles(config: FleetConfig) -> dict[str, FleetConfig]:
    """The runs of a fleet by their names, each with settings of its own."""
    return {run.name: config.of_run(run) for run in config.runs}


def read(settings: Mapping[str, Any]) -> FleetConfig:
    """Settings of a run or a fleet from its record; what a later version has added gets its default."""
    return from_json(settings)


# Runs in one fleet


def shares_program(first: FleetConfig, second: FleetConfig) -> bool:
    """Whether two single runs can be trained in one fleet without a change in their numbers.

    They differ at most in seed and rho. With rho 0 a run is the same under any penalty, except for variants that look
    at all experts: those compute densely, which changes the order of sums.
    """
    if (first.tasks, first.protocol) != (second.tasks, second.protocol):  # quick, and the usual case
        return False
    plain = [identity_of(dataclasses.replace(one, rho=(0.0,))) for one in (first, second)]
    if plain[0] != plain[1]:
        return False
    penalties = [_sphere(one) for one in (first, second) if any(one.rho)]
    if len(penalties) == 2:
        return penalties[0] == penalties[1]
    return all(one.variant not in ALL_EXPERTS for one in penalties)


def _sphere(config: FleetConfig) -> Any:
    return next((method for method in config.learner.methods if method.name == "sphere"), None)


def fleets_of(runs: Sequence[FleetConfig], most: int) -> list[FleetConfig]:
    """Single runs that share a program as fleets of at most `most` runs.

    Fleets are seeds times values of rho: values that need the same seeds go together.
    """
    seeds: dict[float, list[int]] = {}
    for run in runs:
        seeds.setdefault(run.rho[0], []).append(run.seeds[0])
    alike: dict[tuple[int, ...], list[float]] = {}
    for rho, some in seeds.items():
        ordered = sorted(some)
        for start in range(0, len(ordered), most):
            alike.setdefault(tuple(ordered[start : start + most]), []).append(rho)
    whole = next((run for run in runs if any(run.rho)), runs[0])  # its program has the penalty, if any has
    found = []
    for some_seeds, some_rho in alike.items():
        several = max(1, most // len(some_seeds))
        for start in range(0, len(some_rho), several):
            found.append(dataclasses.replace(whole, seeds=some_seeds, rho=tuple(some_rho[start : start + several])))
    return found


# In words


def fleet_name(config: FleetConfig) -> str:
    """Name of the fleet's directory, for people; the digest at the end tells settings apart."""
    runs = sorted(same_run(one) for one in singles(config).values())
    digest = hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:8]
    task_words = [task] if (task := _only_task(config)) else []
    method_words = [name] if (name := method_name(config)) != "none" else []
    words = [config.suite, config.protocol, *task_words, config.learner.actor.kind, *method_words, digest]
    return "-".join(words)


def run_in_words(config: FleetConfig) -> str:
    """Which of the runs of an arm this one is."""
    words = [task] if (task := _only_task(config)) else []
    return ", ".join([*words, f"seed {config.seeds[0]}"])


def _only_task(config: FleetConfig) -> str | None:
    """Under RL, where every task has a fleet of its own."""
    return config.tasks[0].split("/", 1)[1] if config.protocol == "rl" and len(config.tasks) == 1 else None


def fleet_in_words(config: FleetConfig) -> str:
    """Its runs, tasks and steps."""
    seeds = config.seeds
    consecutive = len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[-1] + 1))
    spelled = f"{seeds[0]}-{seeds[-1]}" if consecutive else " ".join(map(str, seeds))
    rho = " ".join(f"{value:g}" for value in config.rho)
    tasks = f"{plural(len(config.tasks), 'task')} x {config.task_steps:,} steps"
    return f"{plural(len(config.runs), 'run'):>8} (seeds {spelled}; rho {rho})  {tasks}"
