"""What a fleet writes: a directory for each run, with TensorBoard event files, and Weights & Biases if asked for."""

import importlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from sphere.algos.source import Outcomes
from sphere.storage import checkpoint, files, provenance, run_directory
from sphere.storage.run_directory import RunDirectory
from sphere.storage.tensorboard import EventWriter

FLEET, WANDB = "fleet.json", "wandb.json"

UNIMPORTANT = ("sharing", "wandb", "checkpoint_every", "plugins", "source.workers", "source.overlap")
"""Settings of how a fleet is trained and watched, not of what comes out."""


class RunRecord(NamedTuple):
    """A run as its directory knows it."""

    name: str
    seed: int
    config: dict[str, Any]
    """What goes into config.json."""


def check_same(path: Path, settings: Mapping[str, Any]) -> None:
    """A run continues with the settings that its records name."""
    try:
        before, now = files.flatten(run_directory.read_config(path)["settings"]), files.flatten(files.plain(settings))
    except (OSError, ValueError, TypeError, KeyError):
        return  # not there, damaged or of another version: the checkpoint decides whether it fits
    # a setting that a record lacks is newer than it, and was what it is by default
    if changed := [name for name in now if name not in UNIMPORTANT and now[name] != before.get(name, now[name])]:
        raise ValueError(
            f"{path / 'config.json'} has another {', '.join(changed)} than {FLEET} says now; a fleet continues with "
            "the settings it began with: put them back, or start another fleet"
        )


def check_nothing_is_lost(directory: Path, names: Sequence[str], resume: bool) -> None:
    """To be called before anything is written. A fleet that starts, or starts over without a checkpoint, empties its
    records. It may do so only if it was killed before the first checkpoint was due."""
    if not resume:
        if there := sorted(path.parent.name for path in directory.glob("*/config.json")):
            raise FileExistsError(
                f"{directory} holds records of runs ({', '.join(there[:3])}{', ...' if len(there) > 3 else ''}) and no "
                "fleet to resume; choose another directory"
            )
        return
    if checkpoint.checkpoints(directory):
        return
    for path in (directory / name for name in names):
        if not (path / "config.json").exists():
            continue  # killed while it made its directories
        events = run_directory.read_events(path) if (path / run_directory.METRICS).exists() else []
        if events and events[-1]["step"] > _first_checkpoint(path):
            raise FileNotFoundError(
                f"{path} has records up to step {events[-1]['step']:,}, and {directory} has no checkpoint to resume "
                "from; starting over would empty them: bring checkpoint-*.npz back, or train into another directory"
            )


