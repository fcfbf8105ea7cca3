"""Who trains the fleets: this process, a Ray cluster, or Slurm."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sphere.launch.schedule import Job, work
from sphere.training.progress import plural


@dataclass(frozen=True)
class Resources:
    """Of one fleet, where a cluster hands them out; and how this machine is divided."""

    cpus: int | None = None
    """None: all of a node that has no GPU, or a GPU's share of one that has."""
    gpus: int | None = None
    """None: one if the cluster has any (Slurm: none)."""
    hours: float = 24.0
    """Slurm: after that a job is sent back to the queue, and goes on from its checkpoint."""
    partition: str | None = None
    """Slurm: where to."""
    at_once: int = 1
    """Local: fleets that are trained at the same time."""


@dataclass(frozen=True)
class Failure:
    job: Job
    reason: str


Launcher = Callable[[Sequence[Job], Resources, Path], list[Failure]]
"""Trains all jobs, and tells which of them failed; the path is for its own files."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def local(jobs: Sequence[Job], resources: Resources, folder: Path) -> list[Failure]:
    """One fleet after another in this process, or some at a time; one that fails does not keep the others from being
    trained."""
    from sphere.training.loop import Interrupted

    if resources.at_once > 1 and len(jobs) > 1:
        from sphere.launch.side_by_side import launch

        return launch(jobs, min(resources.at_once, len(jobs)))
    failed = []
    for number, job in enumerate(jobs, 1):
        say(f"fleet {number} of {len(jobs)}: {job.directory.name}, {plural(len(job.config.runs), 'run')}, {job.state}")
        try:
            work(job)
        except Interrupted:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            say(f"failed: {error}")
            failed.append(Failure(job, str(error)))
    return failed


def ray(jobs: Sequence[Job], resources: Resources, folder: Path) -> list[Failure]:
    from sphere.launch.on_ray import launch

    return launch(jobs, resources, folder)


def slurm(jobs: Sequence[Job], resources: Resources, folder: Path) -> list[Failure]:
    from sphere.launch.on_slurm import submit

    sent = submit(jobs, resources, folder)
    say(
        f"sent to Slurm as {sent[0].job_id} and {len(sent) - 1} more; logs in {folder}. sphere experiment plan shows how far"
    )
    return []


LAUNCHERS: dict[str, Launcher] = {"local": local, "ray": ray, "slurm": slurm}
