"""Which of the wanted runs exist, and how the others are grouped: runs of one program become one fleet."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sphere.experiments.configs import fleet_name, fleets_of, identity_of, read, same_run, shares_program, singles
from sphere.launch.jobs import Job
from sphere.storage.fleet_directory import read_fleet
from sphere.training.settings import FleetConfig

MOST_RUNS = 20
"""Of one fleet. Larger fleets are hardly faster, and lose more by a fault."""


@dataclass(frozen=True)
class Schedule:
    """Every wanted run and the fleet that has it or will have it."""

    jobs: tuple[Job, ...]
    runs: dict[tuple[str, int], Path]
    """By `same_run`: the directory of the run, whether it exists or not."""

    @property
    def open(self) -> list[Job]:
        return [job for job in self.jobs if not job.finished]


def schedule(wanted: Sequence[FleetConfig], root: Path, together: bool = True) -> Schedule:
    """Existing runs are used as they are; the others become new fleets below `root`.

    Not `together`: each config is a fleet of its own, and exists only if it was trained that way (for timings).
    """
    known = existing(root)
    if not together:
        jobs = [
            next((job for job in known if _same_runs(job.config, config)), None) or _new(config, root)
            for config in wanted
        ]
        return Schedule(tuple(jobs), {key: path for job in jobs for key, path in _runs(job)})
    there = {key: (job, path) for job in reversed(known) for key, path in _runs(job)}
    every = {same_run(one): one for config in wanted for one in singles(config).values()}
    missing = [one for key, one in every.items() if key not in there]
    used = {there[key][0].directory: there[key][0] for key in every if key in there}
    new = [_new(config, root) for config in group(missing)]
    places = {key: there[key][1] for key in every if key in there}
    places |= {key: path for job in new for key, path in _runs(job)}
    return Schedule((*used.values(), *new), places)


def existing(root: Path) -> list[Job]:
    """Fleets in a directory, finished ones first. What cannot be read is not a fleet, or one of another version."""
    found = []
    for path in sorted(root.glob("*/fleet.json")):
        try:
            config = dataclasses.replace(read(read_fleet(path.parent)["settings"]), sharing=1)  # up to who resumes it
        except (OSError, ValueError, TypeError, KeyError):
            continue
        found.append(Job(config, path.parent))
    return sorted(found, key=lambda job: not job.finished)


def group(runs: Sequence[FleetConfig]) -> list[FleetConfig]:
    """Single runs as fleets. A run joins the first fleet whose runs all share its program."""
    by_identity: dict[str, list[FleetConfig]] = {}  # these differ in the seed alone
    for run in runs:
        by_identity.setdefault(identity_of(run), []).append(run)
    programs: list[list[list[FleetConfig]]] = []
    for same in by_identity.values():
        fitting = (one for one in programs if all(shares_program(other[0], same[0]) for other in one))
        if (program := next(fitting, None)) is None:
            programs.append(program := [])
        program.append(same)
    return [fleet for one in programs for fleet in fleets_of([run for same in one for run in same], MOST_RUNS)]


def _runs(job: Job) -> Iterable[tuple[tuple[str, int], Path]]:
    return ((same_run(one), job.directory / name) for name, one in singles(job.config).items())


def _same_runs(first: FleetConfig, second: FleetConfig) -> bool:
    keys = [{same_run(one) for one in singles(config).values()} for config in (first, second)]
    return keys[0] == keys[1]


def _new(config: FleetConfig, root: Path) -> Job:
    return Job(config, root / fleet_name(config))
