"""A fleet: networks, simulators and counters of all its runs between two iterations, and the steps that move them."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sphere import envs
from sphere.algos import ppo
from sphere.diagnostics import diagnose, expert_load
from sphere.runs import checkpoint, heldout
from sphere.runs.rollout import Collector, Episodes, Statistics, evaluate, random_states
from sphere.runs.settings import FleetConfig

LOADS = 64
"""Most experts whose loads are recorded one by one; with more of them, their balance is what can be read."""

_diagnose = jax.jit(jax.vmap(diagnose), compiler_options=ppo.EXACT)


@partial(jax.jit, compiler_options=ppo.EXACT)
@jax.vmap
def _loads(net: Any, states: jax.Array) -> jax.Array:
    return expert_load(getattr(net, "trunk", net)(states)[1])


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
        make = partial(envs.make, first, seed=self.run_seeds, workers=config.workers, **config.simulator.given())
        self.pool = make(num_envs=config.ppo.num_envs)
        try:
            self.eval_pool = make(num_envs=config.evaluation.episodes)
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
        rollout, episodes = self.collector.collect(self.state.actor, ppo_config.rollout_steps, self.total_iterations)
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
            loads = jax.device_get(_loads(self.state.actor, jnp.asarray(states)))
            if 1 < loads.shape[1] <= LOADS:
                for run, shares in enumerate(loads):
                    results[run] |= {f"{place}/load/{expert}": float(share) for expert, share in enumerate(shares)}
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

    def resume(self) -> checkpoint.Checkpoint:
        """Go on from the newest good checkpoint of the directory."""
        saved = checkpoint.load_latest(self.directory, like_for=self._at)
        tree = saved.tree
        self.pool.set_state(tree["pool"])
        self.state, self.collector.obs, self.online = tree["state"], tree["obs"], tree["online"]
        if self.collector.statistics is not None:
            self.collector.statistics = dataclasses.replace(self.collector.statistics, **tree["statistics"])
        return saved

    def _at(self, meta: dict[str, Any]) -> dict[str, Any]:
        """A tree of the sizes of that moment: simulators of different tasks have states of different sizes."""
        for name, value in meta["counters"].items():
            setattr(self, name, value)
        raw, _ = self.pool.switch(task_name(self.task)) if self.task_index else self.pool.reset()
        self.collector.see(raw)
        return self.tree()
