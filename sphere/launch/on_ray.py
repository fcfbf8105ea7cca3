"""Fleets on a Ray cluster. When a worker or node is lost, its fleet resumes elsewhere from its last checkpoint.

All machines must see the directory of the fleets under the same path: work moves between them through checkpoints.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sphere.launch.jobs import Job, work
from sphere.launch.launchers import Failure, Resources, say
from sphere.training.progress import plural

LOSSES = 20
"""A fleet that has lost its worker or node more often than this has failed."""


def launch(jobs: Sequence[Job], resources: Resources, folder: Path) -> list[Failure]:
    """Train all of them; returns when each is finished or has failed."""
    # no usage reports; GPUs stay visible to fleets that ask for none, as in later versions of Ray
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    elsewhere = os.environ.get("RAY_ADDRESS")
    if not elsewhere:  # despite its name, on every system: this machine alone, all sockets on 127.0.0.1
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError as error:
        raise ValueError("--launcher ray needs Ray: pip install 'sphere-rl[ray]'") from error
    if elsewhere:
        ray.init(elsewhere, logging_level=logging.WARNING)
    else:  # ends with this process
        ray.init("local", include_dashboard=False, logging_level=logging.WARNING)
    try:
        return _train(ray, [Job(job.config, job.directory.resolve()) for job in jobs], resources)
    finally:
        ray.shutdown()


def _train(ray: Any, jobs: Sequence[Job], resources: Resources) -> list[Failure]:
    cpus, gpus = _share(ray.nodes(), resources)
    options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": LOSSES, "retry_exceptions": False}
    remote = ray.remote(work)
    each = f"{plural(cpus, 'core')} and {plural(gpus, 'GPU')} each"
    say(f"{plural(len(jobs), 'fleet')} on {plural(len(ray.nodes()), 'node')}, {each}")
    waiting = {remote.options(name=job.directory.name, **options).remote(job): job for job in jobs}
    failed = []
    while waiting:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        job = waiting.pop(done)
        try:
            ray.get(done)
            say(f"finished: {job.directory.name}; {len(waiting)} left")
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            say(f"failed: {job.directory.name}: {cause}")
            failed.append(Failure(job, str(cause)))
    return failed


def _share(nodes: Sequence[dict[str, Any]], resources: Resources) -> tuple[int, int]:
    """Cores and GPUs of a fleet: as requested, else one GPU with its share of the cores, else a whole node."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    with_gpu = [one for one in alive if one.get("GPU", 0) >= 1]
    gpus = resources.gpus if resources.gpus is not None else int(bool(with_gpu))
    usable = with_gpu if gpus else [one for one in alive if one.get("CPU", 0) >= 1]
    if not usable:
        raise ValueError(f"the Ray cluster has no node with {'a GPU' if gpus else 'cores'}; its nodes have {alive}")
    shares = [one.get("CPU", 1) * gpus // one["GPU"] if gpus else one["CPU"] for one in usable]
    return resources.cpus or max(1, int(min(shares))), gpus
