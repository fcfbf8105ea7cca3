"""Training: a fleet through its tasks, with evaluation, records and checkpoints from which it continues exactly.

Everything random is a function of (seed, purpose, counter), so a checkpoint needs arrays and counters only, and a run
that was killed and resumed ends with the same numbers as one that was not.

A task switch keeps what `Boundary` says under `crl`; under `rl` everything starts again from the same seed. Evaluation
has environments of its own, seeded with the run's seed + 2**32: the same episodes every time. At the end of a sequence
all tasks are evaluated once more (`final`), with `retention` at every boundary. The first Ctrl-C, or SIGTERM unless
somebody else has a handler for it, finishes what has begun, saves and leaves; a second Ctrl-C leaves at once. NaN stops
the fleet and names run, step and last good checkpoint. An exception in a simulator closes every process and shows the
worker's traceback.
"""

import hashlib
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sphere.algos.source import Outcomes
from sphere.storage import checkpoint, files
from sphere.storage.fleet_directory import FLEET, FleetDirectory, check_nothing_is_lost, check_wandb
from sphere.training import limits
from sphere.training.describe import method_names, run_records
from sphere.training.fleet import Fleet
from sphere.training.progress import Progress, command
from sphere.training.sentences import in_a_sentence
from sphere.training.settings import FleetConfig, to_json


class NonFinite(RuntimeError):
    """A loss, gradient or parameter became NaN or infinite."""


class Interrupted(RuntimeError):
    """Stopped on request, after saving, or after what went wrong meanwhile."""

    @property
    def at(self) -> str:
        """Without the advice, for commands that have another."""
        return str(self).split(";")[0]


