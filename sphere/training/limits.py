"""What a fleet needs at least, by arithmetic, before anything is opened or allocated: more than the machine has is
refused.

These are lower bounds, so nothing that could be trained is refused. `plan` measures what a fleet that passes really
takes.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from sphere.errors import UserError
from sphere.training.settings import FleetConfig

SAMPLE = 32
"""Bytes of a sample: an observation and an action of one number each, reward, value, log-probability and flags."""
ENVIRONMENT = 256
"""Bytes of an environment; its random generator alone takes as many."""
LINE = 300
"""Bytes of a line of metrics.jsonl; there is one for every iteration."""
TRANSITION = 20
"""Bytes of a transition in a replay memory: two observations, an action, a reward and a flag of one number each."""
MOST_STEPS = 30 * 24 * 3600 * 100_000
"""Of all runs: thirty days at 100,000 steps per second, which is faster than any machine this was measured on."""
MOST_LEARNED = 10_000 * MOST_STEPS
"""Samples that updates of all runs look at: thirty days at a billion per second."""


def host_memory() -> int:
    """Bytes of this machine's memory, or of the part that this process may use."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        return min(found, int(allowed)) if allowed.isdigit() else found
    except OSError:
        return found


def device_memory() -> int:
    """Bytes of the device that learns; on a CPU the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or host_memory()


def network_bytes(net: Any) -> int:
    """Of a trunk: its hidden layers as parameters, gradients and two moments of Adam. The first and the last layer
    depend on the data and are left out."""
    mixture = getattr(net, "kind", "mlp") != "mlp"
    experts = net.experts if mixture else 1
    weights = experts * net.width * (1 + net.width * (net.depth - 1))
    if (encoder := getattr(net, "transformer", None)) is not None:
        weights = encoder.layers * (4 * encoder.width**2 + weights + 2 * experts * net.width * encoder.width)
    if getattr(net, "kind", "") == "deepseek":  # each expert is cut into narrower ones
        weights //= net.split
    if getattr(net, "kind", "") == "soft":
        weights += net.tokens * net.token_size
    return 4 * 4 * weights


def needed(config: FleetConfig) -> Mapping[str, int]:
    """Bytes at least, by what they are for."""
    runs, (envs, _) = len(config.runs), config.learner.rollout
    heldout = config.evaluation.heldout
    return {
        f"data of one iteration ({config.iteration_steps:,} steps of {runs:,} runs)": runs
        * config.iteration_steps
        * SAMPLE,
        f"{runs * envs:,} environments": runs * envs * ENVIRONMENT,
        f"{runs * config.evaluation.episodes:,} environments for evaluation": runs
        * config.evaluation.episodes
        * ENVIRONMENT,
        f"the kernel of {heldout:,} held-out states": runs * heldout**2 * 4,
        f"the memory of {config.learner.memory:,} transitions of {runs:,} runs": runs
        * config.learner.memory
        * TRANSITION,
        f"networks of {runs:,} runs": runs * sum(network_bytes(net) for net in config.learner.nets.values()),
    }


def in_units(size: int) -> str:
    """Bytes as people read them, rounded up."""
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        size = -(-size // 1024)
        if size < 10_000:
            return f"{size:,} {unit}"
    return f"over {min(size, 10**9):,} PiB"


def check_episodes(count: int) -> None:
    """Refuses more evaluation episodes at a time than this machine can hold."""
    if (size := count * ENVIRONMENT) > (memory := host_memory()):
        raise UserError(
            f"{min(count, 10**30):,} episodes at a time need {in_units(size)} of memory or more, and this machine has "
            f"{in_units(memory)}; ask for fewer"
        )


def _check_time(config: FleetConfig) -> None:
    """Refuses what would never end."""
    iterations = config.total_iterations * len(config.runs)
    steps = iterations * config.iteration_steps
    horizon = getattr(config.source, "horizon", None) or 1
    played = len(config.runs) * len(config.tasks) * config.evaluation_count * config.evaluation.episodes * horizon
    for count, most, what, remedy in (
        (steps, MOST_STEPS, "steps in all", "choose fewer steps, tasks or runs"),
        (played, MOST_STEPS, "steps of evaluation in all", "choose fewer episodes, shorter ones or fewer evaluations"),
        (iterations * config.learner.learned, MOST_LEARNED, "samples to learn from in all", "let it learn less often"),
    ):
        if count > most:
            days, speed = min(count * 30 // most, 10**20), most // (30 * 24 * 3600)
            raise UserError(
                f"this fleet has {min(count, 10**30):,} {what}, which is {days:,} days at {speed:,} per second; "
                f"wanted {most:,} at most, so {remedy}"
            )


def check(config: FleetConfig, out: Path) -> None:
    """Refuses with a number what this machine cannot hold, or what would never end."""
    parts = needed(config)
    memory = max(host_memory(), device_memory())
    if sum(parts.values()) > memory:
        what, size = max(parts.items(), key=lambda part: part[1])
        raise UserError(
            f"this fleet needs {in_units(sum(parts.values()))} of memory or more, {in_units(size)} of them for {what}, "
            f"and this machine has {in_units(memory)}; choose smaller settings"
        )
    _check_time(config)
    runs = len(config.runs)
    remembered = min(config.learner.memory, config.task_steps) * TRANSITION
    there = sum(path.stat().st_size for name in ("metrics.jsonl", "replay-*.bin") for path in out.glob(f"*/{name}"))
    lines = config.total_iterations * runs * LINE + runs * remembered - there
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if lines > free:
        raise UserError(
            f"the records of this fleet take {in_units(lines)} or more ({config.total_iterations:,} iterations), and "
            f"{place} has {in_units(free)} free; choose fewer steps, longer iterations or another --out"
        )
