"""A fleet: all its runs between two iterations, and the steps that move them.

A fleet is one group of runs or, where a GPU learns, several, with a thread and worker processes of its own each: some
collect while another learns. How runs are divided is a property of the source. A group evaluates its runs, takes their
diagnostics, goes into the next task and copies its state for a checkpoint by itself, when it gets there (`Order` says
what an iteration has to do). None waits for the others, but it may be only `AHEAD` iterations before them; to stop, the
others catch up. Groups share nothing, so their numbers are those of smaller fleets, to the bit, and checkpoints do not
know how a fleet was divided.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sphere.algos.learner import Learner
from sphere.algos.rows import program
from sphere.algos.source import Outcomes, Source
from sphere.storage import checkpoint
from sphere.training.group import EvaluationResult, Group, IterationResult, Order
from sphere.training.settings import Boundary, FleetConfig

AHEAD = 8
"""Iterations that a group may have finished before the slowest one. Runs of one task differ by a quarter in what a step
costs, and a group that waits leaves cores idle. But before a fleet can stop, all groups have to catch up."""

KEEP_ALL = Boundary(parameters=True, optimiser=True, learning_rate=True, statistics=True, methods=True, replay=True)


def program_of(config: FleetConfig) -> tuple[Learner, np.ndarray, dict[str, np.ndarray]]:
    """What a fleet's program is made for: the learner without unused methods, seeds, and numbers by run."""
    runs = config.runs
    numbers = {name: np.array([run.numbers[name] for run in runs], np.float32) for name in runs[0].numbers}
    return program(config.learner, numbers), np.array([run.seed for run in runs], np.uint32), numbers


def _joined(trees: list[Any]) -> Any:
    """Trees of several groups as one: rows after rows."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *leaves: (np if isinstance(leaves[0], np.ndarray) else jnp).concatenate(leaves), *trees)


class _SameThread:
    """In place of a thread where there is one group only: the work is done when it is given."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # raised when the result is asked for, after what came before it
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool, cancel_futures: bool = False) -> None:
        pass


def _threads(groups: int) -> list[ThreadPoolExecutor | _SameThread]:
    if groups == 1:
        return [_SameThread()]
    if jax.default_backend() == "cpu":
        # Programs of several threads that wait for parts of themselves can fill XLA's pool, and then none goes on.
        # There would be little to gain: the cores are the device.
        return [ThreadPoolExecutor(1)] * groups
    return [ThreadPoolExecutor(1) for _ in range(groups)]


