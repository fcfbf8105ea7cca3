"""`sphere experiment list | plan | run | report | pages`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sphere.errors import in_range
from sphere.experiments import find, registry
from sphere.experiments.experiment import Experiment, Scale
from sphere.training.progress import plural

if TYPE_CHECKING:  # `list` is quicker without it
    from sphere.experiments.schedule import Schedule

USAGE = """usage: sphere experiment list
       sphere experiment plan NAME     show the runs it needs, their fleets, and which of them exist
       sphere experiment run NAME      train missing fleets, resume unfinished ones
       sphere experiment report NAME   write its tables, figures and page from the runs that exist
       sphere experiment pages RECORDS write a page with a verdict for every experiment, and an overview

  --scale smoke|small|paper   smoke (default): minutes on two cores; small: a tenth of the steps; paper: as in the paper
  --seeds 0 1 2               default: 2, 3 or 5 seeds by scale (ten-seeds: 10; runtime and those from checkpoints: 1)
  --out DIR                   default: runs/experiments
  --only "Top-K MoE" SPHERE   plan and run: only these of its methods
  --at-once 2                 run: number of fleets at the same time on this machine
  --launcher local|ray|slurm  run: where to train; sphere experiment run NAME --help has the details"""


@dataclass(frozen=True)
class Options:
    """An experiment of the paper, at one of three scales."""

    name: tyro.conf.Positional[str]
    """A name from `sphere experiment list`."""
    scale: Scale = "smoke"
    """smoke: minutes on two cores, a test of the code only; small: a tenth of the steps; paper: as in the paper."""
    seeds: tuple[int, ...] = ()
    """Default: 2, 3 or 5 seeds by scale (ten-seeds: 10; runtime and those from checkpoints: 1)."""
    out: Path = Path("runs/experiments")
    """Directory for fleets, which experiments share, and reports; one folder per scale."""


@dataclass(frozen=True)
class PlanOptions(Options):
    """Show the runs that an experiment needs, their fleets, and which of them exist."""

    only: tuple[str, ...] = ()
    """Methods, by their names in its tables; default: all."""


@dataclass(frozen=True)
class RunOptions(PlanOptions):
    """Train the missing fleets of an experiment and resume the unfinished ones."""

    launcher: Literal["local", "ray", "slurm"] = "local"
    """local: this machine; ray: the cluster of RAY_ADDRESS, or this machine; slurm: a job array. All must see --out."""
    at_once: int = 1
    """local: number of fleets trained at the same time, each in its own process; they share cores and GPU."""
    cpus: int | None = None
    """Cores of a fleet. Default with ray: all of a node, or one GPU's share of it; with slurm: 8."""
    gpus: int | None = None
    """GPUs of a fleet. Default with ray: 1 if there is one; with slurm: 0."""
    hours: float = 24.0
    """slurm: time limit of a job; after it the fleet is queued again and resumes from its checkpoint."""
    partition: str | None = None
    """slurm: the partition to submit to."""


def listing() -> str:
    width = max(map(len, registry()))
    return "\n".join(f"{name:<{width}}  {one.title}  [{one.source}]" for name, one in registry().items())


def plan_text(name: str, experiment: Experiment, scale: Scale, schedule: "Schedule") -> str:
    from sphere.experiments.configs import fleet_in_words

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
        lines.append(f"  {job.directory.name:<{width}}  {fleet_in_words(job.config)}  {job.state}")
    return "\n".join(lines)


def _chosen(options: PlanOptions) -> Experiment:
    experiment = find(options.name)
    return experiment.only(options.only) if options.only else experiment


def plan(arguments: list[str]) -> None:
    from sphere.experiments.gather import schedule_of

    options = tyro.cli(PlanOptions, prog="sphere experiment plan", args=arguments)
    experiment = _chosen(options)
    schedule = schedule_of(experiment, options.scale, options.seeds, options.out)
    print(plan_text(options.name, experiment, options.scale, schedule))


def run(arguments: list[str]) -> None:
    from sphere.experiments.gather import schedule_of
    from sphere.launch.launchers import LAUNCHERS, Resources, say
    from sphere.training.loop import Interrupted

    options = tyro.cli(RunOptions, prog="sphere experiment run", args=arguments)
    in_range(options, {"at_once": (1, None)})
    if options.at_once > 1 and options.launcher != "local":
        raise ValueError(f"--at-once is for this machine; {options.launcher} decides how many fleets run at a time")
    schedule = schedule_of(_chosen(options), options.scale, options.seeds, options.out)
    todo = schedule.open
    finished = len(schedule.jobs) - len(todo)
    say(f"{options.name}, {options.scale}: {plural(len(schedule.jobs), 'fleet')}, {finished} finished")
    if not todo:
        return
    resources = Resources(options.cpus, options.gpus, options.hours, options.partition, options.at_once)
    try:
        failed = LAUNCHERS[options.launcher](todo, resources, options.out / options.scale / options.launcher)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped.at}; repeat the command to resume") from None
    if failed:
        reasons = "; ".join(f"{one.job.directory.name}: {one.reason}" for one in failed)
        count = f"{len(failed)} of {plural(len(todo), 'fleet')}"
        raise RuntimeError(f"{count} failed; fix the cause and repeat the command to resume: {reasons}")
    if options.launcher != "slurm":
        words = f"{options.name} --scale {options.scale} --out {options.out}"
        say(f"for tables and figures: sphere experiment report {words}")


def report(arguments: list[str]) -> None:
    from sphere.experiments.gather import gather
    from sphere.experiments.output import write_results

    options = tyro.cli(Options, prog="sphere experiment report", args=arguments)
    experiment = find(options.name)
    found = gather(experiment, options.scale, options.seeds, options.out)
    for note in found.loaded.notes:
        print(f"sphere: {note}", file=sys.stderr)
    out = options.out / options.scale / "reports" / options.name
    written = write_results(options.name, experiment, found, out)
    print(f"{plural(len(found.loaded.runs), 'run')}, {plural(len(written), 'file')}: {out / 'index.html'}")


@dataclass(frozen=True)
class PagesOptions:
    """Write the pages of results from records: one per experiment, and an overview."""

    records: tyro.conf.Positional[Path]
    """Directory with the records of all runs."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("docs/results")
    """Where the pages go; its folder `notes` has the hand-written texts."""


def pages(arguments: list[str]) -> None:
    from sphere.experiments.matching import archive
    from sphere.experiments.results_pages import results_of, write_pages

    options = tyro.cli(PagesOptions, prog="sphere experiment pages", args=arguments)
    records = archive(options.records)
    written = write_pages(records, results_of(records), options.out)
    print(f"{plural(len(written), 'page')}: {options.out / 'index.md'}")


VERBS = {"plan": plan, "run": run, "report": report, "pages": pages}


def experiment(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
    elif arguments[0] == "list":
        print(listing())
    elif arguments[0] not in VERBS:
        raise ValueError(f"sphere experiment has no command {arguments[0]!r}; use list, plan, run or report, or pages")
    else:
        VERBS[arguments[0]](arguments[1:])
