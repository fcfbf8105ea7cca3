"""Runs of a fleet that collect, learn and are examined together: their simulators, networks and what they carry along."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sphere import envs
from sphere.algos import ppo
from sphere.envs.source import Collector, Episodes, Player, Statistics, evaluate
from sphere.envs.turns import Turns
from sphere.training.measure import diagnostics, standardised_rank
from sphere.training.settings import Boundary, FleetConfig


def task_name(task: str) -> str:
    return task.split("/", 1)[1]


class Order(NamedTuple):
    """One iteration as it is wanted, in the order in which it is done."""

    iteration: int
    task_index: int
    progress: float
    """Of the task, from 0 to 1, when the iteration is done."""
    examine: bool = False
    """Evaluate afterwards, with diagnostics."""
    review: tuple[str, ...] = ()
    """Tasks to be evaluated once more."""
    then: str | None = None
    """The task to be entered."""
    capture: bool = False
    """Keep the state as it is in the end, for a checkpoint."""


class Examined(NamedTuple):
    episodes: Episodes
    diagnostics: list[dict[str, float]]


class Report(NamedTuple):
    """What an iteration leaves behind beside a new state."""

    metrics: ppo.Metrics
    episodes: Episodes
    examined: Examined | None = None
    reviewed: tuple[Episodes, ...] = ()
    tree: dict[str, Any] | None = None


class Group:
    """The state of some runs between iterations, and the steps that move it."""

    judge: Player | None = None
    heldout: np.ndarray | None = None
    done = 0
    """Iterations before the one that it is at."""

    def __init__(
        self,
        config: FleetConfig,
        program: ppo.PPOConfig,
        runs: Sequence[tuple[int, float]],
        workers: int | None,
        turns: Turns,
    ):
        self.config, self.program, self.turns = config, program, turns
        self.run_seeds = [seed for seed, _ in runs]
        self.seeds = np.array(self.run_seeds, np.uint32)
        rates = (config.ppo.learning_rate, config.ppo.final_learning_rate)
        self.hyper = ppo.Hyper(
            jnp.asarray([rho for _, rho in runs], jnp.float32),
            *(jnp.full(len(runs), rate, jnp.float32) for rate in rates),
        )
        self.make_pool = partial(
            envs.make, config.tasks[0], seed=self.run_seeds, workers=workers, **config.simulator.given()
        )
        self.pool = self.make_pool(num_envs=config.ppo.num_envs)
        self.obs_size = self.pool.single_observation_space.shape[0]
        self.act_size = self.pool.single_action_space.shape[0]
        self.collector = Collector(self.pool, self.seeds, self._no_statistics())
        self.state = self._fresh()
        count = min(config.evaluation.heldout, config.iteration_steps)
        self.online = np.zeros((len(runs), count, self.obs_size), np.float32)

    def _fresh(self) -> ppo.PPOState:
        return ppo.init_fleet(self.program, self.obs_size, self.act_size, self.seeds)

    def _no_statistics(self) -> Statistics | None:
        return Statistics.fresh(len(self.seeds), self.obs_size) if self.config.normalise_observations else None

    def enter(self, task: str, boundary: Boundary | None) -> None:
        """Let the simulators begin a task. `boundary`: what is kept of the task before; None: there was none."""
        if boundary is None:
            raw, _ = self.pool.reset()
        else:
            self._cross(boundary)
            raw, _ = self.pool.switch(task_name(task))
        self.collector.see(raw)

    def _cross(self, keep: Boundary) -> None:
        old, fresh = self.state, self._fresh()
        self.state = ppo.PPOState(
            old.actor if keep.parameters else fresh.actor,
            old.critic if keep.parameters else fresh.critic,
            old.actor_moments if keep.optimiser else fresh.actor_moments,
            old.critic_moments if keep.optimiser else fresh.critic_moments,
            old.rate if keep.learning_rate else fresh.rate,
            old.mitigation,
        )
        # what a method knows of parameters that are gone is of no use
        kept = keep.mitigation and keep.parameters
        self.state = ppo.begin_task_fleet(self.program, self.state, self.seeds, kept)
        if not keep.statistics:
            self.collector.statistics = self._no_statistics()

    @property
    def actor(self) -> ppo.GaussianActor:
        """The networks as they act."""
        return ppo.acting_fleet(self.program, self.state)

    def advance(self, order: Order) -> Report:
        """Collect, and begin to learn: unless more is ordered, on a GPU the metrics and the networks are still in the making
        when this returns."""
        self.done = order.iteration
        actor = jax.block_until_ready(self.actor)  # nobody keeps cores waiting for a network
        with self.turns.taken(self.done):
            rollout, episodes = self.collector.collect(actor, self.program.rollout_steps, order.iteration)
        self.online = self._sample(rollout.obs)
        iteration, progress = np.int32(order.iteration), np.float32(order.progress)
        self.state, metrics = ppo.update_fleet(
            self.program, self.state, self.hyper, rollout, self.seeds, iteration, progress
        )
        report = Report(metrics, episodes)
        if (order.examine or order.review) and not np.all(metrics.finite):
            return report  # there is nothing to examine, and metrics tell
        if order.examine:
            report = report._replace(examined=self.examine(self.config.tasks[order.task_index]))
        report = report._replace(reviewed=tuple(self.evaluate(task) for task in order.review))
        if order.then is not None:
            self.enter(order.then, self.config.kept)
        return report._replace(tree=self.tree()) if order.capture else report

    def evaluate(self, task: str) -> Episodes:
        if self.judge is None:
            self.judge = Player(self.make_pool(num_envs=self.config.evaluation.episodes))
        actor = jax.block_until_ready(self.actor)
        with self.turns.taken(self.done):
            return evaluate(actor, self.judge, task_name(task), self.run_seeds, self.collector.statistics)

    def examine(self, task: str) -> Examined:
        """Evaluation, and diagnostics on the held-out states and on the last rollout's."""
        episodes, statistics, actor = self.evaluate(task), self.collector.statistics, self.actor
        if self.heldout is None:
            return Examined(episodes, [{} for _ in self.run_seeds])
        raw = np.broadcast_to(self.heldout, (len(self.seeds), *self.heldout.shape))
        fixed = raw if statistics is None else statistics.normalise(raw)
        found = diagnostics(actor, {"heldout": fixed, "online": self.online}, self.pool.single_action_space)
        if statistics is None:
            found = [one | more for one, more in zip(found, standardised_rank(actor, self.heldout), strict=True)]
        return Examined(episodes, found)

    def _sample(self, obs: np.ndarray) -> np.ndarray:
        """States of the last rollout, evenly spread, for diagnostics on experience as it is met."""
        flat = obs.reshape(obs.shape[0], -1, obs.shape[-1])
        return flat[:, np.linspace(0, flat.shape[1] - 1, self.online.shape[1]).astype(int)]

    def tree(self) -> dict[str, Any]:
        """All that the future depends on, every array with rows by run or by environment."""
        statistics = self.collector.statistics
        return {
            "state": jax.tree.map(np.array, self.state),  # copies: the next update writes over what it is given
            "statistics": {} if statistics is None else statistics.state(),
            "pool": self.pool.get_state(),
            "obs": self.collector.obs,
            "online": self.online,
        }

    def restore(self, tree: dict[str, Any]) -> None:
        self.pool.set_state(tree["pool"])
        self.state = jax.tree.map(jnp.asarray, tree["state"])
        self.collector.obs, self.online = tree["obs"], tree["online"]
        if self.collector.statistics is not None:
            self.collector.statistics = dataclasses.replace(self.collector.statistics, **tree["statistics"])

    def close(self) -> None:
        self.pool.close()
        if self.judge is not None:
            self.judge.pool.close()
