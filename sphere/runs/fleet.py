"""A fleet: all its runs between two iterations, and the steps that move them."""

import dataclasses
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sphere import envs
from sphere.algos import ppo
from sphere.diagnostics import diagnose, expert_load, saturation
from sphere.envs.pool import MANY
from sphere.envs.worker import cores
from sphere.runs import checkpoint, heldout
from sphere.runs.group import Group, task_name
from sphere.runs.rollout import Episodes, Player, Statistics, evaluate, random_states
from sphere.runs.settings import Boundary, FleetConfig

LOADS = 64
"""Most experts whose loads are recorded one by one; with more of them, their balance is what can be read."""

_diagnose = jax.jit(jax.vmap(diagnose), compiler_options=ppo.EXACT)


@partial(jax.jit, compiler_options=ppo.EXACT)
@jax.vmap
def _loads(net: Any, states: jax.Array) -> jax.Array:
    return expert_load(getattr(net, "trunk", net)(states)[1])


@partial(jax.jit, compiler_options=ppo.EXACT)
@partial(jax.vmap, in_axes=(0, 0, None, None))
def _saturation(actor: ppo.GaussianActor, states: jax.Array, low: Any, high: Any) -> jax.Array:
    return saturation(actor(states)[0], low, high)


def _joined(trees: list[Any]) -> Any:
    """Trees of several groups as one: rows after rows."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *leaves: (np if isinstance(leaves[0], np.ndarray) else jnp).concatenate(leaves), *trees)


class _Here:
    """In place of a thread where there is one group only: the work is done when it is given."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # is told when the result is asked for, after what came before it
            future.set_exception(error)
        return future

    def shutdown(self, cancel_futures: bool) -> None:
        pass


