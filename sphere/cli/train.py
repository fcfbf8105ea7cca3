"""`sphere train`: a preset, a method, an actor, and every setting as an option."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from sphere import registry
from sphere.errors import UserError
from sphere.launch.jobs import FLEETS, Job, work, write_jobs
from sphere.storage.fleet_directory import FLEET
from sphere.training.progress import command, plural
from sphere.training.settings import FleetConfig


@dataclass(frozen=True)
class Output:
    """Train every seed with every rho together, as one fleet. With several methods, one fleet each, in turn."""

    out: Path | None = None
    """Directory for records and checkpoints; default: runs/ and the names of preset, actor and method."""
    dry_run: bool = False
    """Print the plan (runs, steps, memory, estimated hours) and stop."""
    quiet: bool = False
    """Print no progress."""


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


def _check_method_options(arguments: list[str], chosen: list[str], elsewhere: list[str]) -> list[str]:
    """`--pw.weight` by its alias; settings of methods that are not chosen are refused by name, those of methods that
    another fleet of the same command has are left out."""
    from sphere.choices import ALIASES, method_names

    result: list[str] = []
    skipped = False
    for argument in arguments:
        name, dot, rest = argument.removeprefix("--").partition(".")
        own = ALIASES.get(name, name)
        if argument.startswith("--"):
            skipped = False
        if argument.startswith("--") and dot and own in method_names():
            if skipped := own in elsewhere and own not in chosen:
                continue
            if own not in chosen:
                raise UserError(f"{argument} is a setting of the method {own}, which is not chosen; add --method {own}")
            argument = f"--{own}.{rest}"
        if not skipped:
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
            f"{Output.__doc__} The settings of the chosen methods are among the options.\n"
            f"--method NAME ...: {', '.join(method_names())}; combined as sphere+layernorm.\n"
            f"--actor NAME: {', '.join(ACTORS)}.\n"
            f"--learner NAME: {', '.join(registry.LEARNERS)}.\n"
            f"--vary NAME=VALUE,VALUE: other numbers in which runs differ ({', '.join(start.learner.numbers)}).\n"
            "--plugin MODULE: methods, suites and learners of your own."
        ),
        args=arguments,
        config=(tyro.conf.AvoidSubcommands,),
    )
    chosen = tuple(getattr(parsed, place) for place in methods.values())
    learner = dataclasses.replace(parsed.learner, methods=chosen)
    return dataclasses.replace(parsed.fleet, learner=learner, source=parsed.source), parsed.output


class Asked(NamedTuple):
    """One fleet of a command."""

    config: FleetConfig
    output: Output
    names: list[str]
    """Those that were chosen: preset, learner, actor, method."""
    method: str | None


def settings(arguments: list[str]) -> list[Asked]:
    """What is asked for: a fleet for each method that is named, or one with the method of the preset."""
    plugins, rest = _take_all(arguments, "--plugin")
    registry.load_plugins(plugins)
    methods, rest = _take_all(rest, "--method")
    if twice := sorted({name for name in methods if methods.count(name) > 1}):
        raise UserError(f"--method {' '.join(methods)} names {', '.join(twice)} twice; name each once")
    named: list[str | None] = [*methods] or [None]
    return [_asked(rest, plugins, method, methods) for method in named]


def _asked(rest: list[str], plugins: list[str], method: str | None, methods: list[str]) -> Asked:
    from sphere.choices import ALIASES, tenfold, with_actor, with_method
    from sphere.presets import PRESETS, preset

    name, rest = _take(rest, "--preset")
    if name is None and "--help" not in rest and "-h" not in rest:
        raise UserError(f"no preset is named; add --preset NAME; known: {', '.join(PRESETS | registry.PRESETS)}")
    start = preset(name or next(iter(PRESETS)))
    kind, rest = _take(rest, "--learner")
    if kind is not None and kind != start.learner.name:
        start = dataclasses.replace(start, learner=registry.learner(kind)(), rho=(0.0,))
    actor, rest = _take(rest, "--actor")
    varied, rest = _take_all(rest, "--vary")
    start = with_actor(start, actor) if actor else start
    start = with_method(start, method) if method else start
    start = dataclasses.replace(_on_this_machine(start, rest), plugins=(*start.plugins, *plugins))
    chosen = [one.name for one in start.learner.methods]
    if len(methods) > 1:
        if not any(one.strength == "rho" for one in start.learner.methods):
            _, rest = _take_all(rest, "--rho")  # is for the fleets of SPHERE
        elif "none" in methods:  # which is what a rho of 0 would train once more
            start = dataclasses.replace(start, rho=tuple(rho for rho in start.rho if rho))
    elsewhere = [ALIASES.get(part, part) for one in methods for part in one.split("+")]
    words = _check_method_options(_full_tasks(rest, start.suite), chosen, elsewhere)
    config, output = _parse(start, words, f"sphere train --preset {name or 'NAME'}")
    config = dataclasses.replace(config, vary=_vary(varied))
    check_tasks(config, config.tasks)
    if hasattr(config.source, "check_machine"):
        config.source.check_machine(config.suite)
    if actor == "ppo-10x":
        config = tenfold(config, *_sizes(config))
    return Asked(config, output, [word for word in (name, kind, actor) if word], method)


def _on_this_machine(start: FleetConfig, words: Sequence[str]) -> FleetConfig:
    """With the simulator that is best here as the default, unless one is named."""
    choose = getattr(start.source, "on_this_machine", None)
    if choose is None or any(word == "--simulator" or word.startswith("--simulator=") for word in words):
        return start
    return dataclasses.replace(start, source=choose(start.suite))


def _sizes(config: FleetConfig) -> tuple[int, int]:
    """Of observations and actions."""
    from sphere import envs

    with envs.make(config.tasks[0], num_envs=1, seed=0, workers=0, **config.source.of_suite()) as pool:
        return pool.single_observation_space.shape[0], pool.single_action_space.shape[0]


def check_tasks(config: FleetConfig, tasks: Iterable[str]) -> None:
    for task in tasks:
        config.source.check(task)


def jobs(asked: Sequence[Asked]) -> list[Job]:
    """Each fleet and its directory; that of several methods holds a directory for each."""
    first = asked[0]
    if first.output.out == Path():
        raise UserError("--out is empty or the current directory; name one for the records, as runs/first")
    several = len(asked) > 1
    methods = "-".join(one.method for one in asked if one.method)
    out = first.output.out or Path("runs") / "-".join([*first.names, *([methods] if methods else [])])
    return [Job(one.config, out / (one.method or "") if several else out) for one in asked]


def train(arguments: list[str]) -> None:
    asked = settings(arguments)
    todo, output = jobs(asked), asked[0].output
    if output.dry_run:
        from sphere.training.plan import plan

        print("\n\n".join(plan(job.config, job.directory) for job in todo))
        return
    out = todo[0].directory if len(todo) == 1 else todo[0].directory.parent
    if any((place / name).exists() for place in {out, *(job.directory for job in todo)} for name in (FLEET, FLEETS)):
        raise UserError(
            f"{out} holds a fleet already; continue with: {command('resume', out)}, or choose another --out"
        )
    if len(todo) == 1:
        work(todo[0], output.quiet)
        return
    from sphere.training import limits

    for job in todo:  # what the first fleet refuses would leave the list of all behind
        limits.check(job.config, job.directory)
    write_jobs(out, todo)
    work_on(todo, out, output.quiet)


def _same_numbers(out: Path) -> list[str]:
    """Sentences about methods that cannot be told apart by what they recorded. Records that cannot be read are for the
    report to name."""
    from sphere.report.idle import identical_runs
    from sphere.report.load import load

    try:
        return identical_runs(load([out]).runs)
    except ValueError:
        return []


def work_on(todo: Sequence[Job], out: Path, quiet: bool) -> None:
    """Train or resume the fleets below a directory, one after another."""
    from sphere.launch.launchers import Resources, local, say
    from sphere.training.loop import Interrupted

    again = f"continue with: {command('resume', out)}"
    try:
        failed = local(todo, Resources(), out, quiet)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped.at}; {again}") from None
    if failed:
        reasons = "; ".join(f"{one.job.directory.name}: {one.reason}" for one in failed)
        raise RuntimeError(
            f"{len(failed)} of {plural(len(todo), 'fleet')} failed ({reasons}); fix the cause, then {again}"
        )
    for note in _same_numbers(out):
        say(note)
    if not quiet:
        say(f"all {len(todo)} fleets are trained; compare them: {command('report', out, '-o', f'{out}-report')}")
