"""Environments as the source of a learner's data: settings that open simulators in worker processes or on a GPU."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from sphere import envs
from sphere.algos.source import Outcomes, Source, Wanted
from sphere.envs import heldout, simulators, worker_path
from sphere.envs.collector import COLUMNS, Collector
from sphere.envs.handles import cores
from sphere.envs.pool import MANY
from sphere.envs.process_source import EnvironmentSource
from sphere.envs.running_statistics import Statistics, seen
from sphere.envs.simulators import Simulator
from sphere.envs.suite_source import task_name
from sphere.envs.turns import Turns
from sphere.envs.worlds_source import GPU_COLUMNS, WorldsSource
from sphere.errors import UserError, in_range, unknown

TOGETHER = 2
"""Runs of a group where groups overlap. The fewer, the shorter their cores are idle while they learn; but an update of
five runs takes only half as long again as that of one, so the GPU wants more than one."""


OF_SUITES = ("goals", "horizon", "one_hot", "camera", "image_size", "frame_stack", "renderer", "proprioception")
"""Settings that are a suite's."""


@dataclass(frozen=True)
class Environments:
    """Environments in worker processes or on a GPU. Settings of a suite: None is its default; one that it lacks is
    refused."""

    kind: ClassVar[str] = "environments"

    goals: Literal["random", "frozen"] | None = None
    """MetaWorld: a new seeded goal every episode, or always the same one."""
    horizon: int | None = None
    """Steps of an episode: MetaWorld 500 unless said otherwise (200 in Continual World), HumanoidBench 1000."""
    one_hot: bool | None = None
    """MetaWorld: append the task's number as ten entries to the observation."""
    camera: str | None = None
    """MetaWorld from pixels: corner4 unless said otherwise, corner, corner2, corner3, topview, ..."""
    image_size: int | None = None
    """MetaWorld from pixels: pixels of a side, 84 unless said otherwise."""
    frame_stack: int | None = None
    """MetaWorld from pixels: pictures of an observation, 3 unless said otherwise."""
    renderer: Literal["mujoco", "warp"] | None = None
    """MetaWorld from pixels: MuJoCo's own in every worker, unless said otherwise; or MuJoCo Warp for all environments
    at once, on a GPU where there is one (docs/pixels.md)."""
    proprioception: bool | None = None
    """MetaWorld from pixels: see the hand's position and the gripper's opening too."""
    normalise_observations: bool = False
    """Running mean and variance of the observations, clipped at 10 (VecNormalize); rewards are never normalised."""
    simulator: Simulator = "cpu"
    """Where training is simulated: cpu, in worker processes, exact; gpu, on the GPU that learns (HumanoidBench, with
    sphere-rl[warp]). On the command line the default is gpu where all that it needs is there. Evaluation is always by
    the exact environments."""
    gpu_evaluation: bool = False
    """With GPU simulators, evaluate under their physics too, beside the exact environments: columns gpu_return, ..."""
    workers: int | None = None
    """Simulator processes of a group of runs; default: all cores, divided among groups that overlap; below eight cores
    the learner is one of them. Results do not depend on it."""
    overlap: bool | None = None
    """Let some runs collect while others learn; default: where a GPU learns and there are eight cores or more. Results
    do not depend on it but for rounding."""

    unimportant: ClassVar[tuple[str, ...]] = ("workers", "overlap")
    """Settings on which results do not depend."""

    def __post_init__(self) -> None:
        in_range(self, {"workers": (0, None), "horizon": (1, None)})
        if self.gpu_evaluation and self.simulator != "gpu":
            raise UserError("gpu_evaluation goes with simulators on a GPU; add --simulator gpu, or leave it out")

    def of_suite(self) -> dict[str, Any]:
        """What is given of a suite's own settings."""
        given = {name: getattr(self, name) for name in OF_SUITES}
        return {name: value for name, value in given.items() if value is not None}

    def check(self, task: str) -> None:
        suite = task.split("/")[0]
        known = [f"{suite}/{one}" for one in envs.tasks(suite)]
        if task not in known:
            raise unknown("task", task, known)

    def check_machine(self, suite: str) -> None:
        """Refuse to train where what simulates or evaluates is missing. A trained policy is evaluated anywhere."""
        if self.simulator == "gpu":
            simulators.check(suite)
            worker_path.check_suite(envs.suite(suite))

    def on_this_machine(self, suite: str) -> "Environments":
        """The same with the suite's best simulator here."""
        return dataclasses.replace(self, simulator=simulators.best(suite))

    def columns(self, suite: str) -> tuple[str, ...]:
        return COLUMNS + GPU_COLUMNS * self.gpu_evaluation

    def score(self, suite: str) -> str:
        return getattr(envs.suite(suite), "score", "success_at_end")

    def seen(self, saved: dict[str, Any], obs: np.ndarray) -> np.ndarray:
        """Observations [run, n, obs] as networks read them, by what a source had saved."""
        return seen(obs, Statistics(**saved["statistics"]) if saved.get("statistics") else None)

    def evaluate(self, policy: Any, task: str, seeds: list[int], episodes: int, saved: dict[str, Any]) -> Outcomes:
        """Deterministic episodes of saved policies (with a run axis), the same as in training."""
        statistics = Statistics(**saved["statistics"]) if saved.get("statistics") else None
        with envs.make(task, episodes, seeds, self.workers, **self.of_suite()) as pool:
            return Collector(pool).evaluate(policy, task_name(task), seeds, statistics)

    def divide(self, runs: int, sharing: int) -> list[int]:
        wanted = self.overlap
        if wanted is None and self.simulator == "gpu":
            wanted = False  # one program for all worlds: a step takes about as long for many as for few
        if wanted is None:
            wanted = jax.default_backend() != "cpu" and cores() >= MANY
        if not wanted or runs == 1:
            return [runs]
        half = (runs + 1) // 2
        # Where all environments meet after every step, more processes than cores make them wait for each other.
        size = half if self.normalise_observations or self.simulator == "gpu" else min(TOGETHER, half)
        return [min(size, runs - first) for first in range(0, runs, size)]

    def workers_of_a_group(self, groups: int, sharing: int) -> int | None:
        if self.workers is not None or (groups == 1 and sharing == 1):
            return self.workers
        mine = max(1, cores() // sharing)
        if groups == 1:
            return mine if mine > 1 else 0  # on a single core a process beside the learner gains nothing
        if groups == 2:
            return max(1, mine // 2)
        # Some group is always learning, so a quarter more than there are cores; none, if possible, with environments of
        # two runs: two policies take half as long again as one.
        share = -(-5 * mine // (4 * groups))
        return max(1, share - share % TOGETHER)

    def open(self, wanted: Wanted, seeds: Sequence[Sequence[int]]) -> list[Source]:
        self.check_machine(wanted.tasks[0].split("/")[0])
        envs.check_sizes(wanted.tasks, self.of_suite())
        workers = self.workers_of_a_group(len(seeds), wanted.sharing)
        turns = Turns(places(workers))
        kind = WorldsSource if self.simulator == "gpu" else EnvironmentSource
        opened: list[EnvironmentSource | WorldsSource] = []
        try:
            for mine in seeds:
                opened.append(kind(self, wanted, list(mine), workers, turns))
            states = heldout.fixed_states(wanted.tasks[0], wanted.heldout, opened[0].spec.observation, self.of_suite())
            for source in opened:
                source.heldout = states
        except BaseException:
            for source in opened:
                source.close()
            raise
        return list(opened)


def places(workers: int | None) -> int:
    """Groups that fill the cores."""
    return -(-cores() // workers) if workers else 1
