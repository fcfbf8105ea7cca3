"""Simulators on an accelerator as the source of a group's data: one compiled program collects a whole rollout.

Policy, physics, resets, time limits and running statistics are in that program. The host gets the episodes that ended
and the moments of the observations; the data stay where they are learned from. Evaluation is by the exact environments
in worker processes, whatever trains.

Statistics: within a rollout in float32, merged batch by batch with the run's; between rollouts on the host in float64,
because a mean of 50 million observations does not move any more in float32.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sphere.algos.learner import Data, DataSpec
from sphere.algos.rows import EXACT
from sphere.algos.source import Outcomes
from sphere.algos.state import ACT, RESET, RESET_EVALUATION, key_of
from sphere.envs import simulators, worlds
from sphere.envs.collector import COLUMNS
from sphere.envs.policy import CLIP, EPSILON
from sphere.envs.running_statistics import Statistics
from sphere.envs.suite_source import SuiteSource
from sphere.envs.worlds import Ended, Worlds, WorldState
from sphere.nets import Explorer

GPU_COLUMNS = tuple(f"gpu_{name}" for name in COLUMNS)
"""Of an evaluation episode under the physics that trains."""


class Moments(NamedTuple):
    """Of the observations of each run, in float32."""

    mean: Float[Any, "run obs"]
    var: Float[Any, "run obs"]
    count: Float[Any, " run"]


def merged(one: Moments, two: Moments) -> Moments:
    """Of both together, as `Statistics.merge` has it."""
    first, second = one.count[:, None], two.count[:, None]
    total, delta = first + second, two.mean - one.mean
    squares = one.var * first + two.var * second + delta**2 * (first * second / total)
    return Moments(one.mean + delta * (second / total), squares / total, one.count + two.count)


def moments_of(obs: Float[Array, "run env obs"]) -> Moments:
    count = jnp.full(obs.shape[0], obs.shape[1], obs.dtype)
    return Moments(jnp.mean(obs, axis=1), jnp.var(obs, axis=1), count)


def normalised(obs: Float[Array, "run env obs"], moments: Moments) -> Float[Array, "run env obs"]:
    apart = (obs - moments.mean[:, None]) / jnp.sqrt(moments.var[:, None] + EPSILON)
    return jnp.clip(apart, -CLIP, CLIP)


def acting(policy: Any, obs: Float[Array, "run env obs"]) -> Float[Array, "run env act"]:
    """Of all runs side by side; on a CPU one after another, so that none depends on how many there are."""
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda own: own[0].act(own[1]), (policy, obs))
    return jax.vmap(lambda policy, obs: policy.act(obs))(policy, obs)


def noise(made: Worlds, uniform: bool, seeds: Any, iteration: Any, shape: tuple[int, ...]) -> Array:
    """Unit normal numbers of a whole rollout [run, *shape], or the actions themselves where they are drawn evenly from
    the box."""

    def one(seed: Array) -> Array:
        key = key_of(seed, ACT, iteration)
        if not uniform:
            return jax.random.normal(key, shape)
        low, high = (jnp.asarray(bound, jnp.float32)[None, None] for bound in (made.action_low, made.action_high))
        return low + (high - low) * jax.random.uniform(key, shape)

    return jax.vmap(one)(seeds)


@partial(jax.jit, static_argnums=(0, 1, 2), compiler_options=EXACT)
def rollout(
    made: Worlds,
    steps: int,
    uniform: bool,
    policy: Any,
    running: WorldState,
    obs: Float[Array, "run env obs"],
    base: Moments | None,
    spread: Float[Array, "run act"],
    seeds: Array,
    iteration: Array,
) -> tuple[WorldState, Array, dict[str, Array], Ended, Moments | None]:
    """`steps` steps everywhere: worlds and observations after them, the data [run, time, env, ...], the episodes that
    ended [time, world], and the moments of what was observed. `base`: those of before, None where none are kept."""
    runs, envs = obs.shape[:2]
    shape = (steps, envs, len(made.action_low))
    extra = jnp.moveaxis(noise(made, uniform, seeds, iteration, shape), 1, 0)

    def by_run(rows: Array) -> Array:
        return rows.reshape(runs, envs, *rows.shape[1:])

    def one(carry: tuple[WorldState, Array, Moments | None], added: Array) -> tuple[Any, Any]:
        running, obs, found = carry
        action = added if uniform else acting(policy, obs) + spread[:, None] * added
        running, moved = worlds.step(made, running, action.reshape(-1, action.shape[-1]))
        now, successor = by_run(moved.obs), by_run(moved.final_obs)
        if base is not None and found is not None:
            found = merged(found, moments_of(now))
            known = merged(base, found)
            now, successor = normalised(now, known), normalised(successor, known)
        row = {
            "obs": obs,
            "action": action,
            "reward": by_run(moved.reward),
            "next_obs": successor,
            "terminated": by_run(moved.terminated),
            "done": by_run(moved.ended.done),
        }
        return (running, now, found), (row, moved.ended)

    none = None if base is None else Moments(*(jnp.zeros_like(part) for part in base))
    (running, obs, found), (rows, ended) = jax.lax.scan(one, (running, obs, none), extra)
    rows = rows if uniform else rows | {"noise": extra}
    return running, obs, {name: jnp.moveaxis(column, 0, 1) for name, column in rows.items()}, ended, found


@partial(jax.jit, static_argnums=0, compiler_options=EXACT)
def episodes(made: Worlds, policy: Any, stream: Array, base: Moments | None) -> Ended:
    """The first episode of every world under the means of these policies."""
    runs = len(jax.tree.leaves(policy)[0])
    running, raw = worlds.start(made, stream, jnp.zeros(len(stream), jnp.int32))

    def one(carry: tuple[WorldState, Array, Ended]) -> tuple[WorldState, Array, Ended]:
        running, raw, first = carry
        obs = raw.reshape(runs, -1, raw.shape[-1])
        action = acting(policy, obs if base is None else normalised(obs, base))
        running, moved = worlds.step(made, running, action.reshape(-1, action.shape[-1]))
        kept = jax.tree.map(lambda old, new: jnp.where(first.done, old, new), first, moved.ended)
        return running, moved.obs, kept._replace(done=first.done | moved.ended.done)

    nothing = jax.eval_shape(
        lambda: worlds.step(made, running, jnp.zeros((len(stream), len(made.action_low))))[1].ended
    )
    first = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), nothing)
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2].done), one, (running, raw, first))[2]


@partial(jax.jit, static_argnums=0, compiler_options=EXACT)
def started(made: Worlds, stream: Array, episode: Array) -> tuple[WorldState, Array]:
    return worlds.start(made, stream, episode)


def columns(ended: Ended, rows: Any) -> dict[str, np.ndarray]:
    parts = (ended.returned, ended.length, ended.success_once, ended.success_at_end)
    return {name: np.asarray(part)[rows] for name, part in zip(COLUMNS, parts, strict=True)}


@dataclass
class WorldsSource(SuiteSource):
    """The worlds of a group of runs on the device that learns."""

    running: Any = None  # WorldState, from the first task on
    obs: Any = field(init=False)  # [run, env, obs], normalised if statistics are kept

    def opened(self) -> tuple[DataSpec, int]:
        self.made: dict[tuple[str, int], Worlds] = {}
        made = self.worlds = self._worlds(self.wanted.tasks[0], self.envs)
        low, high = (tuple(np.asarray(bound, np.float32).tolist()) for bound in (made.action_low, made.action_high))
        return DataSpec((made.observation_size,), len(low), low, high), made.horizon

    @property
    def simulators(self) -> dict[str, str]:
        return {"training": self.worlds.simulator, **super().simulators}

    def _worlds(self, task: str, envs: int) -> Worlds:
        """Made once: a program that was compiled for them is found again."""
        if (task, envs) not in self.made:
            self.made[task, envs] = simulators.make(task, envs * self.runs, self.settings.of_suite())
        return self.made[task, envs]

    def enter(self, task: str, keep: Any | None) -> None:
        self.worlds = self._worlds(task, self.envs)
        # The count of episodes goes on, so that no two visits to a task draw the same numbers.
        count = self.runs * self.envs
        episode = np.zeros(count, np.int32) if self.running is None else np.asarray(self.running.episode) + 1
        if keep is not None and not keep.statistics:
            self.statistics = self.no_statistics()
        stream = worlds.streams(self.seeds, RESET, task, self.envs)
        self.running, raw = started(self.worlds, stream, episode)
        self.obs = raw.reshape(self.runs, self.envs, -1)
        if self.statistics is not None:
            self.statistics.update(np.asarray(self.obs))
            self.obs = jnp.asarray(self.statistics.normalise(np.asarray(self.obs)))

    def _base(self) -> Moments | None:
        if self.statistics is None:
            return None
        state = self.statistics.state()
        return Moments(*(np.asarray(state[name], np.float32) for name in ("mean", "var", "count")))

    def collect(self, policy: Any, iteration: int) -> tuple[Data, Outcomes]:
        self.done = iteration
        data, found = self.sample(policy, self.steps, iteration)
        self.online = self.sampled(data["obs"])
        return data, found

    def sample(self, policy: Any, steps: int, iteration: int) -> tuple[dict[str, Array], Outcomes]:
        """`steps` steps of every world; `iteration` counts the run's rollouts, for its random numbers."""
        uniform = isinstance(policy, Explorer) and policy.uniform()
        spread = np.asarray(policy.spread(), np.float32)
        self.running, self.obs, data, ended, found = rollout(
            *(self.worlds, steps, uniform, policy, self.running, self.obs, self._base(), spread, self.seeds),
            np.int32(iteration),
        )
        ended, found = jax.device_get((ended, found))
        if self.statistics is not None and found is not None:
            self.statistics.merge(found.mean.astype(np.float64), found.var.astype(np.float64), steps * self.envs)
        where = np.nonzero(ended.done)
        more = {"diverged": ended.diverged[where]}
        return data, Outcomes(where[1] // self.envs, where[1] % self.envs, columns(ended, where) | more)

    def evaluate(self, policy: Any, task: str) -> Outcomes:
        found = super().evaluate(policy, task)
        if not self.settings.gpu_evaluation:
            return found
        made = self._worlds(task, self.wanted.episodes)
        stream = worlds.streams(self.seeds, RESET_EVALUATION, task, self.wanted.episodes)
        own = columns(jax.device_get(episodes(made, policy, stream, self._base())), slice(None))
        return found._replace(columns={**found.columns, **{f"gpu_{name}": column for name, column in own.items()}})

    def get_state(self) -> dict[str, Any]:
        return {
            "statistics": {} if self.statistics is None else self.statistics.state(),
            "worlds": worlds.captured(self.running),
            "obs": np.asarray(self.obs),
            "online": np.asarray(self.online),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.running = worlds.restored(self.running, state["worlds"])
        self.obs, self.online = jnp.asarray(state["obs"]), state["online"]
        if self.statistics is not None:
            self.statistics = Statistics(**state["statistics"])