class Fleet:
    """The state of a fleet between iterations, and the steps that move it.

    Its runs are one group, or several with a thread each. Then some collect or are evaluated while another learns (on a
    CPU they take turns). That changes no run's numbers.
    """

    def __init__(self, config: FleetConfig, directory: Path):
        self.config, self.directory = config, directory
        self.learner, _, _ = program_of(config)
        self.run_seeds = [run.seed for run in config.runs]
        self.groups: list[Group] = []
        self.task_index = self.iteration = self.total_iterations = self.begun = 0
        self.queue: deque[tuple[Order, list[Future]]] = deque()  # iterations that were begun and not asked for yet
        self.threads: list[ThreadPoolExecutor | _SameThread] = []
        sizes = config.source.divide(len(config.runs), config.sharing)
        parts = [config.runs[first:last] for first, last in pairwise([0, *accumulate(sizes)])]
        sources: list[Source] = config.source.open(config.wanted, [[run.seed for run in part] for part in parts])
        try:
            self.threads = _threads(len(parts))
            for part, source in zip(parts, sources, strict=True):
                self.groups.append(Group(config, self.learner, part, source, directory))
        except BaseException:
            for source in sources[len(self.groups) :]:
                source.close()
            self.close()
            raise

    def close(self) -> None:
        for thread in self.threads:  # all are told before any is waited for: none begins another iteration
            thread.shutdown(wait=False, cancel_futures=True)
        for thread in self.threads:
            thread.shutdown(wait=True)
        for group in self.groups:
            group.close()

    @property
    def task(self) -> str:
        return self.config.tasks[self.task_index]

    @property
    def steps(self) -> int:
        """Steps of each run so far."""
        return self.total_iterations * self.config.iteration_steps

    @property
    def finished(self) -> bool:
        return self.total_iterations == self.config.total_iterations

    @property
    def state(self) -> Any:
        """Of all runs."""
        return _joined([group.state for group in self.groups])

    @property
    def policy(self) -> Any:
        """Of all runs, the networks as they act."""
        return _joined([group.policy for group in self.groups])

    def begin_task(self) -> None:
        """The first one; into others each group goes by itself."""
        for group in self.groups:
            group.enter(self.task, None)

    def advance(self, ahead: int = 0) -> tuple[Order, IterationResult]:
        """One iteration of every run, with all that is due after it. `ahead`: groups that are done with it may begin up
        to so many more, which are in `queue` and must be asked for before anything else. With 0, those that no group
        has begun are cancelled."""
        try:
            return self._advance(ahead)
        except jax.errors.JaxRuntimeError as error:
            # seen before EXACT kept products to whole arrays
            if self.learner.deterministic and "cublas" in str(error).lower():
                raise RuntimeError(
                    "this GPU has no kernel by rule for a product of this size; let it choose by timing: "
                    f"--{self.learner.name}.no-deterministic (a resumed run may then differ from an undisturbed one in "
                    f"its last bits), or train several seeds at once. The error was: {error}"
                ) from error
            raise

    def _advance(self, ahead: int) -> tuple[Order, IterationResult]:
        if not self.queue:
            self._begin_iteration()
        order, begun = self.queue.popleft()
        while len(self.queue) < min(ahead, self._lead()):
            self._begin_iteration()
        if not ahead:
            self._cancel_queued()
        reports: list[IterationResult] = [future.result() for future in begun]
        self.iteration += 1
        self.total_iterations += 1
        if order.then is not None:
            self.task_index, self.iteration = self.task_index + 1, 0
        return order, self._merged(reports)

    def _merged(self, reports: list[IterationResult]) -> IterationResult:
        """Of all groups."""
        sizes = [len(group.seeds) for group in self.groups]
        metrics, outcomes, evaluated, again, trees = zip(*reports, strict=True)
        return IterationResult(
            _joined(jax.device_get(list(metrics))),
            Outcomes.joined(outcomes, sizes),
            None
            if None in evaluated
            else EvaluationResult(
                Outcomes.joined([one.outcomes for one in evaluated], sizes),
                [values for one in evaluated for values in one.diagnostics],
            ),
            tuple(Outcomes.joined(found, sizes) for found in zip(*again, strict=False)),
            None if None in trees else _joined(list(trees)),
        )

    def _lead(self) -> int:
        if len(self.groups) == 1:
            return 0  # there is no other group to wait for; reports would only come later
        return AHEAD if len(set(map(id, self.threads))) > 1 else 1

    def _begin_iteration(self) -> None:
        number = self.begun = max(self.begun, self.total_iterations) + 1
        order = self._order(number)
        self.queue.append((order, self._submit(Group.advance, order)))

    def _order(self, number: int) -> Order:
        """What the fleet's iteration of that number (from 1) is to do."""
        config = self.config
        index, within = divmod(number - 1, config.iterations_per_task)
        within, following = within + 1, config.tasks[index + 1 : index + 2]
        last = within == config.iterations_per_task
        return Order(
            number - 1,
            index,
            within / config.iterations_per_task,
            evaluate=config.evaluated_at(within),
            again=config.evaluated_again(index) if last else (),
            then=following[0] if last and following else None,
            capture=self._saved(number, within, last),
        )

    def _saved(self, number: int, within: int, last: bool) -> bool:
        """Whether there is a checkpoint after an iteration. Tasks shorter than `checkpoint_every` are not saved one by
        one: a stream may have hundreds."""
        every = self.config.checkpoint_every
        if self.config.iterations_per_task < every:
            return number % every == 0 or number == self.config.total_iterations
        return last or within % every == 0

    def _cancel_queued(self) -> None:
        while self.queue:
            order, futures = self.queue[-1]
            taken = [future.cancel() for future in futures]
            if not all(taken):  # a group has begun it, so the others have to follow
                for i in np.flatnonzero(taken):
                    futures[i] = self.threads[i].submit(Group.advance, self.groups[i], order)
                return
            self.queue.pop()
            self.begun -= 1

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> list[Future]:
        return [thread.submit(work, group, *arguments) for group, thread in zip(self.groups, self.threads, strict=True)]

    def each(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """A function of a group, in all groups at the same time; the fleet must be at rest."""
        return [future.result() for future in self._submit(work, *arguments)]

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def tree(self) -> dict[str, Any]:
        return _joined([group.tree() for group in self.groups])

    def checksums(self, tree: dict[str, Any]) -> dict[str, Any]:
        """By run and file, of what a tree leaves on disk: the rows that learners remember."""
        memories = [group.memory for group in self.groups if group.memory is not None]
        return {name: sums for memory in memories for name, sums in memory.checksums(tree["memory"]).items()}

    def counters(self) -> dict[str, int]:
        return {
            "task_index": self.task_index,
            "iteration": self.iteration,
            "total_iterations": self.total_iterations,
        }

    def resume(self) -> checkpoint.Checkpoint:
        """Continue from the newest good checkpoint of the directory."""
        saved = checkpoint.load_latest(self.directory, like_for=self._tree_at)
        first, runs = 0, len(self.run_seeds)
        for group in self.groups:
            last = first + len(group.seeds)

            def mine(leaf: np.ndarray, first: int = first, last: int = last) -> np.ndarray:
                rows = len(leaf) // runs  # one for each run, or one for each of its environments
                return leaf[first * rows : last * rows]

            group.restore(jax.tree.map(mine, saved.tree), saved.meta.get("checksums") or {})
            first = last
        return saved

    def _tree_at(self, meta: dict[str, Any]) -> dict[str, Any]:
        """A tree of the sizes of that moment: simulators of different tasks have states of different sizes."""
        for name, value in meta["counters"].items():
            setattr(self, name, value)
        for group in self.groups:
            group.enter(self.task, KEEP_ALL if self.task_index else None)
        return self.tree()
