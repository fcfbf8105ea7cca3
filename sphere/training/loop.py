"""Training: a fleet through its tasks, with evaluation, records and checkpoints from which it goes on exactly.

Everything random is a function of (seed, purpose, counter), so a checkpoint needs arrays and counters only, and a run
that was killed and resumed ends with the same numbers as one that was not.
"""

import dataclasses
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sphere.algos import ppo
from sphere.envs.source import Episodes
from sphere.storage import checkpoint, run_directory
from sphere.storage.fleet_directory import Records, check, check_nothing_is_lost
from sphere.training.fleet import Fleet
from sphere.training.progress import Progress
from sphere.training.settings import FleetConfig, run_name


class NonFinite(RuntimeError):
    """A loss, gradient or parameter became NaN or infinite."""


class Interrupted(RuntimeError):
    """Stopped on request, after saving."""

    @property
    def at(self) -> str:
        """Without the advice, for commands that have another."""
        return str(self).split(";")[0]


def _by_run(values: np.ndarray, run: np.ndarray, runs: int) -> list[float]:
    return [float(np.mean(values[run == r])) if np.any(run == r) else float("nan") for r in range(runs)]


class Training:
    """Drives a fleet from start or checkpoint to the end, with records."""

    def __init__(self, fleet: Fleet, records: Records, progress: Progress, should_stop: Callable[[], bool]):
        self.fleet, self.records, self.progress, self.should_stop = fleet, records, progress, should_stop
        self.runs = len(fleet.run_seeds)

    def save(self, tree: dict[str, Any]) -> None:
        meta = {"counters": self.fleet.counters(), "positions": self.records.positions()}
        checkpoint.save(self.fleet.directory, self.fleet.total_iterations, tree, meta)

    def check_finite(self, task: str, metrics: ppo.Metrics) -> None:
        bad = [run_name(*self.fleet.config.runs[r]) for r in np.flatnonzero(~np.asarray(metrics.finite, bool))]
        if bad:
            kept = checkpoint.checkpoints(self.fleet.directory)
            where = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
            raise NonFinite(
                f"NaN or infinity in {', '.join(bad)} at step {self.fleet.steps} of {task}; {where}. "
                "Lower the learning rate or rho, and look at the last lines of metrics.jsonl"
            )

    def note(self, index: int, kind: str, found: Episodes, diagnostics: list[dict[str, float]] | None = None) -> None:
        """Evaluation episodes of a task, recorded one by one and as means."""
        fleet, task = self.fleet, self.fleet.config.tasks[index]
        self.records.episodes(fleet.steps, task, kind, fleet.run_seeds, found)
        means = {
            f"{kind}/{name}": _by_run(values, found.run, self.runs)
            for name, values in (
                ("success_once", found.success_once),
                ("success_at_end", found.success_at_end),
                ("return", found.returns),
            )
        }
        values = [{name: column[r] for name, column in means.items()} for r in range(self.runs)]
        for one, more in zip(values, diagnostics or [{}] * self.runs, strict=True):
            one.update(more)
        self.records.event(fleet.steps, values, task, index)
        if kind == "evaluation":
            self.report(task, values)

    def report(self, task: str, values: list[dict[str, float]]) -> None:
        def mean(name: str) -> float:
            return float(np.mean([one.get(name, np.nan) for one in values]))

        facts = {"success": mean("evaluation/success_at_end"), "r_e(K)": mean("heldout/ntk_rank")}
        self.progress.facts = facts
        self.progress.say(
            f"{task:<28} {self.fleet.steps:>12,} steps   success {facts['success']:.2f}   "
            f"return {mean('evaluation/return'):>9.2f}   r_e(K) {facts['r_e(K)']:>7.2f}   "
            f"{self.progress.speed:>9,.0f} steps/s"
        )

    def iterate(self) -> dict[str, Any] | None:
        """One iteration and its records; the fleet's state afterwards, if a checkpoint is due."""
        fleet, tasks = self.fleet, self.fleet.config.tasks
        left = fleet.config.iterations_per_task * len(tasks) - fleet.total_iterations - 1
        order, done = fleet.advance(ahead=0 if self.should_stop() else left)
        task = tasks[order.task_index]
        values = [
            {f"train/{name}": float(column[r]) for name, column in done.metrics._asdict().items() if name != "finite"}
            for r in range(self.runs)
        ]
        for name, column in (
            ("return", done.episodes.returns),
            ("success_once", done.episodes.success_once),
            ("success_at_end", done.episodes.success_at_end),
        ):
            for r, mean in enumerate(_by_run(column, done.episodes.run, self.runs)):
                values[r][f"train/{name}"] = mean
        self.records.event(fleet.steps, values, task, order.task_index)
        self.check_finite(task, done.metrics)
        self.progress.advance(task, fleet.steps * self.runs)
        if done.examined is not None:
            self.note(order.task_index, "evaluation", *done.examined)
        for index, found in enumerate(done.reviewed):
            self.note(index, "final" if fleet.finished else "retention", found)
        return done.tree

    def run(self) -> None:
        fleet = self.fleet
        while not fleet.finished:
            tree = self.iterate()
            if tree is not None:
                self.save(tree)
            if self.should_stop() and not fleet.queue:
                self.save(fleet.tree())
                rest = "all is trained" if fleet.finished else f"go on with: sphere resume {fleet.directory}"
                raise Interrupted(f"stopped after step {fleet.steps}; {rest}")


