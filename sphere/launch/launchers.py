"""The launchers by name: this machine, a Ray cluster, or Slurm."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sphere.launch.jobs import Job, work
from sphere.training.progress import plural
from sphere.training.sentences import DEBUG, in_a_sentence


@dataclass(frozen=True)
class Resources:
    """What a cluster gives to each fleet, and how many fleets share this machine."""

    cpus: int | None = None
    """None: all cores of a node without GPUs; of a node with GPUs, one GPU's share."""
    gpus: int | None = None
    """None: one if the cluster has any (Slurm: none)."""
    hours: float = 24.0
    """Slurm: time limit of a job; then it is queued again and resumes from its checkpoint."""
    partition: str | None = None
    """Slurm: the partition."""
    at_once: int = 1
    """Local: number of fleets that are trained at the same time."""


@dataclass(frozen=True)
class Failure:
    job: Job
    reason: str


Launcher = Callable[[Sequence[Job], Resources, Path], list[Failure]]
"""Trains all jobs and returns those that failed. The path is a folder for its own files."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def local(jobs: Sequence[Job], resources: Resources, folder: Path, quiet: bool = False) -> list[Failure]:
    """One fleet after another in this process, or several at a time. A failure does not stop the other fleets."""
    from sphere.training.loop import Interrupted

    if resources.at_once > 1 and len(jobs) > 1:
        from sphere.launch.side_by_side import launch

        return launch(jobs, min(resources.at_once, len(jobs)))
    failed = []
    for number, job in enumerate(jobs, 1):
        if not quiet:
            count = plural(len(job.config.runs), "run")
            begun = "" if job.state == "not started" else f", {job.state}"
            say(f"fleet {number} of {len(jobs)}: {job.directory.name}, {count}{begun}")
        try:
            work(job, quiet)
        except Interrupted:
            raise
        except Exception as error:
            if os.environ.get(DEBUG):
                traceback.print_exc()
            say(f"failed: {in_a_sentence(error)}")
            failed.append(Failure(job, in_a_sentence(error)))
    return failed


def ray(jobs: Sequence[Job], resources: Resources, folder: Path) -> list[Failure]:
    from sphere.launch.on_ray import launch

    return launch(jobs, resources, folder)


def slurm(jobs: Sequence[Job], resources: Resources, folder: Path) -> list[Failure]:
    from sphere.launch.on_slurm import submit

    sent = submit(jobs, resources, folder)
    say(
        f"submitted {plural(len(sent), 'job')} to Slurm, the first is {sent[0].job_id}; logs are in {folder}. "
        "sphere experiment plan shows the progress"
    )
    return []


LAUNCHERS: dict[str, Launcher] = {"local": local, "ray": ray, "slurm": slurm}