class Training:
    """Drives a fleet from start or checkpoint to the end, with records."""

    def __init__(self, fleet: Fleet, records: FleetDirectory, progress: Progress, should_stop: Callable[[], bool]):
        self.fleet, self.records, self.progress, self.should_stop = fleet, records, progress, should_stop
        self.runs = fleet.config.runs
        self.score = fleet.config.source.score(fleet.config.suite)
        self.warned = False
        self.resets = 0.0  # units that methods gave new weights since this process began
        self.begun = fleet.total_iterations
        self.evaluations = 0
        self.seen = [hashlib.sha256() for _ in self.runs]  # of each run's evaluations since this process began
        self.methods: dict[tuple[float, ...], list[int]] = {}
        for index, run in enumerate(self.runs):
            self.methods.setdefault(tuple(run.numbers[name] for name in run.varied), []).append(index)
        self.names = method_names(fleet.config, [self.runs[members[0]] for members in self.methods.values()])

    def save(self, tree: dict[str, Any]) -> None:
        """A checkpoint, with the lengths and checksums of the records up to here."""
        remembered = self.fleet.checksums(tree)
        meta = {
            "counters": self.fleet.counters(),
            "positions": self.records.positions(),
            "checksums": {run: own | remembered.get(run, {}) for run, own in self.records.checksums().items()},
        }
        checkpoint.save(self.fleet.directory, self.fleet.total_iterations, tree, meta)

    def check_finite(self, task: str, finite: np.ndarray) -> None:
        bad = [self.runs[r].name for r in np.flatnonzero(~np.asarray(finite, bool))]
        if bad:
            kept = checkpoint.checkpoints(self.fleet.directory)
            where = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
            raise NonFinite(
                f"NaN or infinity in {', '.join(bad)} at step {self.fleet.steps} of {task}; {where}. "
                "Lower the learning rate or rho, and look at the last lines of metrics.jsonl"
            )

    def record(self, index: int, kind: str, found: Outcomes, diagnostics: list[dict[str, float]] | None = None) -> None:
        """Outcomes on a task, one by one and as means, with diagnostics of the same moment."""
        fleet, task = self.fleet, self.fleet.config.tasks[index]
        self.records.episodes(fleet.steps, task, index, kind, found)
        means = [{f"{kind}/{name}": mean for name, mean in one.items()} for one in found.means(len(self.runs))]
        values = [one | more for one, more in zip(means, diagnostics or [{}] * len(self.runs), strict=True)]
        self.records.event(fleet.steps, values, task, index)
        if kind == "evaluation":
            self.evaluations += 1
            for seen, one in zip(self.seen, values, strict=True):
                seen.update(repr(sorted(one.items())).encode())
            self.report(task, values)

    def check_felt(self, values: list[dict[str, float]]) -> None:
        """Say once where a penalty acts far more weakly than rho says: its gradient is shorter than the floor of its
        norm."""
        for run, one in zip(self.runs, values, strict=True):
            felt, rho = one.get("train/felt", np.nan), abs(run.numbers["rho"])
            if not self.warned and felt < 0.2 * rho and one.get("train/coefficient"):
                self.warned = True
                self.progress.say(
                    f"{run.name}: rho {rho:g} is felt as {felt:.2g} only, because the penalty's gradient is short. "
                    "For a strength that does not depend on its length add --sphere.floor 1e-12"
                )

    def check_resets(self) -> None:
        """Say at the end where a method that resets units has reset none: its runs are then those without it."""
        names = [method.name for method in self.fleet.learner.methods if method.resets]
        if names and not self.resets and self.fleet.total_iterations > self.begun:
            since = f" since step {self.begun * self.fleet.config.iteration_steps:,}" if self.begun else ""
            self.progress.say(
                f"{' and '.join(names)} has reset no unit{since}, so it changed nothing: units were too young or none "
                "was dormant; lower its maturity or its threshold, or train longer"
            )

    def check_identical(self) -> None:
        """Say at the end which runs of one seed were the same at every evaluation: what tells them apart did
        nothing."""
        first: dict[tuple[int, str], str] = {}
        for run, seen in zip(self.runs, self.seen, strict=True):
            if self.evaluations and (other := first.setdefault((run.seed, seen.hexdigest()), run.name)) != run.name:
                self.progress.say(
                    f"{run.name} has the same numbers as {other} at every evaluation: what tells them apart did nothing"
                )

    def report(self, task: str, values: list[dict[str, float]]) -> None:
        """A line for each method: runs that differ in their seeds only."""
        score = self.score.removesuffix("_at_end")
        returns = score != "return" and any("evaluation/return" in one for one in values)
        wide, facts, lines = max(map(len, self.names)), {}, []
        for name, members in zip(self.names, self.methods.values(), strict=True):
            own = [values[index] for index in members]
            reached = _mean(own, f"evaluation/{self.score}")
            who = f"{name:<{wide}}   " if len(self.names) > 1 else ""
            more = f"   return {_mean(own, 'evaluation/return'):>9.2f}" if returns else ""
            rank = _mean(own, "heldout/ntk_rank")
            more += "" if np.isnan(rank) else f"   r_e(K) {rank:>7.2f}"  # networks are not diagnosed after each
            lines.append(f"{who}{score} {reached:.2f}{more}")
            facts[name if who else score] = reached
        pace = f"   {speed:>9,.0f} steps/s" if (speed := self.progress.speed) else ""
        begin = f"{task:<28} {self.fleet.steps:>12,} steps   "
        for place, line in enumerate(lines):
            self.progress.say((begin if place == 0 else " " * len(begin)) + line + (pace if place == 0 else ""))
        self.progress.evaluation(facts)

    def iterate(self) -> dict[str, Any] | None:
        """One iteration and its records; the fleet's state afterwards, if a checkpoint is due."""
        fleet, tasks = self.fleet, self.fleet.config.tasks
        left = fleet.config.total_iterations - fleet.total_iterations - 1
        order, done = fleet.advance(ahead=0 if self.should_stop() else left)
        task = tasks[order.task_index]
        columns = {f"train/{name}": column for name, column in done.metrics.items() if name != "finite"}
        values = [{name: float(column[r]) for name, column in columns.items()} for r in range(len(self.runs))]
        for one, means in zip(values, done.outcomes.means(len(self.runs)), strict=True):
            one |= {f"train/{name}": mean for name, mean in means.items()}
        self.records.event(fleet.steps, values, task, order.task_index)
        self.check_finite(task, done.metrics["finite"])
        self.check_felt(values)
        self.resets += sum(one.get("train/replaced", 0.0) for one in values)
        self.progress.advance(task, fleet.steps * len(self.runs))
        if done.evaluated is not None:
            self.record(order.task_index, "evaluation", *done.evaluated)
        again = dict(zip(order.again, done.again, strict=False))
        for index, name in enumerate(tasks):  # a task that comes twice is evaluated once and recorded for both visits
            if name in again:
                self.record(index, "final" if fleet.finished else "retention", again[name])
        return done.tree

    def run(self) -> None:
        fleet = self.fleet
        while not fleet.finished:
            tree = self.iterate()
            if tree is not None:
                self.save(tree)
            if self.should_stop() and not fleet.queue:
                self.save(fleet.tree())
                rest = "all is trained" if fleet.finished else f"continue with: {command('resume', fleet.directory)}"
                raise Interrupted(f"stopped after step {fleet.steps}; {rest}")
        self.check_resets()
        self.check_identical()


def _legend(config: FleetConfig) -> str:
    """What the lines are that come while a fleet trains."""
    seeds = f"mean over {len(config.seeds)} seeds" if len(config.seeds) > 1 else "one seed"
    rank = "; r_e(K): effective rank of the NTK, at least 1" if config.evaluation.heldout else ""
    return f"each line is an evaluation on the task in training, {seeds}{rank}"


