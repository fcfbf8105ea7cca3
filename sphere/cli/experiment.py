"""`sphere experiment list | plan | run | report`: its options and what they do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from sphere.errors import in_range
from sphere.experiments import NAMES, find
from sphere.experiments.cells import Scale
from sphere.experiments.experiment import Experiment
from sphere.launch.launchers import LAUNCHERS, Resources, say
from sphere.launch.schedule import Schedule
from sphere.training.progress import plural

USAGE = """usage: sphere experiment list
       sphere experiment plan NAME     which runs it needs, in which fleets, and which of them exist
       sphere experiment run NAME      train what is missing, go on with what is half-done
       sphere experiment report NAME   its tables, figures and page, from what there is

  --scale smoke|small|paper   smoke (default): minutes on two cores; small: a tenth of the steps; paper: as in the paper
  --seeds 0 1 2               default: 2, 3 and 5 of them (ten-seeds: 10; runtime and those from checkpoints: 1)
  --out DIR                   default: runs/experiments
  --only "Top-K MoE" SPHERE   of plan and run: these of its methods alone
  --at-once 2                 of run: so many fleets at the same time on this machine
  --launcher local|ray|slurm  of run; sphere experiment run NAME --help tells more"""


@dataclass(frozen=True)
class Options:
    """An experiment of the paper, at one of three scales."""

    name: tyro.conf.Positional[str]
    """As `sphere experiment list` shows it."""
    scale: Scale = "smoke"
    """smoke: minutes on two cores, says nothing about methods; small: a tenth of the steps; paper: as in the paper."""
    seeds: tuple[int, ...] = ()
    """Default: 2, 3 and 5 of them by scale (ten-seeds: 10; runtime and those from checkpoints: 1)."""
    out: Path = Path("runs/experiments")
    """Fleets are kept in a directory by scale and shared between experiments; reports beside them."""


@dataclass(frozen=True)
class PlanOptions(Options):
    """Which runs an experiment needs, in which fleets, and which of them exist."""

    only: tuple[str, ...] = ()
    """Methods, by the names that its tables have for them; default: all."""


@dataclass(frozen=True)
class RunOptions(PlanOptions):
    """Train what is missing of an experiment, and go on with what is half-done."""

    launcher: Literal["local", "ray", "slurm"] = "local"
    """local: here. ray: over a Ray cluster (RAY_ADDRESS, else one of this machine alone). slurm:
    array jobs. The directory must be one that all machines see."""
    at_once: int = 1
    """local: fleets that are trained at the same time, each in a process of its own; they share cores and GPU, which one
    fleet of a few runs does not fill."""
    cpus: int | None = None
    """Cores of a fleet. ray: default all of a node, or its share per GPU; slurm: default 8."""
    gpus: int | None = None
    """GPUs of a fleet. ray: default 1 if there is one; slurm: default 0."""
    hours: float = 24.0
    """slurm: when these are over a fleet goes back into the queue, and on from its checkpoint."""
    partition: str | None = None
    """slurm: where to."""


def listing() -> str:
    width = max(map(len, NAMES))
    rows = [(name, find(name)) for name in NAMES]
    return "\n".join(f"{name:<{width}}  {one.title}  [{one.source}]" for name, one in rows)


def plan_text(name: str, experiment: Experiment, scale: Scale, schedule: Schedule) -> str:
    runs = schedule.runs
    done = {job.directory for job in schedule.jobs if job.finished}
    finished = sum(path.parent in done for path in runs.values())
    left = sum(
        job.steps * (job.total_iterations - job.done_iterations) // job.total_iterations for job in schedule.jobs
    )
    lines = [
        f"{name}, {scale}: {experiment.title} [{experiment.source}]",
        f"{plural(len(runs), 'run')} in {plural(len(schedule.jobs), 'fleet')}, {finished} finished; "
        f"{plural(left, 'environment step')} left",
        "",
    ]
    width = max(len(job.directory.name) for job in schedule.jobs)
    for job in schedule.jobs:
        config = job.config
        shape = f"{plural(len(config.tasks), 'task')} x {config.iterations_per_task * config.iteration_steps:,} steps"
        rho = " ".join(f"{value:g}" for value in config.rho)
        lines.append(
            f"  {job.directory.name:<{width}}  {plural(len(config.runs), 'run'):>8} "
            f"(seeds {_spelled(config.seeds)}; rho {rho})  {shape}  {job.state}"
        )
    return "\n".join(lines)


def _spelled(seeds: tuple[int, ...]) -> str:
    straight = len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if straight else " ".join(map(str, seeds))


def _chosen(options: PlanOptions) -> Experiment:
    experiment = find(options.name)
    return experiment.only(options.only) if options.only else experiment


def plan(arguments: list[str]) -> None:
    options = tyro.cli(PlanOptions, prog="sphere experiment plan", args=arguments)
    experiment = _chosen(options)
    schedule = experiment.schedule(options.scale, options.seeds, options.out)
    print(plan_text(options.name, experiment, options.scale, schedule))


def run(arguments: list[str]) -> None:
    from sphere.training.loop import Interrupted

    options = tyro.cli(RunOptions, prog="sphere experiment run", args=arguments)
    in_range(options, {"at_once": (1, None)})
    if options.at_once > 1 and options.launcher != "local":
        raise ValueError(f"--at-once is for this machine; how many fleets run at a time is up to {options.launcher}")
    experiment = _chosen(options)
    schedule = experiment.schedule(options.scale, options.seeds, options.out)
    todo = schedule.open
    finished = len(schedule.jobs) - len(todo)
    say(f"{options.name}, {options.scale}: {plural(len(schedule.jobs), 'fleet')}, {finished} of them finished")
    if not todo:
        return
    resources = Resources(options.cpus, options.gpus, options.hours, options.partition, options.at_once)
    try:
        failed = LAUNCHERS[options.launcher](todo, resources, options.out / options.scale / options.launcher)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped.at}; go on with the same command") from None
    if failed:
        told = "; ".join(f"{one.job.directory.name}: {one.reason}" for one in failed)
        raise RuntimeError(
            f"{len(failed)} of {plural(len(todo), 'fleet')} failed; once that is mended, the same command goes on: {told}"
        )
    if options.launcher != "slurm":
        say(
            f"its tables and figures: sphere experiment report {options.name} --scale {options.scale} --out {options.out}"
        )


def report(arguments: list[str]) -> None:
    from sphere.experiments.output import write_results

    options = tyro.cli(Options, prog="sphere experiment report", args=arguments)
    experiment = find(options.name)
    found = experiment.found(options.scale, options.seeds, options.out)
    for note in found.loaded.notes:
        say(f"sphere: {note}")
    out = options.out / options.scale / "reports" / options.name
    written = write_results(options.name, experiment, found, out)
    print(f"{plural(len(found.loaded.runs), 'run')}, {plural(len(written), 'file')}: {out / 'index.html'}")


VERBS = {"plan": plan, "run": run, "report": report}


def experiment(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
    elif arguments[0] == "list":
        print(listing())
    elif arguments[0] not in VERBS:
        raise ValueError(f"sphere experiment {arguments[0]!r} is not known; use list, plan, run or report")
    else:
        VERBS[arguments[0]](arguments[1:])
