"""`sphere train`: a preset, a method, an actor, and every setting as an option."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from sphere import registry
from sphere.errors import UserError
from sphere.training.settings import FleetConfig


@dataclass(frozen=True)
class Output:
    """Train every seed with every rho as one fleet."""

    out: Path | None = None
    """Directory for records and checkpoints; default: runs/ and the names of preset, actor and method."""
    dry_run: bool = False
    """Print the plan (runs, steps, memory, estimated hours) and stop."""
    quiet: bool = False
    """No progress."""


def _take(arguments: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of one option and the arguments without it."""
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1], arguments[:index] + arguments[index + 2 :]
        if argument.startswith(option + "="):
            return argument.split("=", 1)[1], arguments[:index] + arguments[index + 1 :]
    return None, arguments


def _take_all(arguments: list[str], option: str) -> tuple[list[str], list[str]]:
    """The values of an option that takes several words or may be repeated, and the arguments without it."""
    found: list[str] = []
    rest = [word for one in arguments for word in (one.split("=", 1) if one.startswith(option + "=") else [one])]
    while option in rest:
        start = rest.index(option)
        end = start + 1
        while end < len(rest) and not rest[end].startswith("--"):
            end += 1
        found += rest[start + 1 : end]
        rest = rest[:start] + rest[end:]
    return found, rest


def _full_tasks(arguments: list[str], suite: str) -> list[str]:
    """`--tasks hammer push` may leave out the suite of the preset."""
    named, rest = _take_all(arguments, "--tasks")
    if not named:
        return arguments
    return [*rest, "--tasks", *(task if "/" in task else f"{suite}/{task}" for task in named)]


def _vary(words: list[str]) -> dict[str, tuple[float, ...]]:
    """`--vary learning_rate=1e-3,3e-4 temperature=0.5,1`."""
    found = {}
    for word in words:
        name, equals, values = word.partition("=")
        try:
            found[name.replace("-", "_")] = tuple(float(value) for value in values.split(","))
        except ValueError:
            equals = ""
        if not equals:
            raise UserError(f"--vary {word}; want NAME=VALUE,VALUE as in --vary learning_rate=1e-3,3e-4")
    return found


def _one_method(arguments: list[str]) -> tuple[str | None, list[str]]:
    """`--method`, which takes one name; several would each need a program of its own."""
    names, rest = _take_all(arguments, "--method")
    if len(names) > 1:
        raise UserError(
            f"methods {', '.join(names)} do not share a program, so each is a fleet of its own: call sphere train "
            "once for each. Several methods in one run are joined by +; SPHERE beside none: --method sphere --rho 0 0.1"
        )
    return (names[0] if names else None), rest


def _check_method_options(arguments: list[str], chosen: list[str]) -> list[str]:
    """`--pw.weight` by its alias; settings of methods that are not chosen are refused by name."""
    from sphere.choices import ALIASES, method_names

    result = []
    for argument in arguments:
        name, dot, rest = argument.removeprefix("--").partition(".")
        own = ALIASES.get(name, name)
        if argument.startswith("--") and dot and own in method_names():
            if own not in chosen:
                raise UserError(f"{argument} is a setting of the method {own}, which is not chosen; add --method {own}")
            argument = f"--{own}.{rest}"
        result.append(argument)
    return result


def _options(start: FleetConfig) -> tuple[type, dict[str, str]]:
    """A dataclass with a field for each part of the settings: learner and methods by their names, the source's settings
    and the fleet's own without a prefix. And the field of each method."""
    learner = start.learner
    methods = {method.name: f"method_{index}" for index, method in enumerate(learner.methods)}
    fields: list[Any] = [
        ("fleet", Annotated[FleetConfig, tyro.conf.arg(name="")], start),
        (
            "learner",
            Annotated[type(learner), tyro.conf.arg(name=learner.name)],
            dataclasses.replace(learner, methods=()),
        ),
        ("source", Annotated[type(start.source), tyro.conf.arg(name="")], start.source),
        *(
            (methods[method.name], Annotated[type(method), tyro.conf.arg(name=method.name)], method)
            for method in learner.methods
        ),
        ("output", Annotated[Output, tyro.conf.arg(name="")], Output()),
    ]
    made = [(name, kind, dataclasses.field(default=default)) for name, kind, default in fields]
    return dataclasses.make_dataclass("Train", made, frozen=True), methods


