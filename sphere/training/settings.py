"""The settings of a fleet: what is trained, on which tasks, how it is evaluated, and what a task switch keeps."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from tyro.conf import Suppress, arg

from sphere import registry
from sphere.algos.learner import Learner
from sphere.algos.source import Wanted
from sphere.errors import in_range, unknown
from sphere.storage.files import plain

LISTED = 10
"""Tasks that are named one by one."""


def listed(tasks: Sequence[str], between: str = ", ") -> str:
    """Tasks as people read them: of many, the first and the last."""
    return between.join(tasks) if len(tasks) <= LISTED else f"{tasks[0]} ... {tasks[-1]}"


@dataclass(frozen=True)
class Boundary:
    """What a run keeps when its task changes under the continual protocol; the rest starts fresh."""

    parameters: bool = True
    optimiser: bool = True
    """Adam's moments."""
    learning_rate: bool = False
    """The KL-adaptive rate; the linear schedule always restarts with a task."""
    statistics: bool = True
    """Running mean and variance of the observations."""
    methods: bool = True
    """What methods know (ages and utilities of units, ...), unless parameters start fresh; C-CHAIN forgets the task
    before in any case."""
    replay: bool = False
    """The transitions that an off-policy learner remembers. Without them it begins with uniform actions again, as a
    reload in the released code would have it."""


NOTHING = Boundary(parameters=False, optimiser=False, learning_rate=False, statistics=False, methods=False)


@dataclass(frozen=True)
class Evaluation:
    every: int = 100_000
    """Steps between evaluations; there is always one at the end of a task."""
    episodes: int = 10
    """Deterministic episodes per evaluation, on environments of their own."""
    retention: bool = False
    """Evaluate all tasks at every task boundary, not only at the end of the sequence."""
    heldout: int = 256
    """States of the fixed batch on which r_e(K) and the diagnostics are computed; 0: none."""

    def __post_init__(self) -> None:
        in_range(self, {"every": (1, None), "episodes": (1, None), "heldout": (0, None)}, "evaluation.")


class RunSettings(NamedTuple):
    """One run of a fleet."""

    seed: int
    numbers: dict[str, float]
    """All numbers that a sweep may vary, rho first."""
    varied: tuple[str, ...]
    """Those that name the run."""

    @property
    def name(self) -> str:
        return "-".join([*(f"{name}{self.numbers[name]:g}" for name in self.varied), f"seed{self.seed}"])


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """Runs that share one program: they differ in seed, rho and other numbers of a run."""

    tasks: Annotated[tuple[str, ...], arg(help_behavior_hint=lambda tasks: f"(default: {listed(tasks.split(), ' ')})")]
    """Tasks in their order, as suite/task; all of one suite. A task may come more than once."""
    protocol: Literal["crl", "rl"] = "crl"
    """crl: one agent through the list; rl: every task from scratch."""
    steps_per_task: int = 1_000_000
    """Steps, rounded up to whole iterations."""
    seeds: tuple[int, ...] = (0,)
    rho: tuple[float, ...] = (0.1,)
    """Strength of SPHERE's penalty; every rho is trained with every seed. 0: no penalty."""
    vary: Suppress[dict[str, tuple[float, ...]]] = field(default_factory=dict)
    """Other numbers of a run by name, each with the values it takes."""
    learner: Suppress[Any]
    """A `sphere.algos.learner.Learner`: what learns."""
    source: Suppress[Any]
    """A `sphere.algos.source.SourceSettings`: where data come from."""
    boundary: Boundary = Boundary()
    evaluation: Evaluation = Evaluation()
    checkpoint_every: int = 10
    """Iterations between checkpoints; there is always one at the end of a task, unless tasks are shorter than that."""
    wandb: str | None = None
    """Also send the metrics to this project of Weights & Biases; the package must be installed."""
    sharing: int = 1
    """Fleets trained on this machine at once; each takes its share of the cores. Results do not depend on it."""
    plugins: Suppress[tuple[str, ...]] = ()
    """Modules from outside the package that it needs."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks is empty; name at least one, as suite/task")
        if len({task.split("/")[0] for task in self.tasks}) != 1:
            raise ValueError(f"tasks of several suites cannot follow one another: {listed(self.tasks)}")
        whole = isinstance(self.seeds, tuple | list) and all(isinstance(seed, Integral) for seed in self.seeds)
        if not whole or not self.seeds or not all(0 <= seed < 2**32 for seed in self.seeds):
            raise ValueError(
                f"seeds are {self.seeds!r:.80}; want at least one, each a whole number from 0 to below 2**32"
            )
        self._check_numbers()
        if len({run.name for run in self.runs}) != len(self.runs):
            raise ValueError(
                f"a seed or a number is given twice (six digits count): seeds {self.seeds}, rho {self.rho}"
                + "".join(f", {name} {values}" for name, values in self.vary.items())
            )
        in_range(self, {"steps_per_task": (1, None), "checkpoint_every": (1, None), "sharing": (1, None)})
        strengths = {method.strength for method in self.learner.methods}
        if any(self.rho) and "rho" not in strengths:
            raise ValueError(f"rho {self.rho} has no effect without SPHERE; use rho 0, or choose the method sphere")

    def _check_numbers(self) -> None:
        for name, values in self.varying.items():
            if not isinstance(values, tuple | list) or not all(isinstance(value, Real) for value in values):
                raise ValueError(f"{name} is {values!r}, wanted numbers in a tuple, as (0.0, 0.1)")
            if not values or not all(math.isfinite(value) for value in values):
                raise ValueError(f"{name} is {values}; want at least one value, each a finite number")
            if name != "rho" and name not in self.learner.numbers:
                raise unknown("number of a run to vary", name, self.learner.numbers)

    @property
    def suite(self) -> str:
        return self.tasks[0].split("/")[0]

    def full_name(self, task: str) -> str:
        """A task of the suite as suite/task, whether it was named with its suite or without."""
        return task if "/" in task else f"{self.suite}/{task}"

    @property
    def varying(self) -> dict[str, tuple[float, ...]]:
        """What runs differ in beside their seeds, rho first."""
        return {"rho": self.rho, **self.vary}

    @property
    def runs(self) -> list[RunSettings]:
        """In fleet order: seeds vary fastest."""
        names = tuple(self.varying)
        return [
            RunSettings(seed, {"rho": 0.0} | self.learner.numbers | dict(zip(names, values, strict=True)), names)
            for seed, values in ((int(last), rest) for *rest, last in product(*self.varying.values(), self.seeds))
        ]

    def of_run(self, run: RunSettings) -> "FleetConfig":
        """The settings of one run of the fleet: what its config.json holds."""
        vary: dict[str, tuple[float, ...]] = {name: (run.numbers[name],) for name in self.vary}
        return dataclasses.replace(self, seeds=(run.seed,), rho=(run.numbers["rho"],), vary=vary)

    @property
    def iteration_steps(self) -> int:
        """Steps of one run per iteration."""
        return self.learner.iteration_steps

    @property
    def iterations_per_task(self) -> int:
        return -(-self.steps_per_task // self.iteration_steps)

    @property
    def total_iterations(self) -> int:
        return self.iterations_per_task * len(self.tasks)

    @property
    def task_steps(self) -> int:
        """Steps of one task, in whole iterations."""
        return self.iterations_per_task * self.iteration_steps

    @property
    def kept(self) -> Boundary:
        """What a run takes along into its next task: under RL nothing."""
        return self.boundary if self.protocol == "crl" else NOTHING

    @property
    def wanted(self) -> Wanted:
        """What the source has to give."""
        evaluation = self.evaluation
        return Wanted(self.tasks, self.learner.rollout, evaluation.episodes, evaluation.heldout, self.sharing)

    def evaluated_again(self, task_index: int) -> tuple[str, ...]:
        """Tasks that are evaluated once more when that one ends: all at the very end, with `retention` always."""
        due = task_index == len(self.tasks) - 1 or self.evaluation.retention
        return tuple(dict.fromkeys(self.tasks)) if due and self.protocol == "crl" else ()

    def evaluations(self) -> set[int]:
        """Iterations of a task (counted from 1) after which there is an evaluation."""
        return {i for i in range(1, self.iterations_per_task + 1) if self.evaluated_at(i)}

    def evaluated_at(self, iteration: int) -> bool:
        """Whether a multiple of `evaluation.every` was passed in it, or it is the task's last."""
        every, steps = self.evaluation.every, self.iteration_steps
        passed = iteration * steps // every > (iteration - 1) * steps // every
        return passed or iteration == self.iterations_per_task

    @property
    def evaluation_count(self) -> int:
        """Evaluations of a task."""
        every, last = self.evaluation.every, self.iterations_per_task
        if every < self.iteration_steps:
            return last
        before = (last - 1) * self.iteration_steps // every
        return before + 1