class _StopOnce:
    """The first Ctrl-C, or SIGTERM (a scheduler's way to say that time is up), asks for an orderly end after what has begun;
    another Ctrl-C leaves at once."""

    def __init__(self, progress: Progress):
        self.asked = False
        self.progress = progress
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "_StopOnce":
        wanted = [signal.SIGINT]
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else somebody has plans for it, as submitit has
            wanted.append(signal.SIGTERM)
        with suppress(ValueError):  # not in the main thread: whoever called decides
            self.before = {one: signal.signal(one, self._handle) for one in wanted}
        return self

    def _handle(self, number: int, _: object) -> None:
        if not self.asked:
            self.asked = True
            self.progress.say("stopping: what has begun is finished, then saved; press Ctrl-C again to leave at once")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        for one, handler in self.before.items():
            if handler is not None:  # not one of Python's
                signal.signal(one, handler)


def train(config: FleetConfig, directory: Path, *, resume: bool = False, quiet: bool = False) -> None:
    """Train a fleet into `directory`, or go on with the one that is there."""
    check(config)
    directory.mkdir(parents=True, exist_ok=True)
    lock = run_directory.lock_directory(directory)
    fleet = records = progress = None
    started = time.monotonic()
    try:
        if not resume and ((directory / "fleet.json").exists() or checkpoint.checkpoints(directory)):
            raise FileExistsError(
                f"{directory} holds a fleet already; go on with it by sphere resume, or choose another"
            )
        check_nothing_is_lost(config, directory, resume)
        runs = len(config.runs)
        fleet = Fleet(config, directory)  # first: settings that it refuses leave nothing behind
        if not resume:
            run_directory.write_json(directory / "fleet.json", run_directory.plain(dataclasses.asdict(config)))
        records = Records(config, directory, resume)
        total = runs * len(config.tasks) * config.iterations_per_task * config.iteration_steps
        saved = None
        if resume and checkpoint.checkpoints(directory):
            saved = fleet.resume()
            checkpoint.set_aside(directory, saved.step)
        progress = Progress(total, fleet.steps * runs, quiet=quiet)
        if saved:
            notes = [*saved.notes, *records.begin(saved.meta["positions"], fleet.steps, over=fleet.finished)]
        else:
            notes = records.begin([{} for _ in range(runs)] if resume else None, None)
            notes += ["there is no checkpoint yet: from the start"] if resume else []
            fleet.begin_task()
        if fleet.finished:
            notes.append("finished already: nothing is left to train")
        for note in notes:
            progress.say(note)
        with _StopOnce(progress) as stop:
            Training(fleet, records, progress, lambda: stop.asked).run()
        progress.say(f"done in {time.monotonic() - started:.0f} s; records in {directory}")
    except KeyboardInterrupt:
        if progress is not None:
            where = (
                "from the last checkpoint"
                if checkpoint.checkpoints(directory)
                else "from the start, nothing was saved yet"
            )
            progress.say(f"left at once; go on {where}: sphere resume {directory}")
        raise
    finally:
        for thing in (progress, fleet, records, lock):
            if thing is not None:
                thing.close()
