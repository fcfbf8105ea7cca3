"""`sphere resume`, `eval` and `show`: continuing a fleet and looking at it, from its directory."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from sphere.errors import UserError
from sphere.training.settings import FleetConfig, listed


def settings_of(directory: Path) -> FleetConfig:
    """Of the fleet in a directory."""
    from sphere.launch.jobs import FLEETS, read_jobs
    from sphere.storage.fleet_directory import FLEET, read_fleet
    from sphere.training.settings import from_json

    path = directory / FLEET
    if not path.exists():
        if (directory / FLEETS).exists():
            below = ", ".join(str(job.directory) for job in read_jobs(directory))
            raise UserError(f"{directory} holds several fleets; name one of {below}")
        if (directory / "config.json").exists():
            raise UserError(f"{directory} is one run of a fleet; name the directory above it")
        if (directory / "lock").exists():
            raise UserError(
                f"{directory} holds no fleet yet: training there is starting, or was left before anything was written; "
                "then train into it again"
            )
        if any(directory.glob("*/config.json")):
            raise UserError(f"{directory} holds records without a {FLEET}, so nothing to resume; see: sphere report")
        what = f"holds no fleet (no {FLEET})" if directory.exists() else "does not exist"
        raise UserError(f"{directory} {what}; name the directory that sphere train wrote")
    try:
        return from_json(read_fleet(directory)["settings"])
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


@dataclass(frozen=True)
class Resume:
    """Continue from the newest good checkpoint. With simulators on the CPU, the numbers are those of a run that was
    never stopped. If one command has trained several methods, name the directory above them."""

    directory: tyro.conf.Positional[Path]
    workers: int | None = None
    """Number of simulator processes per group of runs, if it should change; results do not depend on it."""
    sharing: int | None = None
    """Fleets trained on this machine at once, if that should change; results do not depend on it."""
    quiet: bool = False


def resume(arguments: list[str]) -> None:
    from sphere.cli.demo import is_demo, results
    from sphere.cli.train import work_on
    from sphere.launch.jobs import FLEETS, Job, read_jobs
    from sphere.training.loop import train as run

    options = tyro.cli(Resume, prog="sphere resume", args=arguments)
    directory = options.directory
    if (directory / FLEETS).exists():
        todo = [Job(_changed(job.config, options), job.directory) for job in read_jobs(directory)]
        work_on(todo, directory, options.quiet)
        return
    run(_changed(settings_of(directory), options), directory, resume=True, quiet=options.quiet)
    if is_demo(directory):
        print(results(directory))


def _changed(config: FleetConfig, options: Resume) -> FleetConfig:
    """With what may be others than before."""
    if options.workers is not None:
        config = dataclasses.replace(config, source=dataclasses.replace(config.source, workers=options.workers))
    return config if options.sharing is None else dataclasses.replace(config, sharing=options.sharing)


@dataclass(frozen=True)
class Eval:
    """Deterministic episodes of every run's current policy on the tasks of its list."""

    directory: tyro.conf.Positional[Path]
    episodes: int = 10
    tasks: tuple[str, ...] = ()
    """Default: all tasks of the fleet; under rl, where every task has its own policy, the current task."""


def evaluate(arguments: list[str]) -> None:
    options = tyro.cli(Eval, prog="sphere eval", args=arguments)
    print(evaluate_table(options.directory, options.episodes, options.tasks))


@dataclass(frozen=True)
class Show:
    """Settings that differ from the defaults, and the latest numbers of every run."""

    directory: tyro.conf.Positional[Path]


def show(arguments: list[str]) -> None:
    options = tyro.cli(Show, prog="sphere show", args=arguments)
    print(show_text(settings_of(options.directory), options.directory))