def _parse(start: FleetConfig, arguments: list[str], prog: str) -> tuple[FleetConfig, Output]:
    from sphere.choices import ACTORS, method_names

    options, methods = _options(start)
    parsed: Any = tyro.cli(
        options,
        prog=prog,
        description=(
            f"{Output.__doc__} --method NAME: {', '.join(method_names())}, or several as sphere+layernorm; the "
            f"settings of those chosen are among the options. --actor NAME: {', '.join(ACTORS)}. --learner NAME: "
            f"{', '.join(registry.LEARNERS)}. --vary NAME=VALUE,VALUE: other numbers in which runs differ "
            f"({', '.join(start.learner.numbers)}). --plugin MODULE: methods, suites and learners of your own."
        ),
        args=arguments,
        config=(tyro.conf.AvoidSubcommands,),
    )
    chosen = tuple(getattr(parsed, place) for place in methods.values())
    learner = dataclasses.replace(parsed.learner, methods=chosen)
    return dataclasses.replace(parsed.fleet, learner=learner, source=parsed.source), parsed.output


def settings(arguments: list[str]) -> tuple[FleetConfig, Output, list[str]]:
    """What is asked for: the fleet, where to, and the names that were chosen (preset, learner, actor, method)."""
    from sphere.choices import tenfold, with_actor, with_method
    from sphere.presets import PRESETS, preset

    plugins, rest = _take_all(arguments, "--plugin")
    registry.load_plugins(plugins)
    name, rest = _take(rest, "--preset")
    if name is None and "--help" not in rest and "-h" not in rest:
        raise UserError(f"no preset is named; add --preset NAME; known: {', '.join(PRESETS | registry.PRESETS)}")
    start = preset(name or next(iter(PRESETS)))
    kind, rest = _take(rest, "--learner")
    if kind is not None and kind != start.learner.name:
        start = dataclasses.replace(start, learner=registry.learner(kind)(), rho=(0.0,))
    method, rest = _one_method(rest)
    actor, rest = _take(rest, "--actor")
    varied, rest = _take_all(rest, "--vary")
    start = with_actor(start, actor) if actor else start
    start = with_method(start, method) if method else start
    start = dataclasses.replace(start, plugins=(*start.plugins, *plugins))
    chosen = [one.name for one in start.learner.methods]
    words = _check_method_options(_full_tasks(rest, start.suite), chosen)
    config, output = _parse(start, words, f"sphere train --preset {name or 'NAME'}")
    config = dataclasses.replace(config, vary=_vary(varied))
    check_tasks(config, config.tasks)
    if actor == "ppo-10x":
        config = tenfold(config, *_sizes(config))
    return config, output, [word for word in (name, kind, actor, method) if word]


def _sizes(config: FleetConfig) -> tuple[int, int]:
    """Of observations and actions."""
    from sphere import envs

    with envs.make(config.tasks[0], num_envs=1, seed=0, workers=0, **config.source.of_suite()) as pool:
        return pool.single_observation_space.shape[0], pool.single_action_space.shape[0]


def check_tasks(config: FleetConfig, tasks: Iterable[str]) -> None:
    for task in tasks:
        config.source.check(task)


def train(arguments: list[str]) -> None:
    config, output, names = settings(arguments)
    if output.out == Path():
        raise UserError("--out is empty or the current directory; name one for the records, as runs/first")
    out = output.out or Path("runs") / "-".join(names)
    if output.dry_run:
        from sphere.training.plan import plan

        print(plan(config, out))
        return
    if (out / "fleet.json").exists():
        raise UserError(f"{out} holds a fleet already; continue with: sphere resume {out}, or choose another --out")
    from sphere.training.loop import train as run

    run(config, out, quiet=output.quiet)
