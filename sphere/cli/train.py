"""`sphere train`: a preset, a method, an actor, and every setting as an option."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sphere.errors import UserError, unknown
from sphere.training.settings import FleetConfig


@dataclass(frozen=True)
class Train:
    """Train every seed with every rho as one fleet."""

    fleet: Annotated[FleetConfig, tyro.conf.arg(name="")]
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


def _full_tasks(arguments: list[str], suite: str) -> list[str]:
    """`--tasks hammer push` may leave out the suite of the preset."""
    result = [word for one in arguments for word in (one.split("=", 1) if one.startswith("--tasks=") else [one])]
    if "--tasks" not in result:
        return arguments
    index = result.index("--tasks") + 1
    while index < len(result) and not result[index].startswith("--"):
        if "/" not in result[index]:
            result[index] = f"{suite}/{result[index]}"
        index += 1
    return result


def _methods(arguments: list[str]) -> tuple[str | None, list[str]]:
    """`--method`, which takes one name; several would each need a program of its own."""
    method, rest = _take(arguments, "--method")
    if method is None or f"--method={method}" in arguments:
        return method, rest
    index = arguments.index("--method")
    more = rest[index:]
    for end, word in enumerate(more):
        if word.startswith("-"):
            more = more[:end]
            break
    if more:
        raise UserError(
            f"methods {', '.join([method, *more])} do not share a program, so each is a fleet of its own: call sphere train "
            "once for each. Several methods in one run are joined by +; SPHERE beside none is --method sphere --rho 0 0.1"
        )
    return method, rest


def _method_options(arguments: list[str], fleet: FleetConfig) -> list[str]:
    """`--cbp.decay` is short for `--ppo.mitigations.cbp.decay`, `--sphere.variant` for `--ppo.penalty.variant`."""
    from sphere.choices import ALIASES, method_names

    chosen = {method.name for method in fleet.ppo.methods}
    result = []
    for argument in arguments:
        name, dot, rest = argument.removeprefix("--").partition(".")
        name = ALIASES.get(name, name)
        if argument.startswith("--") and dot and name in method_names():
            if name not in chosen:
                raise UserError(
                    f"{argument} is a setting of the method {name}, which is not chosen; add --method {name}"
                )
            argument = f"--ppo.penalty.{rest}" if name == "sphere" else f"--ppo.mitigations.{name}.{rest}"
        result.append(argument)
    return result


def _description(methods: list[str], actors: list[str]) -> str:
    return (
        f"{Train.__doc__} --method NAME: {', '.join(methods)}, or several as sphere+layernorm; the settings of those chosen "
        "are among the options, and --cbp.decay is short for --ppo.mitigations.cbp.decay. "
        f"--actor NAME: {', '.join(actors)}."
    )


def train(arguments: list[str]) -> None:
    from sphere import envs
    from sphere.choices import ACTORS, method_names, tenfold, with_actor, with_method
    from sphere.presets import PRESETS, preset
    from sphere.training.loop import train as run
    from sphere.training.plan import plan

    name, rest = _take(arguments, "--preset")
    if name is None and "--help" not in rest and "-h" not in rest:
        raise UserError(f"which settings? add --preset NAME; there are {', '.join(PRESETS)}")
    start = preset(name or next(iter(PRESETS)))
    method, rest = _methods(rest)
    actor, rest = _take(rest, "--actor")
    start = with_actor(start, actor) if actor else start
    start = with_method(start, method) if method else start
    suite = start.tasks[0].split("/")[0]
    parsed = tyro.cli(
        Train,
        prog=f"sphere train --preset {name or 'NAME'}",
        description=_description(method_names(), list(ACTORS)),
        default=Train(start),
        args=_method_options(_full_tasks(rest, suite), start),
        config=(tyro.conf.AvoidSubcommands,),
    )
    if actor == "ppo-10x":
        parsed = dataclasses.replace(parsed, fleet=tenfold(parsed.fleet))
    for task in parsed.fleet.tasks:
        known = [f"{task.split('/')[0]}/{one}" for one in envs.tasks(task.split("/")[0])]
        if task not in known:
            raise unknown("task", task, known)
    if parsed.out == Path():
        raise UserError("--out is empty or the current directory; name one for the records, as runs/first")
    out = parsed.out or Path("runs") / "-".join(word for word in (name, actor, method) if word)
    if parsed.dry_run:
        print(plan(parsed.fleet, out))
        return
    if (out / "fleet.json").exists():
        raise UserError(f"{out} holds a fleet already; go on with: sphere resume {out}, or choose another --out")
    run(parsed.fleet, out, quiet=parsed.quiet)
