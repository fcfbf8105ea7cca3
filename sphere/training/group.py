"""Runs of a fleet that collect, learn and are evaluated together: their source, their state, and its steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sphere.algos import rows
from sphere.algos.learner import Clock, Learner
from sphere.algos.source import Outcomes, Source
from sphere.training.memory import Memory
from sphere.training.network_metrics import measured
from sphere.training.settings import Boundary, FleetConfig, RunSettings


class Order(NamedTuple):
    """One iteration as it is wanted, in the order in which it is done."""

    iteration: int
    task_index: int
    progress: float
    """Of the task, from 0 to 1, when the iteration is done."""
    evaluate: bool = False
    """Evaluate afterwards, with diagnostics."""
    again: tuple[str, ...] = ()
    """Tasks to be evaluated once more."""
    then: str | None = None
    """The task to be entered."""
    capture: bool = False
    """Keep the state as it is in the end, for a checkpoint."""


class EvaluationResult(NamedTuple):
    outcomes: Outcomes
    diagnostics: list[dict[str, float]]


class IterationResult(NamedTuple):
    """What an iteration leaves behind beside a new state."""

    metrics: dict[str, Any]
    outcomes: Outcomes
    evaluated: EvaluationResult | None = None
    again: tuple[Outcomes, ...] = ()
    tree: dict[str, Any] | None = None


class Group:
    """The state of some runs between iterations, and the steps that move it."""

    def __init__(
        self, config: FleetConfig, learner: Learner, runs: Sequence[RunSettings], source: Source, directory: Path
    ):
        self.config, self.learner, self.source = config, learner, source
        self.seeds = np.array([run.seed for run in runs], np.uint32)
        self.numbers = {name: jnp.asarray([run.numbers[name] for run in runs], jnp.float32) for name in runs[0].numbers}
        self.state = self._fresh()
        places = [directory / run.name for run in runs]
        self.memory = Memory(learner, source.spec, places) if learner.memory else None

    def _fresh(self) -> Any:
        return rows.init(self.learner, self.source.spec, self.seeds, self.numbers)

    def enter(self, task: str, keep: Boundary | None) -> None:
        """Begin a task. `keep`: what is kept of the task before; None: there was none."""
        if keep is not None:
            self.state = rows.cross(self.learner, keep, self.state, self._fresh(), self.seeds)
            if self.memory is not None and not keep.replay:
                self.memory.forget()
        self.source.enter(task, keep)

    @property
    def policy(self) -> Any:
        """The networks as they act."""
        return rows.policy(self.learner, self.state)

    def advance(self, order: Order) -> IterationResult:
        """Collect, and begin to learn. Unless more is ordered, a GPU still computes metrics and networks when this
        returns."""
        policy = self.policy
        data, outcomes = self.source.collect(policy, order.iteration)
        data = rows.annotated(self.learner, policy, data)
        if self.memory is not None:
            data = self.memory.extend(data)
        clock = Clock(np.int32(order.iteration), np.float32(order.progress))
        self.state, metrics = rows.update(self.learner, self.state, self.numbers, data, self.seeds, clock)
        report = IterationResult(metrics, outcomes)
        if (order.evaluate or order.again) and not np.all(metrics["finite"]):
            return report  # there is nothing to evaluate, and metrics tell
        if order.evaluate:
            report = report._replace(evaluated=self.evaluate(self.config.tasks[order.task_index]))
        report = report._replace(again=tuple(self.source.evaluate(self.policy, task) for task in order.again))
        if order.then is not None:
            self.enter(order.then, self.config.kept)
        return report._replace(tree=self.tree()) if order.capture else report

    def evaluate(self, task: str) -> EvaluationResult:
        """Evaluation, and diagnostics on the held-out states and on the last iteration's."""
        outcomes, states = self.source.evaluate(self.policy, task), self.source.states()
        if states is None:
            return EvaluationResult(outcomes, [{} for _ in self.seeds])
        return EvaluationResult(outcomes, measured(rows.probes(self.learner, self.state), states, self.source.spec))

    def tree(self) -> dict[str, Any]:
        """All that the future depends on, every array with rows by run or by environment."""
        # copies: the next update writes over what it is given
        own = {} if self.memory is None else {"memory": self.memory.tree()}
        return {"state": jax.tree.map(np.array, self.state), "source": self.source.get_state(), **own}

    def restore(self, tree: dict[str, Any], checksums: Mapping[str, Any]) -> None:
        """`checksums`: by run and file, those of the checkpoint that it comes from."""
        self.source.set_state(tree["source"])
        self.state = jax.tree.map(jnp.asarray, tree["state"])
        if self.memory is not None:
            self.memory.restore(tree["memory"], checksums)

    def close(self) -> None:
        self.source.close()
        if self.memory is not None:
            self.memory.close()