class Fleet:
    """The state of a fleet between iterations, and the steps that move it.

    Its runs are one group, or two halves with a thread each, of which one may collect while the other learns: that changes no
    run's numbers.
    """

    def __init__(self, config: FleetConfig, directory: Path):
        self.config, self.directory = config, directory
        # Without any rho the penalty is left out of the program: faster, and the same numbers.
        self.program = config.ppo if any(config.rho) else dataclasses.replace(config.ppo, penalty=None)
        self.run_seeds = [seed for seed, _ in config.runs]
        self.groups: list[Group] = []
        self.judge: Player | None = None
        self.task_index = self.iteration = self.total_iterations = self.begun = 0
        self.queue: deque[list[Future]] = deque()  # iterations that were begun and not asked for yet
        self.threads: list[ThreadPoolExecutor | _Here] = []
        try:
            halves = self._halves()
            workers = config.workers
            if workers is None and len(halves) > 1:
                workers = cores() // len(halves)
            for runs in halves:
                self.groups.append(Group(config, self.program, runs, workers))
                self.threads.append(_Here() if len(halves) == 1 else ThreadPoolExecutor(1))
            self.obs_size = self.groups[0].obs_size
            self.heldout = self._heldout()
        except BaseException:
            self.close()
            raise

    def _halves(self) -> list[list[tuple[int, float]]]:
        runs, wanted = self.config.runs, self.config.overlap
        if wanted is None:
            wanted = jax.default_backend() != "cpu" and cores() >= MANY
        middle = (len(runs) + 1) // 2
        return [runs[:middle], runs[middle:]] if wanted and len(runs) > 1 else [runs]

    def close(self) -> None:
        for thread in self.threads:
            thread.shutdown(cancel_futures=True)
        for group in self.groups:
            group.pool.close()
        if self.judge is not None:
            self.judge.pool.close()

    def _heldout(self) -> np.ndarray | None:
        """The suite's own batch; where there is none that fits, states of a random policy, the same for every user."""
        count = self.config.evaluation.heldout
        if not count:
            return None
        batch = heldout.shipped(self.config.tasks[0].split("/")[0])
        if batch is not None and batch.states.shape[1] == self.obs_size and count <= len(batch.states):
            return batch.states[:count]
        with envs.make(self.config.tasks[0], num_envs=8, seed=0, workers=0, **self.config.simulator.given()) as pool:
            return random_states(pool, count)

    @property
    def task(self) -> str:
        return self.config.tasks[self.task_index]

    @property
    def steps(self) -> int:
        """Environment steps of each run so far."""
        return self.total_iterations * self.config.iteration_steps

    @property
    def state(self) -> ppo.PPOState:
        """Of all runs."""
        return _joined([group.state for group in self.groups])

    @property
    def actor(self) -> ppo.GaussianActor:
        """Of all runs, the networks as they act."""
        return _joined([group.actor for group in self.groups])

    @property
    def statistics(self) -> Statistics | None:
        """Of all runs."""
        kept = [group.collector.statistics for group in self.groups]
        found = [statistics.state() for statistics in kept if statistics is not None]
        return Statistics(**_joined(found)) if found else None

    def begin_task(self) -> None:
        """Switch the simulators and keep or reset what the protocol and the boundary policy say."""
        nothing = Boundary(**{field.name: False for field in dataclasses.fields(Boundary)})
        boundary = self.config.boundary if self.config.protocol == "crl" else nothing
        for group in self.groups:
            group.enter(self.task, boundary if self.task_index else None)

    def advance(self, ahead: bool = False) -> tuple[ppo.Metrics, Episodes]:
        """One iteration of every run. `ahead`: whoever is done with it may begin the next one, so that another call must
        follow before anything else is asked of the fleet."""
        try:
            return self._advance(ahead)
        except jax.errors.JaxRuntimeError as error:
            # seen before ppo.EXACT kept products to whole arrays
            if self.program.deterministic and "cublas" in str(error).lower():
                raise RuntimeError(
                    "this GPU has no kernel by rule for a product of this size; let it choose by timing: "
                    "--ppo.no-deterministic (a resumed run may then differ from an undisturbed one in its last bits), "
                    f"or train several seeds at once. It said: {error}"
                ) from error
            raise

    def _advance(self, ahead: bool) -> tuple[ppo.Metrics, Episodes]:
        if not self.queue:
            self._begin_iteration()
        begun = self.queue.popleft()
        if ahead:
            self._begin_iteration()
        metrics, episodes, first = [], [], 0
        for group, future in zip(self.groups, begun, strict=True):
            done, found = future.result()
            metrics.append(done)
            episodes.append(found._replace(run=found.run + first))
            first += len(group.seeds)
        self.iteration += 1
        self.total_iterations += 1
        together = Episodes(*(np.concatenate(column) for column in zip(*episodes, strict=True)))
        return _joined(jax.device_get(metrics)), together

    def _begin_iteration(self) -> None:
        number = self.begun = max(self.begun, self.total_iterations) + 1
        within = self.iteration + number - self.total_iterations
        progress = within / self.config.iterations_per_task
        self.queue.append(
            [
                thread.submit(group.advance, number - 1, progress)
                for group, thread in zip(self.groups, self.threads, strict=True)
            ]
        )

    def evaluate(self, task: str) -> Episodes:
        if self.judge is None:
            config = self.config
            pool = envs.make(
                config.tasks[0],
                num_envs=config.evaluation.episodes,
                seed=self.run_seeds,
                workers=config.workers,
                **config.simulator.given(),
            )
            self.judge = Player(pool)
        return evaluate(self.actor, self.judge, task_name(task), self.run_seeds, self.statistics)

    def diagnostics(self) -> list[dict[str, float]]:
        """Of each run, on the held-out batch and on the last rollout's states."""
        results: list[dict[str, float]] = [{} for _ in self.run_seeds]
        if self.heldout is None:
            return results
        raw = np.broadcast_to(self.heldout, (len(self.run_seeds), *self.heldout.shape))
        actor, statistics = self.actor, self.statistics
        fixed = raw if statistics is None else statistics.normalise(raw)
        online = np.concatenate([group.online for group in self.groups])
        box = self.groups[0].pool.single_action_space
        for place, states in (("heldout", fixed), ("online", online)):
            found = _diagnose(actor, jnp.asarray(states))._asdict()
            found["saturation"] = _saturation(actor, jnp.asarray(states), box.low, box.high)
            for name, values in jax.device_get(found).items():
                for run, value in enumerate(values):
                    results[run][f"{place}/{name}"] = float(value)
            loads = jax.device_get(_loads(actor, jnp.asarray(states)))
            if 1 < loads.shape[1] <= LOADS:
                for run, shares in enumerate(loads):
                    results[run] |= {f"{place}/load/{expert}": float(share) for expert, share in enumerate(shares)}
        return results

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def tree(self) -> dict[str, Any]:
        return _joined([group.tree() for group in self.groups])

    def counters(self) -> dict[str, int]:
        return {
            "task_index": self.task_index,
            "iteration": self.iteration,
            "total_iterations": self.total_iterations,
        }

    def resume(self) -> checkpoint.Checkpoint:
        """Go on from the newest good checkpoint of the directory."""
        saved = checkpoint.load_latest(self.directory, like_for=self._at)
        first, runs = 0, len(self.run_seeds)
        for group in self.groups:
            last = first + len(group.seeds)

            def mine(leaf: np.ndarray, first: int = first, last: int = last) -> np.ndarray:
                rows = len(leaf) // runs  # one for each run, or one for each of its environments
                return leaf[first * rows : last * rows]

            group.restore(jax.tree.map(mine, saved.tree))
            first = last
        return saved

    def _at(self, meta: dict[str, Any]) -> dict[str, Any]:
        """A tree of the sizes of that moment: simulators of different tasks have states of different sizes."""
        for name, value in meta["counters"].items():
            setattr(self, name, value)
        keep_all = Boundary(**{field.name: True for field in dataclasses.fields(Boundary)})
        for group in self.groups:
            group.enter(self.task, keep_all if self.task_index else None)
        return self.tree()
