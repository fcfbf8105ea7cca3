"""Training: a fleet through its tasks, with evaluation, records and checkpoints from which it goes on exactly.

Everything random is a function of (seed, purpose, counter), so a checkpoint needs arrays and counters only, and a run
that was killed and resumed ends with the same numbers as one that was not.
"""

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sphere import envs
from sphere.algos import ppo
from sphere.diagnostics import diagnose
from sphere.runs import checkpoint, record
from sphere.runs.progress import Progress
from sphere.runs.rollout import Collector, Episodes, Statistics, evaluate, random_states
from sphere.runs.settings import FleetConfig, run_name, with_run
from sphere.runs.tensorboard import EventWriter


class NonFinite(RuntimeError):
    """A loss, gradient or parameter became NaN or infinite."""


class Interrupted(RuntimeError):
    """Stopped on request, after saving."""


_diagnose = eqx.filter_jit(eqx.filter_vmap(diagnose))


def task_name(task: str) -> str:
    return task.split("/", 1)[1]


class Fleet:
    """The state of a fleet between iterations, and the steps that move it."""

    def __init__(self, config: FleetConfig, directory: Path):
        self.config, self.directory = config, directory
        # Without any rho the penalty is left out of the program: faster, and the same numbers.
        self.program = config.ppo if any(config.rho) else dataclasses.replace(config.ppo, penalty=None)
        self.run_seeds = [seed for seed, _ in config.runs]
        self.seeds = jnp.asarray(np.array(self.run_seeds, np.uint32))
        rates = (config.ppo.learning_rate, config.ppo.final_learning_rate)
        self.hyper = ppo.Hyper(
            jnp.asarray([rho for _, rho in config.runs], jnp.float32),
            *(jnp.full(len(config.runs), rate, jnp.float32) for rate in rates),
        )
        first = config.tasks[0]
        make = envs.make
        self.pool = make(first, num_envs=config.ppo.num_envs, seed=self.run_seeds, workers=config.workers)
        try:
            self.eval_pool = make(
                first, num_envs=config.evaluation.episodes, seed=self.run_seeds, workers=config.workers
            )
            self.obs_size = self.pool.single_observation_space.shape[0]
            self.act_size = self.pool.single_action_space.shape[0]
            self.heldout = self._heldout()
            statistics = Statistics.fresh(len(config.runs), self.obs_size) if config.normalise_observations else None
            self.collector = Collector(self.pool, self.seeds, statistics)
            self.state = self._fresh()
            self.task_index = self.iteration = self.total_iterations = 0
            count = min(config.evaluation.heldout, config.iteration_steps)
            self.online = np.zeros((len(config.runs), count, self.obs_size), np.float32)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for pool in (self.pool, getattr(self, "eval_pool", None)):
            if pool is not None:
                pool.close()

    def _fresh(self) -> ppo.PPOState:
        return ppo.init_fleet(self.program, self.obs_size, self.act_size, self.seeds)

    def _heldout(self) -> np.ndarray | None:
        """The fixed batch of the suite. Suites that ship none get states of a random policy, the same for every user."""
        if not self.config.evaluation.heldout:
            return None
        with envs.make(self.config.tasks[0], num_envs=8, seed=0, workers=0) as pool:
            return random_states(pool, self.config.evaluation.heldout)

    @property
    def task(self) -> str:
        return self.config.tasks[self.task_index]

    @property
    def steps(self) -> int:
        """Environment steps of each run so far."""
        return self.total_iterations * self.config.iteration_steps

    def begin_task(self) -> None:
        """Switch the simulators and keep or reset what the protocol and the boundary policy say."""
        scratch = self.config.protocol == "rl"
        if self.task_index > 0:
            keep = self.config.boundary
            fresh = self._fresh()
            old = self.state
            parameters = keep.parameters and not scratch
            moments = keep.optimiser and not scratch
            self.state = ppo.PPOState(
                old.actor if parameters else fresh.actor,
                old.critic if parameters else fresh.critic,
                old.actor_moments if moments else fresh.actor_moments,
                old.critic_moments if moments else fresh.critic_moments,
                old.rate if keep.learning_rate and not scratch else fresh.rate,
            )
            if self.collector.statistics is not None and (scratch or not keep.statistics):
                self.collector.statistics = Statistics.fresh(len(self.run_seeds), self.obs_size)
        raw, _ = self.pool.reset() if self.task_index == 0 else self.pool.switch(task_name(self.task))
        self.collector.see(raw)

    def advance(self) -> tuple[ppo.Metrics, Episodes]:
        """One iteration: collect, update."""
        ppo_config = self.program
        first_step = self.total_iterations * ppo_config.rollout_steps
        rollout, episodes = self.collector.collect(self.state.actor, ppo_config.rollout_steps, first_step)
        self.online = self._sample(rollout.obs)
        progress = (self.iteration + 1) / self.config.iterations_per_task
        self.state, metrics = ppo.update_fleet(
            ppo_config,
            self.state,
            self.hyper,
            rollout,
            self.seeds,
            np.int32(self.total_iterations),
            np.float32(progress),
        )
        self.iteration += 1
        self.total_iterations += 1
        return jax.device_get(metrics), episodes

    def _sample(self, obs: np.ndarray) -> np.ndarray:
        """States of the last rollout, evenly spread, for diagnostics on experience as it is met."""
        flat = obs.reshape(obs.shape[0], -1, obs.shape[-1])
        return flat[:, np.linspace(0, flat.shape[1] - 1, self.online.shape[1]).astype(int)]

    def evaluate(self, task: str) -> Episodes:
        return evaluate(self.state.actor, self.eval_pool, task_name(task), self.run_seeds, self.collector.statistics)

    def diagnostics(self) -> list[dict[str, float]]:
        """Of each run, on the held-out batch and on the last rollout's states."""
        results: list[dict[str, float]] = [{} for _ in self.run_seeds]
        if self.heldout is None:
            return results
        raw = np.broadcast_to(self.heldout, (len(self.run_seeds), *self.heldout.shape))
        statistics = self.collector.statistics
        fixed = raw if statistics is None else statistics.normalise(raw)
        for place, states in (("heldout", fixed), ("online", self.online)):
            for name, values in jax.device_get(_diagnose(self.state.actor, jnp.asarray(states)))._asdict().items():
                for run, value in enumerate(values):
                    results[run][f"{place}/{name}"] = float(value)
        return results

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def tree(self) -> dict[str, Any]:
        statistics = self.collector.statistics
        return {
            "state": self.state,
            "statistics": {} if statistics is None else statistics.state(),
            "pool": self.pool.get_state(),
            "obs": self.collector.obs,
            "online": self.online,
        }

    def counters(self) -> dict[str, int]:
        return {
            "task_index": self.task_index,
            "iteration": self.iteration,
            "total_iterations": self.total_iterations,
        }

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        for name, value in saved.meta["counters"].items():
            setattr(self, name, value)
        if self.task_index:
            self.pool.switch(task_name(self.task))
        tree = saved.tree
        self.pool.set_state(tree["pool"])
        self.state, self.collector.obs, self.online = tree["state"], tree["obs"], tree["online"]
        if self.collector.statistics is not None:
            self.collector.statistics = dataclasses.replace(self.collector.statistics, **tree["statistics"])


