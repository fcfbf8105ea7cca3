"""What the sources of a suite have in common, wherever their simulators live: evaluation by the exact environments in
worker processes, running statistics, and the states on which networks are diagnosed."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from sphere import envs
from sphere.algos.learner import DataSpec
from sphere.algos.source import Outcomes, States, Wanted
from sphere.envs import worker_path
from sphere.envs.collector import Collector
from sphere.envs.frame_log import sampled
from sphere.envs.pool import Pool
from sphere.envs.running_statistics import Statistics, standardised
from sphere.envs.turns import Turns

if TYPE_CHECKING:
    from sphere.envs.environments import Environments


def task_name(task: str) -> str:
    return task.split("/", 1)[1]


@dataclass
class SuiteSource:
    """The data of a group of runs, with what is carried from step to step."""

    settings: "Environments"
    wanted: Wanted
    run_seeds: list[int]
    workers: int | None
    turns: Turns
    heldout: np.ndarray | None = None
    evaluation: Collector | None = None
    """Its environments for evaluation, once they are needed."""
    done: int = 0
    """Its iterations before the present one: the source that is furthest behind goes first."""
    spec: DataSpec = field(init=False)
    horizon: int = field(init=False)
    statistics: Statistics | None = field(init=False)
    online: Any = field(init=False)  # [run, state, ...], of the last rollout

    def __post_init__(self) -> None:
        self.seeds = np.array(self.run_seeds, np.uint32)
        self.runs = len(self.run_seeds)
        self.envs, self.steps = self.wanted.rollout
        self.spec, self.horizon = self.opened()
        self.statistics = self.no_statistics()
        count = min(self.wanted.heldout, self.envs * self.steps)
        kind = np.uint8 if self.spec.frames else np.float32
        self.online = np.zeros((self.runs, count, *self.spec.observation), kind)

    def opened(self) -> tuple[DataSpec, int]:
        """Open its simulators; what they give, and how long an episode is at most."""
        raise NotImplementedError

    @property
    def simulators(self) -> dict[str, str]:
        """What simulates, for the records."""
        exact = hasattr(envs.suite(self.wanted.tasks[0].split("/")[0]), "mujoco_version")
        return {"evaluation": f"mujoco {worker_path.mujoco_version()}, cpu"} if exact else {}

    def make_pool(self, num_envs: int) -> Pool:
        return envs.make(self.wanted.tasks[0], num_envs, self.run_seeds, self.workers, **self.settings.of_suite())

    def no_statistics(self) -> Statistics | None:
        if not self.settings.normalise_observations:
            return None
        return Statistics.fresh(self.runs, self.spec.size("normalise_observations"))

    def sampled(self, obs: Any) -> Any:
        """States of the last rollout, evenly spread, for diagnostics on experience as it is met."""
        if self.spec.frames:
            return sampled(obs, self.online.shape[1])
        flat = obs.reshape(obs.shape[0], -1, obs.shape[-1])
        return flat[:, np.linspace(0, flat.shape[1] - 1, self.online.shape[1]).astype(int)]

    def evaluate(self, policy: Any, task: str) -> Outcomes:
        if self.evaluation is None:
            self.evaluation = Collector(self.make_pool(self.wanted.episodes))
        policy = jax.block_until_ready(policy)
        with self.turns.taken(self.done):
            return self.evaluation.evaluate(policy, task_name(task), self.run_seeds, self.statistics)

    def states(self) -> States | None:
        if self.heldout is None:
            return None
        raw = np.broadcast_to(self.heldout, (self.runs, *self.heldout.shape))
        fixed = raw if self.statistics is None else self.statistics.normalise(raw)
        alike = None if self.statistics is not None or self.spec.frames else standardised(self.heldout)
        return States({"heldout": fixed, "online": self.online}, alike)

    def close(self) -> None:
        if self.evaluation is not None:
            self.evaluation.pool.close()
