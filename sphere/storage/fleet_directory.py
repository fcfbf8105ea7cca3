"""What a fleet writes: a run directory for each run, TensorBoard event files in it, and Weights & Biases if asked for."""

import dataclasses
import importlib
import json
import secrets
from pathlib import Path
from typing import Any

from sphere.envs.source import Episodes
from sphere.storage import checkpoint, provenance, run_directory
from sphere.storage.tensorboard import EventWriter
from sphere.training.settings import HOW, FleetConfig, rebuild, run_name, with_run

WANDB = "wandb.json"


def _check_same(path: Path, config: FleetConfig) -> None:
    """A run goes on with the settings that its records name."""
    try:
        before, now = (
            run_directory.plain(dataclasses.asdict(one))
            for one in (rebuild(FleetConfig, run_directory.read_config(path)), config)
        )
    except (OSError, ValueError, TypeError):
        return  # not there, damaged or of another version: whether it fits is the checkpoint's to say
    if changed := [name for name in now if name not in HOW and now[name] != before.get(name)]:
        raise ValueError(
            f"{path / 'config.json'} has another {', '.join(changed)} than fleet.json says now; a fleet goes on with the "
            "settings it began with: put them back, or start another fleet"
        )


def check_nothing_is_lost(config: FleetConfig, directory: Path, resume: bool) -> None:
    """Before anything is written. A fleet that begins, or begins anew for want of a checkpoint, empties its records: it may
    where it was killed before the first checkpoint was due, and nowhere else."""
    if not resume:
        if there := sorted(path.parent.name for path in directory.glob("*/config.json")):
            raise FileExistsError(
                f"{directory} holds records of runs ({', '.join(there[:3])}{', ...' if len(there) > 3 else ''}) and no fleet "
                "to go on with; choose another directory"
            )
        return
    if checkpoint.checkpoints(directory):
        return
    for run in config.runs:
        path = directory / run_name(*run)
        if not (path / "config.json").exists():
            continue  # killed while it made its directories
        try:  # as it began: fleet.json may have been given another interval since
            interval = int(run_directory.read_config(path)["checkpoint_every"])
        except (OSError, ValueError, TypeError, KeyError):
            interval = config.checkpoint_every
        due = min(interval, config.iterations_per_task) * config.iteration_steps
        events = run_directory.read_events(path) if (path / run_directory.METRICS).exists() else []
        if events and events[-1]["step"] > due:
            raise FileNotFoundError(
                f"{path} has records up to step {events[-1]['step']:,}, and {directory} has no checkpoint to go on from; "
                "to begin anew would empty them: bring checkpoint-*.npz back, or train into another directory"
            )


class Records:
    """The run directories of a fleet: one per run, beside the fleet's own checkpoints."""

    def __init__(self, config: FleetConfig, directory: Path, resume: bool):
        self.mirrors = _wandb_runs(config, directory) if config.wandb else []
        # what was sent before a kill and is trained again is not sent again
        self.sent = [int(one.summary.get("step") or 0) if resume else 0 for one in self.mirrors]
        self.environment = provenance.describe()
        trained = resume and bool(checkpoint.checkpoints(directory))
        self.runs = []
        for seed, rho in config.runs:
            path = directory / run_name(seed, rho)
            if resume:
                _check_same(path, with_run(config, seed, rho))
            # Killed while it made its directories, a fleet lacks some of them and has lost nothing.
            self.runs.append(
                run_directory.RunDirectory.resume(path)
                if trained or (resume and (path / "config.json").is_file())
                else run_directory.RunDirectory.create(path, with_run(config, seed, rho), self.environment)
            )
        self.paths = [directory / run_name(seed, rho) for seed, rho in config.runs]
        self.boards: list[EventWriter] = []

    def begin(self, positions: list[dict[str, int]] | None, resumed_at: int | None, *, over: bool = False) -> list[str]:
        """Open the records, of a resumed fleet cut back to a checkpoint; what is worth telling about that. `over`: nothing is
        going to be trained, so this machine has no part in the numbers."""
        changed: list[str] = []
        for index, run in enumerate(self.runs):
            if positions is not None:
                run.truncate(positions[index])
                changed += [] if over else provenance.resume(run.path, resumed_at or 0, self.environment)
        if positions is not None:
            resumed_at = resumed_at or 0  # from the start, too: what the process before has written is taken back
        self.boards = [EventWriter(path, resumed_at=resumed_at) for path in self.paths]
        if not changed:
            return []
        names = ", ".join(dict.fromkeys(changed))
        return [f"not the same {names} as before (noted in environment.json): last digits may come out differently"]

    def event(self, step: int, values: list[dict[str, float]], task: str, task_index: int) -> None:
        for index, (run, one) in enumerate(zip(self.runs, values, strict=True)):
            run.event(step, one, task=task, task_index=task_index)
            self.boards[index].add(step, one)
            if self.mirrors and step >= self.sent[index]:
                self.mirrors[index].log({"step": step, "task_index": task_index, **one})

    def episodes(self, step: int, task: str, kind: str, seeds: list[int], found: Episodes) -> None:
        for run, env, returns, length, once, end in zip(*found, strict=True):
            self.runs[int(run)].episode(
                {
                    "step": step,
                    "task": task,
                    "kind": kind,
                    "seed": seeds[int(run)],
                    "episode": int(env),
                    "return": float(returns),
                    "length": int(length),
                    "success_once": bool(once),
                    "success_at_end": bool(end),
                }
            )

    def positions(self) -> list[dict[str, int]]:
        return [run.positions() for run in self.runs]

    def close(self) -> None:
        for board in self.boards:
            board.close()
        for mirror in self.mirrors:
            mirror.finish()
        for run in self.runs:
            run.close()


def check(config: FleetConfig) -> None:
    """What would fail later, before anything is written."""
    if config.wandb:
        _wandb()


def _wandb_runs(config: FleetConfig, directory: Path) -> list[Any]:
    """One run of Weights & Biases per run of the fleet. It is found again on resume by an id that is kept in the directory: a
    name would be that of another fleet's run as soon as two directories are called alike."""
    wandb = _wandb()
    if not (directory / WANDB).exists():  # a fleet that was begun by an earlier version goes on under its name
        name = directory.name if checkpoint.checkpoints(directory) else secrets.token_hex(4)
        run_directory.write_json(directory / WANDB, {"id": name})
    fleet = json.loads((directory / WANDB).read_text())["id"]
    return [
        wandb.init(
            project=config.wandb,
            name=f"{directory.name}/{run_name(*run)}",
            id=f"{fleet}-{run_name(*run)}",
            resume="allow",
            reinit="create_new",
            config=dataclasses.asdict(with_run(config, *run)),
        )
        for run in config.runs
    ]


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ValueError("--wandb needs the package: pip install wandb; or leave the option out") from error