def _differences(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Settings that are not the defaults of their class."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        usual = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            named = {"learner": f"{getattr(value, 'name', '')}.", "source": ""}  # as on the command line
            found |= _differences(value, prefix + named.get(field.name, f"{field.name}."))
        elif field.name == "methods" and isinstance(value, tuple):
            for method in value:
                found |= {"method": "+".join(one.name for one in value)} | _differences(method, f"{method.name}.")
        elif value != usual:
            found[prefix + field.name] = value
    return found


def show_text(config: FleetConfig, directory: Path) -> str:
    from sphere.storage.reader import read_run
    from sphere.training.progress import plural

    counts = plural(len(config.runs), "run"), config.protocol, plural(len(config.tasks), "task")
    lines = [f"{directory}: {', '.join(counts)}", ""]
    for name, value in _differences(config).items():
        words = [str(one) for one in value] if isinstance(value, tuple) else [str(value)]
        lines.append(f"  {name:<28} {listed(words, ' ') if name == 'tasks' else ' '.join(words)}")
    notes: list[str] = []
    wide, columns = max(18, *(len(run.name) for run in config.runs)), _columns(config)
    heads = "".join(f" {head:>{size}}" for head, size in columns.values())
    lines += ["", f"{'run':<{wide}} {'step':>12}  {'task':<24}{heads}"]
    for run in config.runs:
        try:
            found = read_run(directory / run.name, notes)
        except (OSError, ValueError, TypeError, LookupError) as error:
            lines.append(f"{run.name:<{wide}} unreadable: {error}")
            continue
        if not found.curve.step.size:
            lines.append(f"{run.name:<{wide}} {found.steps:>12,}  not evaluated yet")
            continue
        cells = "".join(f" {_latest(found.curve.values.get(name)):>{size}}" for name, (_, size) in columns.items())
        lines.append(f"{run.name:<{wide}} {found.curve.step[-1]:>12,}  {config.tasks[found.curve.task[-1]]:<24}{cells}")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _columns(config: FleetConfig) -> dict[str, tuple[str, int]]:
    """Metrics that `show` prints, with their titles and widths: the score, and what else a run of the fleet has."""
    score = config.source.score(config.suite)
    found = {f"evaluation/{score}": (score.removesuffix("_at_end"), 8)}
    if "return" in config.source.columns(config.suite) and score != "return":
        found["evaluation/return"] = ("return", 10)
    if config.evaluation.heldout:
        found["heldout/ntk_rank"] = ("r_e(K)", 8)
    return found


def _latest(values: Any) -> str:
    """Of the evaluations that had it: networks are not diagnosed after each."""
    known = [] if values is None else values[values == values]
    return f"{known[-1]:.2f}" if len(known) else "-"


def evaluate_table(directory: Path, episodes: int, tasks: tuple[str, ...]) -> str:
    from sphere.cli.train import check_tasks
    from sphere.saved import SavedFleet
    from sphere.training.progress import plural

    config = settings_of(directory)
    if episodes < 1:
        raise UserError(f"--episodes {episodes}; want at least 1")
    wanted = [config.full_name(task) for task in tasks]
    check_tasks(config, wanted)
    fleet = SavedFleet.open(directory)
    score = config.source.score(config.suite)
    once = "success_once" if score == "success_at_end" else None
    shown = "success at end (any step)" if once else score
    lines = [f"{plural(episodes, 'deterministic episode')}, after {fleet.steps:,} steps; {shown}", ""]
    if config.protocol == "rl":
        lines.insert(
            1,
            f"every task from scratch: these are the policies of {fleet.task}; those of the other tasks were not kept",
        )
    wanted = wanted or (list(dict.fromkeys(config.tasks)) if config.protocol == "crl" else [fleet.task])
    lines.append(f"{'task':<28}" + "".join(f"{run.name:>18}" for run in config.runs))
    for task in wanted:
        means = fleet.evaluate(task, episodes).means(len(config.runs))
        cells = [f"{one[score]:.2f}" + (f" ({one[once]:.2f})" if once else "") for one in means]
        lines.append(f"{task:<28}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)
