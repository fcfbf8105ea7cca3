"""Fleets over a Ray cluster. A fleet whose worker or node is lost is begun again elsewhere, from its last checkpoint.

All machines must see the directory of the fleets under the same path: checkpoints are how work moves between them.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sphere.launch.launchers import Failure, Resources, say
from sphere.launch.schedule import Job, work
from sphere.training.progress import plural

LOSSES = 20
"""How often a fleet may lose its worker or node before it counts as failed."""


def launch(jobs: Sequence[Job], resources: Resources, folder: Path) -> list[Failure]:
    """Train all of them; returns when each is finished or has failed."""
    # no reports of use to anybody; where no GPU is asked for, those there are stay visible, as in Ray's later versions
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    elsewhere = os.environ.get("RAY_ADDRESS")
    if not elsewhere:  # Ray's word, on every system, for: this machine alone, all sockets on 127.0.0.1
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError as error:
        raise ValueError("--launcher ray needs a package more: pip install 'sphere-rl[ray]'") from error
    if elsewhere:
        ray.init(elsewhere, logging_level=logging.WARNING)
    else:  # gone with this process
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
    say(f"{plural(len(jobs), 'fleet')} over {plural(len(ray.nodes()), 'node')}, {each}")
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
    """Cores and GPUs of a fleet: what was asked for, else a GPU with its share of cores, else a whole node."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    with_gpu = [one for one in alive if one.get("GPU", 0) >= 1]
    gpus = resources.gpus if resources.gpus is not None else int(bool(with_gpu))
    usable = with_gpu if gpus else [one for one in alive if one.get("CPU", 0) >= 1]
    if not usable:
        raise ValueError(f"the Ray cluster has no node with {'a GPU' if gpus else 'cores'}; it has {alive}")
    shares = [one.get("CPU", 1) * gpus // one["GPU"] if gpus else one["CPU"] for one in usable]
    return resources.cpus or max(1, int(min(shares))), gpus
