"""Which of the wanted runs exist, and how the others are grouped: seeds and values of rho of one program are one fleet."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sphere.choices import method_name
from sphere.storage import checkpoint
from sphere.training.settings import FleetConfig, rebuild, run_name, with_run
from sphere.variants import ALL_EXPERTS, PenaltyConfig

MOST_RUNS = 20
"""Of one fleet: beyond that, larger fleets are hardly faster, and what is lost by a fault is more."""


@dataclass(frozen=True)
class Job:
    """One fleet to be trained, or gone on with, in its directory."""

    config: FleetConfig
    directory: Path

    @property
    def total_iterations(self) -> int:
        return len(self.config.tasks) * self.config.iterations_per_task

    @property
    def steps(self) -> int:
        """Environment steps of all runs."""
        return len(self.config.runs) * self.total_iterations * self.config.iteration_steps

    @property
    def done_iterations(self) -> int:
        """As far as the newest checkpoint."""
        kept = checkpoint.checkpoints(self.directory)
        return int(kept[-1].stem.rsplit("-", 1)[1]) if kept else 0

    @property
    def finished(self) -> bool:
        """The last checkpoint of all is written after the last record."""
        return self.done_iterations >= self.total_iterations

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        if not (self.directory / "fleet.json").is_file():
            return "to do"
        return f"half-done ({self.done_iterations / self.total_iterations:.0%})"


def singles(config: FleetConfig) -> list[FleetConfig]:
    return [with_run(config, seed, rho) for seed, rho in config.runs]


def same_run(config: FleetConfig) -> tuple[str, int]:
    """Equal for two runs exactly if their numbers would be."""
    from sphere.experiments.cells import identity_of  # here: the experiments import this module

    return identity_of(config), config.seeds[0]


def existing(root: Path) -> list[Job]:
    """Fleets in a directory, finished ones first. What cannot be read is no fleet of ours, or of another version."""
    found = []
    for path in sorted(root.glob("*/fleet.json")):
        try:
            config = rebuild(FleetConfig, json.loads(path.read_bytes()))
            found.append(Job(dataclasses.replace(config, sharing=1), path.parent))  # who trains it next says with whom
        except (OSError, ValueError, TypeError):
            continue
    return sorted(found, key=lambda job: not job.finished)


@dataclass(frozen=True)
class Schedule:
    """Every wanted run and the fleet that has it or will have it."""

    jobs: tuple[Job, ...]
    runs: dict[tuple[str, int], Path]
    """By `same_run`: the directory of the run, there or to come."""

    @property
    def open(self) -> list[Job]:
        return [job for job in self.jobs if not job.finished]


def schedule(wanted: Sequence[FleetConfig], root: Path, together: bool = True) -> Schedule:
    """`wanted`: a config per cell. Runs that exist are taken as they are, the rest become new fleets below `root`.

    Not `together`: each config is a fleet of its own, and only one that was trained so counts as existing (for timings).
    """
    known = existing(root)
    if not together:
        jobs = [
            next((job for job in known if _alike(job.config, config)), None) or _new(config, root) for config in wanted
        ]
        return Schedule(tuple(jobs), {key: path for job in jobs for key, path in _runs(job)})
    there = {key: (job, path) for job in reversed(known) for key, path in _runs(job)}
    every = {same_run(one): one for config in wanted for one in singles(config)}
    missing = [one for key, one in every.items() if key not in there]
    used = {there[key][0].directory: there[key][0] for key in every if key in there}
    fresh = [_new(config, root) for config in group(missing)]
    places = {key: there[key][1] for key in every if key in there}
    places |= {key: path for job in fresh for key, path in _runs(job)}
    return Schedule((*used.values(), *fresh), places)


def _runs(job: Job) -> Iterable[tuple[tuple[str, int], Path]]:
    return ((same_run(with_run(job.config, *run)), job.directory / run_name(*run)) for run in job.config.runs)


def _alike(first: FleetConfig, second: FleetConfig) -> bool:
    return {same_run(one) for one in singles(first)} == {same_run(one) for one in singles(second)}


def _new(config: FleetConfig, root: Path) -> Job:
    """Its name is read by people; the end of it tells settings apart."""
    runs = sorted(same_run(one) for one in singles(config))
    digest = hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:8]
    suite, task = config.tasks[0].split("/")
    alone = [task] if config.protocol == "rl" and len(config.tasks) == 1 else []
    words = [
        suite,
        config.protocol,
        *alone,
        config.ppo.actor.kind,
        *([m] if (m := method_name(config)) != "none" else []),
    ]
    return Job(config, root / "-".join([*words, digest]))


def group(runs: Sequence[FleetConfig]) -> list[FleetConfig]:
    """Single runs as fleets. Runs with rho 0 join a fleet of the same networks with a penalty: the numbers are the same."""
    programs: dict[str, list[FleetConfig]] = {}
    for run in runs:
        bare = dataclasses.replace(run.ppo, penalty=None)
        key = dataclasses.replace(run, rho=(0.0,), seeds=(0,), ppo=bare)
        programs.setdefault(same_run(key)[0], []).append(run)
    found = []
    for members in programs.values():
        by_penalty: dict[PenaltyConfig | None, list[FleetConfig]] = {}
        for run in members:
            by_penalty.setdefault(run.ppo.penalty if any(run.rho) else None, []).append(run)
        # a variant that looks at all experts computes them densely: the same numbers, but in another order of sums
        hosts = [one for one in by_penalty if one is not None and one.variant not in ALL_EXPERTS]
        if hosts and None in by_penalty:
            by_penalty[hosts[0]] = [*by_penalty.pop(None), *by_penalty[hosts[0]]]
        for penalty, some in by_penalty.items():
            found += _products(some, penalty)
    return found


def _products(runs: Sequence[FleetConfig], penalty: PenaltyConfig | None) -> list[FleetConfig]:
    """Fleets are seeds times rho: values of rho that miss the same seeds go together."""
    seeds: dict[float, list[int]] = {}
    for run in runs:
        seeds.setdefault(run.rho[0], []).append(run.seeds[0])
    alike: dict[tuple[int, ...], list[float]] = {}
    for rho, some in seeds.items():
        ordered = sorted(some)
        for start in range(0, len(ordered), MOST_RUNS):
            alike.setdefault(tuple(ordered[start : start + MOST_RUNS]), []).append(rho)
    ppo = dataclasses.replace(runs[0].ppo, penalty=penalty)
    found = []
    for some_seeds, some_rho in alike.items():
        several = max(1, MOST_RUNS // len(some_seeds))
        for start in range(0, len(some_rho), several):
            part = tuple(some_rho[start : start + several])
            found.append(dataclasses.replace(runs[0], seeds=some_seeds, rho=part, ppo=ppo))
    return found


def work(job: Job, quiet: bool = False) -> None:
    """Train a fleet or go on with it, until it is finished: what every launcher does, on whatever machine."""
    from sphere.training.loop import train

    if job.finished:
        return
    train(job.config, job.directory, resume=(job.directory / "fleet.json").is_file(), quiet=quiet)