def _mean(values: list[dict[str, float]], name: str) -> float:
    return float(np.mean([one.get(name, np.nan) for one in values]))


class _StopOnce:
    """The first Ctrl-C, SIGTERM (a scheduler's way to say that time is up) or SIGHUP (the terminal was closed) asks
    for an orderly end after what has begun; another Ctrl-C leaves at once."""

    def __init__(self, progress: Progress):
        self.asked = False
        self.progress = progress
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "_StopOnce":
        wanted = [signal.SIGINT]
        for other in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(other) is signal.SIG_DFL:  # else somebody has plans for it, as submitit and nohup have
                wanted.append(other)
        with suppress(ValueError):  # not in the main thread: whoever called decides
            self.before = {one: signal.signal(one, self._handle) for one in wanted}
        return self

    def _handle(self, number: int, _: object) -> None:
        if not self.asked:
            self.asked = True
            self.progress.say(
                "stopping: finishing what has begun, then saving; press Ctrl-C again to quit without saving"
            )
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for one, handler in self.before.items():
            if handler is not None:  # not one of Python's
                signal.signal(one, handler)
        if self.asked and isinstance(error, Exception) and not isinstance(error, Interrupted):  # no next fleet either
            raise Interrupted(f"failed while stopping: {in_a_sentence(error)}") from error


def train(config: FleetConfig, directory: Path, *, resume: bool = False, quiet: bool = False) -> None:
    """Train a fleet into `directory`, or continue the one that is there."""
    if config.wandb:
        check_wandb()
    limits.check(config, directory)
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is a file, wanted a directory for the records; choose another --out")
    directory.mkdir(parents=True, exist_ok=True)
    lock = files.lock_directory(directory)
    fleet = records = progress = None
    started = time.monotonic()
    try:
        if not resume and ((directory / FLEET).exists() or checkpoint.checkpoints(directory)):
            raise FileExistsError(
                f"{directory} holds a fleet already; continue it with sphere resume, or choose another"
            )
        check_nothing_is_lost(directory, [run.name for run in config.runs], resume)
        fleet = Fleet(config, directory)  # first: settings that it refuses leave nothing behind
        spec = fleet.groups[0].source.spec._asdict()
        if not resume:
            files.write_json(directory / FLEET, {"format": files.FORMAT, "spec": spec, "settings": to_json(config)})
        simulators = getattr(fleet.groups[0].source, "simulators", None)
        records = FleetDirectory(directory, run_records(config, spec), config.wandb, resume, lock, simulators)
        progress, notes = _begin(fleet, records, resume, quiet)
        about = getattr(fleet.groups[0].source, "about", "")  # optional: what a source has to say of itself
        for note in [*notes, about] if about else notes:
            progress.say(note)
        begun = not fleet.finished
        progress.say(_legend(config) if begun else "finished already: nothing is left to train")
        progress.start()
        with _StopOnce(progress) as stop, files.naming(directory):
            Training(fleet, records, progress, lambda: stop.asked).run()
        took = f"done in {time.monotonic() - started:.0f} s; " if begun else ""
        progress.say(f"{took}records in {directory}")
    except KeyboardInterrupt:
        if progress is not None:
            where = (
                "from the last checkpoint"
                if checkpoint.checkpoints(directory)
                else "from the beginning, nothing was saved yet"
            )
            progress.say(f"quit without saving; continue {where}: {command('resume', directory)}")
        raise
    finally:
        for thing in (progress, fleet, records, lock):
            if thing is not None:
                thing.close()


def _begin(fleet: Fleet, records: FleetDirectory, resume: bool, quiet: bool) -> tuple[Progress, list[str]]:
    """Put fleet and records where training starts; what is worth telling about that."""
    config, directory = fleet.config, fleet.directory
    runs = len(config.runs)
    saved = None
    if resume and checkpoint.checkpoints(directory):
        saved = fleet.resume()
        checkpoint.set_aside(directory, saved.step)
    progress = Progress(runs * config.total_iterations * config.iteration_steps, fleet.steps * runs, quiet=quiet)
    if saved:
        sums = saved.meta.get("checksums")  # earlier versions wrote none
        begun = records.begin(saved.meta["positions"], fleet.steps, over=fleet.finished, checksums=sums)
        notes = [*saved.notes, *begun]
    else:
        notes = records.begin([{} for _ in range(runs)] if resume else None, None)
        notes += ["no checkpoint yet: training starts from the beginning"] if resume else []
        fleet.begin_task()
    return progress, notes
