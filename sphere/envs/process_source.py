"""Environments in worker processes, as the source of a group's data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from sphere import envs
from sphere.algos.learner import Data, DataSpec
from sphere.algos.source import Outcomes
from sphere.envs.collector import Collector, outcomes, steps_by_learner, uniform_actions, unit_noise
from sphere.envs.frame_log import FrameLog, check_room
from sphere.envs.rollout_driver import RolloutDriver
from sphere.envs.running_statistics import Statistics, seen
from sphere.envs.suite_source import SuiteSource, task_name
from sphere.nets import Explorer


@dataclass
class EnvironmentSource(SuiteSource):
    """The environments of a group of runs in worker processes."""

    obs: np.ndarray = field(init=False)  # [run, env, ...], normalised if statistics are kept

    def opened(self) -> tuple[DataSpec, int]:
        self.pool = self.make_pool(self.envs)
        self.collector = Collector(self.pool)
        box, sizes = self.pool.single_action_space, self.pool.sizes
        bounds = tuple(box.low.tolist()), tuple(box.high.tolist())
        spec = DataSpec(sizes.observation, len(box.low), *bounds, frames=sizes.frames, numbers=sizes.numbers)
        if spec.frames:
            check_room(spec.observation, spec.frames, self.runs, self.wanted.rollout)
        about = getattr(envs.suite(self.wanted.tasks[0].split("/")[0]), "about", None)
        self.about: str = about(self.pool) if about else ""
        return spec, self.pool.horizon

    @property
    def simulators(self) -> dict[str, str]:
        found = super().simulators
        return {"training": found["evaluation"], **found} if found else {}

    def enter(self, task: str, keep: Any | None) -> None:
        if keep is None:
            raw, _ = self.pool.reset()
        else:
            if not keep.statistics:
                self.statistics = self.no_statistics()
            raw, _ = self.pool.switch(task_name(task))
        self._see(raw)

    def _by_run(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(self.runs, self.envs, *rows.shape[1:])

    def _see(self, raw: np.ndarray) -> None:
        """New current observations: they enter the statistics first, as in VecNormalize."""
        obs = self._by_run(raw)
        if self.statistics is not None:
            self.statistics.update(obs)
        self.obs = seen(obs, self.statistics)

    def collect(self, policy: Any, iteration: int) -> tuple[Data, Outcomes]:
        self.done = iteration
        policy = jax.block_until_ready(policy)  # first: no cores are reserved while a network is still being computed
        with self.turns.taken(iteration):
            data, found = self.sample(policy, self.steps, iteration)
        self.online = self.sampled(data["obs"])
        return data, found

    def sample(self, policy: Any, steps: int, iteration: int) -> tuple[dict[str, Any], Outcomes]:
        """`steps` steps of every environment; `iteration` counts the run's rollouts, for its random numbers."""
        uniform = isinstance(policy, Explorer) and policy.uniform()
        noise, drawn = self._noise(policy, steps, iteration, uniform)
        sights = [(self.obs, self.obs)]  # what is seen before each step, and as the successor of the step before

        images = FrameLog(self.obs, self.spec.frames, steps, self.horizon) if self.spec.frames else None

        def after(rows: np.ndarray, raw: np.ndarray, final: np.ndarray) -> None:
            self._see(raw)
            if images is None:
                sights.append((self.obs, seen(self._by_run(final), self.statistics)))
            else:
                cut = self._by_run(rows["truncated"])
                images.add(self.obs, self._by_run(final), cut | self._by_run(rows["terminated"]), cut)

        rollouts = self.collector.follow(policy, self.statistics)
        if uniform and rollouts is not None:
            rollouts.load(
                {"centre": np.zeros(1, np.float32), "half": np.zeros(1, np.float32)}
            )  # the noise is the action
        if rollouts is None:
            log, finished = steps_by_learner(None if uniform else policy, self.pool, noise, lambda: self.obs, after)
        elif self.statistics is None:
            log, finished = rollouts.run(steps, noise)
        else:
            log, finished = rollouts.run(steps, noise, after=partial(self._publish, rollouts, after))
        obs, next_obs = (images.frames, None) if images is not None else self._observations(log, sights)
        action, reward, terminated, truncated = (
            self._over_time(log[name]) for name in ("action", "reward", "terminated", "truncated")
        )
        data = {
            "obs": obs,
            "action": action,
            "reward": reward.astype(np.float32),
            "next_obs": next_obs,
            "terminated": terminated,
            "done": terminated | truncated,
            **drawn,
        }
        return data, outcomes(finished, self.envs)

    def _noise(self, policy: Any, steps: int, iteration: int, uniform: bool) -> tuple[np.ndarray, dict[str, Any]]:
        """What is added to the means, or uniform actions, and what of it a learner may ask for. Drawn for all steps
        at once: what is left for every step is the mean."""
        shape, drawn = (steps, self.envs, self.spec.action), {}
        if uniform:
            noise = uniform_actions(self.seeds, iteration, shape, self.spec)
        else:
            noise = unit_noise(self.seeds, iteration, shape)
            drawn = {"noise": noise}
            noise = noise * policy.spread()[:, None, None]
        return np.moveaxis(noise, 1, 0).reshape(steps, self.pool.num_envs, self.spec.action), drawn

    def _observations(self, log: np.ndarray, sights: list[tuple[np.ndarray, np.ndarray]]) -> tuple[Any, Any]:
        """Before every step and after it, [run, time, env, ...], as networks saw them or as the pool has logged
        them."""
        if len(sights) > 1:
            obs, next_obs = (np.stack(side, axis=1) for side in zip(*sights, strict=True))
            return obs[:, :-1], next_obs[:, 1:]
        next_obs, shown = self._over_time(log["final_obs"]), self._over_time(log["obs"])
        obs = np.concatenate([self.obs[:, None], shown[:, :-1]], axis=1)
        self.obs = shown[:, -1].copy()
        return obs, next_obs

    def _over_time(self, column: np.ndarray) -> np.ndarray:
        """[time, run x env, ...] as [run, time, env, ...], a copy: the next rollout is written over its source."""
        apart = column.reshape(len(column), self.runs, self.envs, *column.shape[2:])
        return np.ascontiguousarray(np.moveaxis(apart, 1, 0))

    def _publish(self, rollouts: RolloutDriver, after: Callable[..., None], rows: np.ndarray) -> None:
        after(rows, rows["obs"], rows["final_obs"])
        if self.statistics is not None:
            rollouts.load({"mean": self.statistics.mean, "var": self.statistics.var})

    def get_state(self) -> dict[str, Any]:
        own = {} if self.spec.frames else {"obs": self.obs}  # images are in the pool's state already
        statistics = {} if self.statistics is None else self.statistics.state()
        return {"statistics": statistics, "pool": self.pool.get_state(), "online": self.online, **own}

    def set_state(self, state: dict[str, Any]) -> None:
        raw = self.pool.set_state(state["pool"])
        self.obs, self.online = self._by_run(raw) if self.spec.frames else state["obs"], state["online"]
        if self.statistics is not None:
            self.statistics = Statistics(**state["statistics"])

    def close(self) -> None:
        self.pool.close()
        super().close()