class Records:
    """The run directories of a fleet: one per run, beside the fleet's own checkpoints."""

    def __init__(self, config: FleetConfig, directory: Path, resume: bool, tensorboard: bool = True):
        environment = None if resume else record.describe_environment()
        self.runs = []
        for seed, rho in config.runs:
            path = directory / run_name(seed, rho)
            self.runs.append(
                record.RunDirectory.resume(path)
                if resume
                else record.RunDirectory.create(path, with_run(config, seed, rho), environment or {})
            )
        self.paths = [directory / run_name(seed, rho) for seed, rho in config.runs]
        self.boards: list[EventWriter] = []
        self.tensorboard = tensorboard

    def begin(self, positions: list[dict[str, int]] | None, resumed_at: int | None) -> None:
        for index, run in enumerate(self.runs):
            if positions is not None:
                run.truncate(positions[index])
        if self.tensorboard:
            self.boards = [EventWriter(path, resumed_at=resumed_at) for path in self.paths]

    def event(self, step: int, values: list[dict[str, float]], task: str, task_index: int) -> None:
        for index, (run, one) in enumerate(zip(self.runs, values, strict=True)):
            run.event(step, one, task=task, task_index=task_index)
            if self.boards:
                self.boards[index].add(step, one)

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
        for run in self.runs:
            run.close()


def _by_run(values: np.ndarray, run: np.ndarray, runs: int) -> list[float]:
    return [float(np.mean(values[run == r])) if np.any(run == r) else float("nan") for r in range(runs)]


