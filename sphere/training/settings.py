"""The settings of a fleet of runs: what is trained, on which tasks, how it is evaluated, and what a task switch keeps."""

import dataclasses
import math
from dataclasses import dataclass
from numbers import Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sphere.algos.ppo import PPOConfig
from sphere.errors import in_range


@dataclass(frozen=True)
class Boundary:
    """What a run keeps when its task changes under the continual protocol; what it does not keep starts anew."""

    parameters: bool = True
    optimiser: bool = True
    """Adam's moments."""
    learning_rate: bool = False
    """The KL-adaptive rate; the linear schedule always restarts with a task."""
    statistics: bool = True
    """Running mean and variance of the observations."""
    mitigation: bool = True
    """What methods know (ages and utilities of units, ...), unless parameters start anew; C-CHAIN forgets the task before in
    any case."""


@dataclass(frozen=True)
class Evaluation:
    every: int = 100_000
    """Environment steps between evaluations; there is always one at the end of a task."""
    episodes: int = 10
    """Deterministic episodes per evaluation, on environments of their own."""
    retention: bool = False
    """Evaluate all tasks at every task boundary, not only at the end of the sequence."""
    heldout: int = 256
    """States of the fixed batch on which r_e(K) and the diagnostics are computed; 0: none."""

    def __post_init__(self) -> None:
        in_range(self, {"every": (1, None), "episodes": (1, None), "heldout": (0, None)}, "evaluation.")


@dataclass(frozen=True)
class Simulator:
    """Settings of a suite; None: the suite's own default. A suite that does not have one refuses it."""

    goals: Literal["random", "frozen"] | None = None
    """MetaWorld: a new seeded goal every episode, or one for ever."""
    horizon: int | None = None
    """Steps of an episode: MetaWorld 500 unless said otherwise (200 in Continual World), HumanoidBench 1000."""
    one_hot: bool | None = None
    """MetaWorld: append the task's number as ten entries to the observation."""

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class FleetConfig:
    """Runs that share one program: they differ in seed and rho."""

    tasks: tuple[str, ...] = ("probe/reach-north", "probe/reach-east", "probe/reach-south")
    """Tasks in their order, as suite/task; all of one suite."""
    protocol: Literal["crl", "rl"] = "crl"
    """crl: one agent through the list; rl: every task from scratch."""
    steps_per_task: int = 1_000_000
    """Environment steps, rounded up to whole rollouts."""
    seeds: tuple[int, ...] = (0,)
    rho: tuple[float, ...] = (0.1,)
    """SPHERE's ratio; every rho is trained with every seed."""
    ppo: PPOConfig = PPOConfig()
    simulator: Simulator = Simulator()
    normalise_observations: bool = False
    """Running mean and variance of the observations, clipped at 10 (VecNormalize); rewards are never normalised."""
    boundary: Boundary = Boundary()
    evaluation: Evaluation = Evaluation()
    checkpoint_every: int = 10
    """Iterations between checkpoints; there is always one at the end of a task."""
    wandb: str | None = None
    """Also send the metrics to this project of Weights & Biases; the package must be installed."""
    overlap: bool | None = None
    """Let some runs collect while others learn; default: where a GPU learns and there are eight cores or more. Results do not
    depend on it but for rounding."""
    workers: int | None = None
    """Simulator processes of a group of runs; default: all cores, divided among groups that overlap; below eight cores the
    learner is one of them. Results do not depend on it."""
    sharing: int = 1
    """Fleets that are trained on this machine at the same time: each takes its part of the cores. Results do not depend on
    it."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks is empty; name at least one, as suite/task")
        if len({task.split("/")[0] for task in self.tasks}) != 1:
            raise ValueError(f"tasks of several suites cannot follow one another: {', '.join(self.tasks)}")
        if not isinstance(self.rho, tuple | list) or not all(isinstance(rho, Real) for rho in self.rho):
            raise ValueError(f"rho is {self.rho!r}, wanted numbers in a tuple, as (0.0, 0.1)")
        if not self.seeds or not self.rho:
            raise ValueError(f"at least one seed and one rho, please: seeds {self.seeds}, rho {self.rho}")
        if not all(math.isfinite(rho) for rho in self.rho) or not all(0 <= seed < 2**32 for seed in self.seeds):
            raise ValueError(
                f"seeds are 0 or more, below 2**32, and rho is a finite number: seeds {self.seeds}, rho {self.rho}"
            )
        if len({run_name(*run) for run in self.runs}) != len(self.runs):
            raise ValueError(
                f"each seed and each rho once, please (of rho six digits count): seeds {self.seeds}, rho {self.rho}"
            )
        counts = {
            "steps_per_task": (1, None),
            "checkpoint_every": (1, None),
            "workers": (0, None),
            "sharing": (1, None),
        }
        in_range(self, counts)
        if self.ppo.penalty is None and any(self.rho):
            raise ValueError(f"rho {self.rho} has no effect without a penalty; use rho 0 or choose a penalty")

    @property
    def runs(self) -> list[tuple[int, float]]:
        """(seed, rho) of each run, in fleet order."""
        return [(seed, rho) for rho in self.rho for seed in self.seeds]

    @property
    def iteration_steps(self) -> int:
        """Environment steps of one run per iteration."""
        return self.ppo.num_envs * self.ppo.rollout_steps

    @property
    def iterations_per_task(self) -> int:
        return -(-self.steps_per_task // self.iteration_steps)

    @property
    def kept(self) -> Boundary:
        """What a run takes along into its next task: under RL nothing."""
        nothing = Boundary(**{field.name: False for field in dataclasses.fields(Boundary)})
        return self.boundary if self.protocol == "crl" else nothing

    def reviewed(self, task_index: int) -> tuple[str, ...]:
        """Tasks that are evaluated once more when that one ends: all at the very end, with `retention` always."""
        due = task_index == len(self.tasks) - 1 or self.evaluation.retention
        return self.tasks if due and self.protocol == "crl" else ()

    def evaluations(self) -> set[int]:
        """Iterations of a task (counted from 1) after which there is an evaluation."""
        last = self.iterations_per_task
        due = {
            -(-step // self.iteration_steps)
            for step in range(self.evaluation.every, last * self.iteration_steps, self.evaluation.every)
        }
        return {i for i in due if i <= last} | {last}


HOW = ("workers", "overlap", "sharing", "wandb", "checkpoint_every")
"""Settings of how a fleet is trained and watched, not of what comes out."""


def run_name(seed: int, rho: float) -> str:
    return f"rho{rho:g}-seed{seed}"


def with_run(config: FleetConfig, seed: int, rho: float) -> FleetConfig:
    """The settings of one run of the fleet: what its config.json holds."""
    return dataclasses.replace(config, seeds=(seed,), rho=(rho,))


def rebuild(kind: Any, data: Any) -> Any:
    """Settings from their JSON form. What is not known is refused by name: it was written by another version."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(data, dict):
        hints = get_type_hints(kind)
        strange = sorted(set(data) - set(hints))
        if strange:
            raise ValueError(f"{kind.__name__} has no setting {', '.join(strange)}; was it saved by another version?")
        return kind(**{name: rebuild(hints[name], value) for name, value in data.items()})
    options = [option for option in get_args(kind) if option is not type(None)]
    if data is not None and get_origin(kind) in (Union, UnionType) and len(options) == 1:
        return rebuild(options[0], data)
    if get_origin(kind) is tuple and isinstance(data, list):
        return tuple(rebuild(get_args(kind)[0], value) for value in data)
    return float(data) if kind is float and data is not None else data