def to_json(config: FleetConfig) -> dict[str, Any]:
    """The settings as records and fleet.json hold them."""
    found = {one.name: plain(getattr(config, one.name)) for one in dataclasses.fields(config)}
    methods = {method.name: plain(method) for method in config.learner.methods}
    found["learner"] = {"kind": config.learner.name} | found["learner"] | {"methods": methods}
    found["source"] = {"kind": config.source.kind} | found["source"]
    return found


def from_json(data: Mapping[str, Any]) -> FleetConfig:
    """Settings from their JSON form; modules from outside that they need are imported. A name that is not known is
    refused: it was written by another version."""
    registry.load_plugins(data.get("plugins", ()))
    learner, source = dict(data["learner"]), dict(data["source"])
    methods = tuple(_rebuild(registry.method(name), own) for name, own in learner.pop("methods", {}).items())
    kind: type[Learner] = registry.learner(learner.pop("kind"))
    made = _rebuild(kind, learner | {"methods": methods})
    opened = _rebuild(registry.source(source.pop("kind")), source)
    return _rebuild(FleetConfig, {**data, "learner": made, "source": opened})


def _rebuild(kind: Any, data: Any) -> Any:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(data, Mapping):
        hints = get_type_hints(kind)
        known = {one.name for one in dataclasses.fields(kind)}
        if strange := sorted(set(data) - known):
            raise ValueError(f"{kind.__name__} has no setting {', '.join(strange)}; was it saved by another version?")
        return kind(**{name: _rebuild(hints[name], value) for name, value in data.items()})
    options = [option for option in get_args(kind) if option is not type(None)]
    if data is not None and get_origin(kind) in (Union, UnionType) and len(options) == 1:
        return _rebuild(options[0], data)
    if get_origin(kind) is tuple and isinstance(data, list):
        return tuple(_rebuild(get_args(kind)[0], value) for value in data)
    if get_origin(kind) is dict and isinstance(data, Mapping):
        return {name: _rebuild(get_args(kind)[1], value) for name, value in data.items()}
    return float(data) if kind is float and data is not None else data