class Training:
    """Drives a fleet from start or checkpoint to the end, with records."""

    def __init__(self, fleet: Fleet, records: Records, progress: Progress, should_stop: Callable[[], bool]):
        self.fleet, self.records, self.progress, self.should_stop = fleet, records, progress, should_stop
        self.runs = len(fleet.run_seeds)

    def log(self, values: list[dict[str, float]]) -> None:
        self.records.event(self.fleet.steps, values, self.fleet.task, self.fleet.task_index)

    def save(self) -> None:
        meta = {"counters": self.fleet.counters(), "positions": self.records.positions()}
        checkpoint.save(self.fleet.directory, self.fleet.total_iterations, self.fleet.tree(), meta)

    def check_finite(self, metrics: ppo.Metrics) -> None:
        bad = [run_name(*self.fleet.config.runs[r]) for r in np.flatnonzero(~np.asarray(metrics.finite, bool))]
        if bad:
            kept = checkpoint.checkpoints(self.fleet.directory)
            where = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
            raise NonFinite(
                f"NaN or infinity in {', '.join(bad)} at step {self.fleet.steps} of {self.fleet.task}; {where}. "
                "Lower the learning rate or rho, and look at the last lines of metrics.jsonl"
            )

    def evaluate(self, task: str, kind: str) -> None:
        """One task, recorded episode by episode and as means."""
        fleet = self.fleet
        found = fleet.evaluate(task)
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
        if kind == "evaluation":
            for one, more in zip(values, fleet.diagnostics(), strict=True):
                one.update(more)
        self.records.event(fleet.steps, values, task, fleet.config.tasks.index(task))
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

    def iterate(self) -> None:
        fleet, config = self.fleet, self.fleet.config
        metrics, episodes = fleet.advance()
        values = [
            {f"train/{name}": float(column[r]) for name, column in metrics._asdict().items() if name != "finite"}
            for r in range(self.runs)
        ]
        for name, column in (
            ("return", episodes.returns),
            ("success_once", episodes.success_once),
            ("success_at_end", episodes.success_at_end),
        ):
            for r, mean in enumerate(_by_run(column, episodes.run, self.runs)):
                values[r][f"train/{name}"] = mean
        self.log(values)
        self.check_finite(metrics)
        if fleet.iteration in config.evaluations():
            self.evaluate(fleet.task, "evaluation")
        self.progress.advance(fleet.task, fleet.steps * self.runs)

    def end_task(self) -> None:
        """The boundary: retention if asked, and everything once more at the very end."""
        fleet, config = self.fleet, self.fleet.config
        last = fleet.task_index == len(config.tasks) - 1
        if (last or config.evaluation.retention) and config.protocol == "crl":
            for task in config.tasks:
                self.evaluate(task, "final" if last else "retention")
        if not last:
            fleet.task_index, fleet.iteration = fleet.task_index + 1, 0
            fleet.begin_task()
        self.save()

    def run(self) -> None:
        fleet, config = self.fleet, self.fleet.config
        while fleet.iteration < config.iterations_per_task:
            self.iterate()
            if fleet.iteration == config.iterations_per_task:
                self.end_task()
            elif fleet.iteration % config.checkpoint_every == 0:
                self.save()
            if self.should_stop():
                self.save()
                raise Interrupted(f"stopped after step {fleet.steps}; go on with: sphere resume {fleet.directory}")


class _StopOnce:
    """The first Ctrl-C asks for an orderly end after this iteration; the second leaves at once."""

    def __init__(self, progress: Progress):
        self.asked = False
        self.progress = progress

    def __enter__(self) -> "_StopOnce":
        try:
            self.before = signal.signal(signal.SIGINT, self._handle)
        except ValueError:  # not in the main thread: whoever called decides
            self.before = None
        return self

    def _handle(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.progress.say("stopping after this iteration, then saving; press Ctrl-C again to leave at once")

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)


def train(config: FleetConfig, directory: Path, *, resume: bool = False, quiet: bool = False) -> None:
    """Train a fleet into `directory`, or go on with the one that is there."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = record.lock_directory(directory)
    fleet = records = progress = None
    started = time.monotonic()
    try:
        if not resume:
            record.write_json(directory / "fleet.json", record.plain(dataclasses.asdict(config)))
        runs = len(config.runs)
        records = Records(config, directory, resume)
        fleet = Fleet(config, directory)
        total = runs * len(config.tasks) * config.iterations_per_task * config.iteration_steps
        saved = None
        if resume and checkpoint.checkpoints(directory):
            fleet.begin_task()
            saved = checkpoint.load_latest(directory, fleet.tree())
            fleet.restore(saved)
        progress = Progress(total, fleet.steps * runs, quiet=quiet)
        for note in saved.notes if saved else ():
            progress.say(note)
        if saved:
            records.begin(saved.meta["positions"], fleet.steps)
        else:
            records.begin([{} for _ in range(runs)] if resume else None, None)
            fleet.begin_task()
        with _StopOnce(progress) as stop:
            Training(fleet, records, progress, lambda: stop.asked).run()
        progress.say(f"done in {time.monotonic() - started:.0f} s; records in {directory}")
    finally:
        for thing in (progress, fleet, records, lock):
            if thing is not None:
                thing.close()