def _first_checkpoint(path: Path) -> int:
    """The step at which a run's first checkpoint was due, by its own record."""
    try:
        config = run_directory.read_config(path)
        return min(config["settings"]["checkpoint_every"] * config["iteration_steps"], config["task_steps"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0  # not readable: assume that a checkpoint was due


class FleetDirectory:
    """The run directories of a fleet: one per run, beside the fleet's own checkpoints."""

    def __init__(
        self,
        directory: Path,
        records: Sequence[RunRecord],
        wandb: str | None,
        resume: bool,
        lock: IO[str] | None = None,
        simulators: Mapping[str, str] | None = None,
    ):
        self.directory, self.lock = directory, lock
        self.mirrors = _wandb_runs(directory, records, wandb) if wandb else []
        # what was sent before a kill and is trained again is not sent again
        self.sent = [int(one.summary.get("step") or 0) if resume else 0 for one in self.mirrors]
        self.environment = provenance.describe() | ({"simulators": dict(simulators)} if simulators else {})
        self.seeds = [one.seed for one in records]
        self.paths = [directory / one.name for one in records]
        self.runs: list[RunDirectory] = []
        self.boards: list[EventWriter] = []
        try:
            self._open(records, resume)
        except BaseException:
            self.close()
            raise

    def _open(self, records: Sequence[RunRecord], resume: bool) -> None:
        trained = resume and bool(checkpoint.checkpoints(self.directory))
        if resume:
            self._check_names()
        for one, path in zip(records, self.paths, strict=True):
            if resume:
                check_same(path, one.config["settings"])
            # Killed while it made its directories, a fleet lacks some of them and has lost nothing.
            self.runs.append(
                RunDirectory.resume(path)
                if trained or (resume and (path / "config.json").is_file())
                else RunDirectory.create(path, one.config, self.environment)
            )

    def _check_names(self) -> None:
        """A run that the fleet no longer names would be left behind without a word."""
        written = (path.parent for path in self.directory.glob("*/config.json") if (path.parent / "lock").exists())
        if left := sorted(path.name for path in written if path not in self.paths):
            raise ValueError(
                f"{self.directory} has the run {left[0]}, which {FLEET} does not name now; a fleet continues with the "
                "runs it began with: put the file back, or start another fleet"
            )

    def begin(
        self,
        positions: list[dict[str, int]] | None,
        resumed_at: int | None,
        *,
        over: bool = False,
        checksums: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Open the records, of a resumed fleet cut back to a checkpoint; what is worth telling about that. `over`:
        nothing is going to be trained, so this machine has no part in the numbers. `checksums`: by run, if the
        checkpoint has them."""
        changed: list[str] = []
        sums = checksums or {}
        for run, position in zip(self.runs, positions or [], strict=False):  # all of them before any is cut
            run.verify(position, sums.get(run.path.name))
        for index, run in enumerate(self.runs):
            if positions is not None:
                run.truncate(positions[index], sums.get(run.path.name))
                changed += [] if over else provenance.resume(run.path, resumed_at or 0, self.environment)
        if positions is not None:
            resumed_at = resumed_at or 0  # from the start, too: what the process before has written is taken back
        self.boards = [EventWriter(path, resumed_at=resumed_at) for path in self.paths]
        if not changed:
            return []
        names = ", ".join(dict.fromkeys(changed))
        return [f"not the same {names} as before (noted in environment.json): last digits may differ"]

    def event(self, step: int, values: list[dict[str, float]], task: str, task_index: int) -> None:
        self.check()
        for index, (run, one) in enumerate(zip(self.runs, values, strict=True)):
            run.event(step, one, task=task, task_index=task_index)
            self.boards[index].add(step, one)
            if self.mirrors and step >= self.sent[index]:
                self.mirrors[index].log({"step": step, "task_index": task_index, **one})

    def episodes(self, step: int, task: str, task_index: int, kind: str, found: Outcomes) -> None:
        """A line for every outcome: when and on what, then its columns."""
        for row, (run, episode) in enumerate(zip(found.run, found.episode, strict=True)):
            when = {"step": step, "task": task, "task_index": task_index, "kind": kind}
            which = {"seed": self.seeds[int(run)], "episode": int(episode)}
            self.runs[int(run)].episode(when | which | {name: column[row] for name, column in found.columns.items()})

    def check(self) -> None:
        """Raises `files.Replaced` where the directory is not as this process has left it."""
        if self.lock is not None:
            files.check_same_file(self.lock, self.directory / "lock")
            if not (self.directory / FLEET).is_file():
                raise files.Replaced(
                    f"{self.directory / FLEET} is gone; training stops here and what it recorded stays. Put the file "
                    "back and continue with sphere resume"
                )
        for run in self.runs:
            run.check()

    def positions(self) -> list[dict[str, int]]:
        self.check()
        return [run.positions() for run in self.runs]

    def checksums(self) -> dict[str, Any]:
        """By run and file: so many bytes from its start, and their sha256."""
        return {run.path.name: run.checksums() for run in self.runs}

    def close(self) -> None:
        for board in self.boards:
            board.close()
        for mirror in self.mirrors:
            mirror.finish()
        for run in self.runs:
            run.close()


def read_fleet(directory: Path) -> dict[str, Any]:
    """What the fleet.json of a directory holds: settings, and the shapes of its data (spec)."""
    path = directory / FLEET
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no fleet (no {FLEET}); name a directory that sphere train wrote")
    data = files.read_json(path)
    if not isinstance(data, dict) or not {"tasks", "settings"} & data.keys():
        raise ValueError("these are not the settings of a fleet")
    if data.get("format") != files.FORMAT:
        raise ValueError(
            "another version wrote it; sphere report reads its records, but only that version can resume it"
        )
    return data


def _wandb_runs(directory: Path, records: Sequence[RunRecord], project: str) -> list[Any]:
    """One run of Weights & Biases per run of the fleet. It is found again on resume by an id that is kept in the
    directory: a name would be that of another fleet's run as soon as two directories are called alike."""
    wandb = check_wandb()
    if not (directory / WANDB).exists():  # a fleet that was begun by an earlier version goes on under its name
        name = directory.name if checkpoint.checkpoints(directory) else secrets.token_hex(4)
        files.write_json(directory / WANDB, {"id": name})
    fleet = files.read_json(directory / WANDB)["id"]
    return [
        wandb.init(
            project=project,
            name=f"{directory.name}/{one.name}",
            id=f"{fleet}-{one.name}",
            resume="allow",
            reinit="create_new",
            config=one.config["settings"],
        )
        for one in records
    ]


def check_wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ValueError(
            "--wandb needs the package: pip install 'sphere-rl[wandb]'; or leave the option out"
        ) from error
