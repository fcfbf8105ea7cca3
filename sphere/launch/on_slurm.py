"""Fleets as array jobs of Slurm, by submitit. A job that was preempted or out of time resumes from its checkpoint."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sphere.launch.jobs import Job, work
from sphere.launch.launchers import Resources

CPUS = 8
REQUEUES = 1000


class SlurmTask:
    """What a job runs. submitit calls `checkpoint` when Slurm is about to end the job."""

    def __call__(self, job: Job) -> None:
        work(job)

    def checkpoint(self, job: Job) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


def submit(jobs: Sequence[Job], resources: Resources, folder: Path, cluster: str = "slurm") -> list[Any]:
    """Submit all jobs as one array and return at once. `cluster`: as submitit names it; "local" is this machine."""
    try:
        import submitit
    except ImportError as error:
        raise ValueError("--launcher slurm needs submitit: pip install 'sphere-rl[slurm]'") from error
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise ValueError("--launcher slurm finds no sbatch here; use it on a machine that can submit jobs")
    executor = submitit.AutoExecutor(folder=folder, cluster=cluster, slurm_max_num_timeout=REQUEUES)
    options: dict[str, Any] = {
        "name": "sphere",
        "timeout_min": max(1, round(60 * resources.hours)),
        "cpus_per_task": resources.cpus or CPUS,
    }
    if resources.gpus:
        options["gpus_per_node"] = resources.gpus
    if resources.partition:
        options["slurm_partition"] = resources.partition
    executor.update_parameters(**options)
    return executor.map_array(SlurmTask(), [Job(job.config, job.directory.resolve()) for job in jobs])
