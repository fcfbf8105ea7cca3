"""A job: one fleet and its directory; several of them below one directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sphere.storage import checkpoint, files
from sphere.training.settings import FleetConfig, from_json, to_json

FLEETS = "fleets.json"
"""In a directory above several fleets: their settings by the names of their directories, in their order. So those that
have not begun are known too."""


@dataclass(frozen=True)
class Job:
    """One fleet to train or to resume in its directory."""

    config: FleetConfig
    directory: Path

    @property
    def total_iterations(self) -> int:
        return self.config.total_iterations

    @property
    def steps(self) -> int:
        """Environment steps of all runs."""
        return len(self.config.runs) * self.total_iterations * self.config.iteration_steps

    @property
    def done_iterations(self) -> int:
        """Up to the newest checkpoint."""
        kept = checkpoint.checkpoints(self.directory)
        return int(kept[-1].stem.rsplit("-", 1)[1]) if kept else 0

    @property
    def finished(self) -> bool:
        """The last checkpoint is written after the last record."""
        return self.done_iterations >= self.total_iterations

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        if not (self.directory / "fleet.json").is_file():
            return "not started"
        return f"unfinished ({self.done_iterations / self.total_iterations:.0%})"


def work(job: Job, quiet: bool = False) -> None:
    """Train a fleet, or resume it, until it is finished: what every launcher does, on whatever machine."""
    from sphere.training.loop import train

    if job.finished:
        return
    train(job.config, job.directory, resume=(job.directory / "fleet.json").is_file(), quiet=quiet)


def write_jobs(directory: Path, jobs: Sequence[Job]) -> None:
    """Note the fleets that are to be trained in directories of this one."""
    directory.mkdir(parents=True, exist_ok=True)
    fleets = {job.directory.name: to_json(job.config) for job in jobs}
    files.write_json(directory / FLEETS, {"format": files.FORMAT, "fleets": fleets})


def read_jobs(directory: Path) -> list[Job]:
    path = directory / FLEETS
    try:
        data = files.read_json(path)
        if not isinstance(data, dict) or data.get("format") != files.FORMAT:
            raise ValueError("another version wrote it")
        if strange := [name for name in data["fleets"] if Path(name).name != name]:
            raise ValueError(f"{strange[0]!r:.60} is not the name of a directory")
        return [Job(from_json(settings), directory / name) for name, settings in data["fleets"].items()]
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} cannot be read ({reason}); resume each fleet below {directory} by itself") from None
