"""Trained policies from their directories, without a simulator.

policy = sphere.load("runs/first/rho0.1-seed0")
action = policy.act(obs)
outcome = policy.evaluate("metaworld/push", episodes=10)
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sphere.algos import rows
from sphere.algos.learner import DataSpec, Learner
from sphere.algos.source import Outcomes, Source
from sphere.errors import UserError, unknown
from sphere.storage import checkpoint
from sphere.storage.fleet_directory import FLEET, check_same, read_fleet
from sphere.training import limits
from sphere.training.describe import run_records
from sphere.training.fleet import KEEP_ALL, program_of
from sphere.training.settings import FleetConfig, from_json


def load(path: str | Path, run: str | None = None) -> "Policy":
    """The policy of a run, from the newest good checkpoint of its fleet. `path`: the run's directory, or the fleet's
    and the name of the run (not needed where there is only one)."""
    path = Path(path)
    if run is None and (path / "config.json").is_file():
        path, run = path.resolve().parent, path.resolve().name
    fleet = SavedFleet.open(path)
    names = [one.name for one in fleet.config.runs]
    if run is None and len(names) > 1:
        raise UserError(f"{path} has {len(names)} runs; name one of them: {', '.join(names)}")
    if run is not None and run not in names:
        raise unknown("run", run, names)
    return Policy(fleet, names.index(run) if run else 0)


@dataclass(frozen=True)
class SavedFleet:
    """A fleet as its newest good checkpoint holds it."""

    directory: Path
    config: FleetConfig
    spec: DataSpec
    learner: Learner
    """Without methods that no run uses."""
    state: Any
    """Of all runs, in numpy."""
    source: dict[str, Any]
    """What the source had saved."""
    counters: dict[str, int]

    @classmethod
    def open(cls, directory: Path) -> "SavedFleet":
        config, spec = _settings(directory)
        learner, seeds, numbers = program_of(config)
        like = jax.eval_shape(lambda: rows.init(learner, spec, seeds, numbers))
        saved = checkpoint.read_latest(directory)
        state = checkpoint.select(saved, "state", like)
        return cls(directory, config, spec, learner, state, saved.part("source"), saved.meta["counters"])

    @property
    def task(self) -> str:
        """The one that it was at."""
        return self.config.tasks[self.counters["task_index"]]

    @property
    def steps(self) -> int:
        return self.counters["total_iterations"] * self.config.iteration_steps

    @cached_property
    def policy(self) -> Any:
        """Of all runs, as they act."""
        return rows.policy(self.learner, self.state)

    def fresh(self) -> Any:
        """The policies before any training."""
        learner, seeds, numbers = program_of(self.config)
        return rows.policy(learner, rows.init(learner, self.spec, seeds, numbers))

    def seen(self, obs: np.ndarray) -> np.ndarray:
        """Observations [run, n, ...] as the networks read them."""
        return self.config.source.seen(self.source, obs)

    def evaluate(self, task: str, episodes: int, run: int | None = None) -> Outcomes:
        """Deterministic episodes of all runs, or of one, on environments of their own; the same ones every time."""
        chosen = slice(None) if run is None else slice(run, run + 1)
        limits.check_episodes(episodes * (len(self.config.runs) if run is None else 1))
        seeds = [one.seed for one in self.config.runs][chosen]
        policy = jax.tree.map(lambda leaf: leaf[chosen], self.policy)
        saved = jax.tree.map(lambda leaf: leaf[_rows(leaf, chosen, len(self.config.runs))], self.source)
        return self.config.source.evaluate(policy, task, seeds, episodes, saved)

    def open_source(self) -> Source:
        """The source of all runs as it was; to be closed."""
        config = self.config
        (source,) = config.source.open(config.wanted, [[run.seed for run in config.runs]])
        try:
            source.enter(self.task, KEEP_ALL if self.counters["task_index"] else None)
            source.set_state(self.source)
        except BaseException:
            source.close()
            raise
        return source


@dataclass(frozen=True)
class Policy:
    """One run's trained policy."""

    fleet: SavedFleet
    row: int

    @property
    def name(self) -> str:
        return self.fleet.config.runs[self.row].name

    @property
    def net(self) -> Any:
        """The network as it acts."""
        return jax.tree.map(lambda leaf: leaf[self.row], self.fleet.policy)

    @cached_property
    def _alone(self) -> Any:
        return jax.tree.map(lambda leaf: leaf[self.row : self.row + 1], self.fleet.policy)

    def seen(self, obs: np.ndarray) -> np.ndarray:
        """Observations [n, ...] as the network reads them: normalised where it was trained so."""
        every = np.broadcast_to(obs, (len(self.fleet.config.runs), *obs.shape))
        return self.fleet.seen(every)[self.row]

    def act(self, obs: np.ndarray) -> np.ndarray:
        """The deterministic action for one observation, or for each of a batch [n, ...]."""
        obs = np.asarray(obs)
        shape = self.fleet.spec.observation
        if obs.shape[-len(shape) :] != shape or obs.ndim > len(shape) + 1:
            raise ValueError(f"obs has shape {obs.shape}, wanted {shape}, or a batch of these")
        batch = obs.reshape(-1, *shape)
        action = np.asarray(rows.act(self._alone, self.seen(batch)[None]))[0]
        return action.reshape(*obs.shape[: obs.ndim - len(shape)], -1)

    def evaluate(self, task: str | None = None, episodes: int = 10) -> dict[str, float]:
        """Means over deterministic episodes on a task, by default the one that training was at; starts simulators."""
        wanted = self.fleet.config.full_name(task or self.fleet.task)
        return self.fleet.evaluate(wanted, episodes, self.row).means(1)[0]


def _settings(directory: Path) -> tuple[FleetConfig, DataSpec]:
    """Of the fleet in a directory, which are those that its runs' records name."""
    try:
        written = read_fleet(directory)
        config = from_json(written["settings"])
        spec = DataSpec(**{name: _tuple(value) for name, value in written["spec"].items()})
        records = run_records(config, spec._asdict())
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{directory / FLEET} cannot be read: {reason}") from None
    for one in records:
        check_same(directory / one.name, one.config["settings"])
    return config, spec


def _rows(leaf: np.ndarray, chosen: slice, runs: int) -> slice:
    """A run's rows of an array that has one for each run, or one for each of its environments."""
    if chosen == slice(None):
        return chosen
    each = len(leaf) // runs
    return slice(chosen.start * each, chosen.stop * each)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
