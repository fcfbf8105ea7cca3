"""What a suite writes (`Batch`), and what is done around it for all suites alike (`Share`).

This runs inside the worker processes: no jax, no gymnasium.
"""

import mmap
import operator
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Num, UInt64

from sphere.envs.policy import FleetPolicy
from sphere.envs.policy import Spec as PolicySpec
from sphere.envs.sizes import Sizes, sizes_of

Region = tuple[int, int]  # offset and size in the memory that learner and workers share
Layout = list[tuple[str, tuple[int, ...], str, int]]  # name, shape, type and offset of each array in a region
State = dict[str, np.ndarray]
Stepped = tuple[
    Num[np.ndarray, "env *obs"], Float[np.ndarray, " env"], Bool[np.ndarray, " env"], Bool[np.ndarray, " env"]
]
"""Observation, reward, terminated and success of all environments after a step."""


@runtime_checkable
class Batch(Protocol):
    """`num_envs` environments that step together: all that a suite has to write, in batched numpy.

    Episode counts, time limits, seeds, autoreset, statistics and processes are not its business. `reset` is
    the only place that draws, from the generators it is handed; noise during an episode is drawn there in
    advance. A row's numbers must not depend on the other rows, nor on how many there are: no BLAS products
    over the batch, they round by its size. `render(index) -> frame` is optional.

    Images: a batch whose observations are bytes says their `image_shape` (height, width, channel), of how many frames
    they are a stack (`frame_stack`, else 1), and as `shown` the name of that entry of its state which is its last
    observation: a checkpoint holds that once.
    """

    observation_size: int
    action_low: np.ndarray  # [act]
    action_high: np.ndarray  # [act]
    horizon: int  # steps after which an episode is truncated, if it has not terminated

    def reset(self, where: Int[np.ndarray, " k"], rngs: Sequence[np.random.Generator]) -> Float[np.ndarray, "k obs"]:
        """Start a new episode in the environments `where`, drawing only from each one's own generator."""

    def step(self, action: Float[np.ndarray, "env act"]) -> Stepped:
        """One step of all, without autoreset.

        `action` lies in its box and is read-only; it changes with the next step, so it is not to be kept.
        """

    def get_state(self) -> State:
        """All in-episode state, at any time: arrays of fixed shape and dtype, a row per environment."""

    def set_state(self, state: State) -> None:
        """Continue exactly from a captured state."""

    def close(self) -> None: ...


@runtime_checkable
class Suite(Protocol):
    """What makes a batch of a task: in the ordinary case, the class of the batch.

    A suite may refuse settings before a worker is started (`check`), and name the kind of pool that its batches need
    (`pool`, a subclass of `Pool`). Both are static functions of the suite's settings.
    """

    tasks: tuple[str, ...]
    __module__: str
    __qualname__: str

    def __call__(self, task: str, num_envs: int, **settings: Any) -> Batch: ...


def shown(batch: Batch) -> str | None:
    """The entry of its state that is its last observation, which a pool has already."""
    return getattr(batch, "shown", None)


def streams_of(seeds: Sequence[int], num_runs: int, num_envs: int) -> UInt64[np.ndarray, "env 2"]:
    """Run seed and index in the run of every environment, run-major."""
    words = [operator.index(seed) for seed in seeds]
    if len(words) != num_runs or not all(0 <= word < 2**64 for word in words):
        raise ValueError(f"run seeds are {words}; want {num_runs} whole numbers from 0 to 2**64 - 1")
    run, index = divmod(np.arange(num_envs), num_envs // num_runs)
    return np.stack([np.array(words, np.uint64)[run], index.astype(np.uint64)], axis=1)


def check_state(state: Mapping[str, np.ndarray], want: State) -> None:
    """Refuse a state whose arrays have other names, shapes or types than those of `want`."""
    if state.keys() != want.keys():
        raise ValueError(f"the state holds {sorted(state)}, want {sorted(want)}: is it of this suite and version?")
    for name, array in want.items():
        came = state[name]
        if (came.shape, came.dtype) != (array.shape, array.dtype):
            raise ValueError(
                f"state[{name!r}] is {came.dtype}{came.shape}, want {array.dtype}{array.shape}: "
                "is it of this suite and this number of environments?"
            )


class Share:
    """The environments that one worker owns. Its methods are the commands that a `Pool` gives.

    `streams` has a row (run seed, index in the run) per environment: with the task and the number of the
    episode, that is all its draws depend on.
    """

    batch: Batch
    policy: Callable[[np.ndarray], np.ndarray] | None = None
    time: int | None = None
    """Steps since the share began to follow its policy; None: it takes the learner's actions."""

    def begin(
        self, suite: Suite, settings: Mapping[str, Any], streams: UInt64[np.ndarray, "env 2"], task: str
    ) -> Sizes:
        """Take charge of these environments."""
        self.suite, self.settings, self.streams = suite, settings, streams
        self.episode = np.full(len(streams), -1, np.int64)
        self.elapsed = np.zeros(len(streams), np.int64)
        return self.switch(task)

    def switch(self, task: str) -> Sizes:
        """Another task from here on. Its name seeds, and the episode count goes on: no draw ever repeats."""
        self.close()
        self.batch = batch = self.suite(task, len(self.streams), **self.settings)
        self.task_word = zlib.crc32(task.encode())
        self.low, self.high = (np.asarray(bound, np.float32) for bound in (batch.action_low, batch.action_high))
        return sizes_of(batch)

    def attach(self, memory: int, total: int, part: slice) -> None:
        """Read actions from and write results to these of the `total` rows at the beginning of an open file."""
        self.memory, self.total, self.part = memory, total, part
        dtype = sizes_of(self.batch).record
        self.row = np.frombuffer(self._map((0, total * dtype.itemsize)), dtype)[part]
        self.rows = {name: self.row[name] for name in dtype.names or ()}
        self.action = self.rows["action"].view()
        self.action.flags.writeable = False

    def _map(self, region: Region) -> mmap.mmap:
        return mmap.mmap(self.memory, region[1], offset=region[0])

    def load(self, spec: PolicySpec, layout: Layout, region: Region, parts: Sequence[tuple[int, slice]]) -> None:
        """The policy to follow; its parameters may change in memory between rollouts. Without one the mean is zero."""
        memory = self._map(region)
        arrays = {name: np.ndarray(shape, dtype, memory, offset) for name, shape, dtype, offset in layout}
        self.policy = FleetPolicy(spec, arrays, parts)

    def follow(self, region: Region | None) -> None:
        """Act by the policy from now on and log every step in that region; None: take the learner's actions again.

        A step's action is the policy's mean plus what the region holds in the action's place: the learner's noise.
        """
        self.time = None
        if region is not None:
            self.time = 0
            self.log = np.frombuffer(self._map(region), self.row.dtype).reshape(-1, self.total)[:, self.part]
            self.left = np.ones(len(self.row), bool)

    def rollout(self, steps: int, once: bool) -> None:
        """Take `steps` steps by the policy; `once`: stop when every environment has ended an episode."""
        for _ in range(steps):
            if once and not self.left.any():
                break
            self.step()

    def _act(self, time: int) -> None:
        log = self.log[time]
        action = log["action"] + (0 if self.policy is None else self.policy(self.rows["obs"]))
        if not np.isfinite(action).all():
            wrong = np.flatnonzero(~np.isfinite(action).all(axis=1))
            seen = np.isfinite(self.rows["obs"][wrong]).all()
            why = "has the policy diverged?" if seen else "their observations are not finite themselves"
            raise ValueError(f"actions of {len(wrong)} of {len(action)} environments are not finite: {why}")
        np.maximum(action, self.low, out=self.rows["action"])
        np.minimum(self.rows["action"], self.high, out=self.rows["action"])
        self._move()
        log[:] = self.row
        log["action"] = action  # as it was drawn: its probability is that of the unclipped one
        self.left &= ~(log["terminated"] | log["truncated"])
        self.time = time + 1

    def reset(self, streams: np.ndarray | None = None) -> None:
        """Start the next episode everywhere; with new streams, their episode 0."""
        if streams is not None:
            self.streams = streams
            self.episode[:] = -1
        self._start(np.arange(len(self.streams)))

    def step(self) -> None:
        """One step everywhere; where an episode ends, the next one starts in the same step."""
        if self.time is None:
            self._move()
        else:
            self._act(self.time)

    def _move(self) -> None:
        rows = self.rows
        observation, reward, terminated, success = self.batch.step(self.action)
        self.elapsed += 1
        done = terminated | (self.elapsed >= self.batch.horizon)
        rows["obs"][:] = observation
        rows["final_obs"][:] = observation
        rows["reward"][:] = reward
        rows["terminated"][:] = terminated
        rows["truncated"][:] = done & ~terminated
        rows["success"][:] = success
        if done.any():
            self._start(np.flatnonzero(done))

    def _start(self, where: np.ndarray) -> None:
        self.episode[where] += 1
        self.elapsed[where] = 0
        words = zip(self.streams[where].tolist(), self.episode[where].tolist(), strict=True)
        rngs = [np.random.default_rng([seed, self.task_word, index, episode]) for (seed, index), episode in words]
        self.rows["obs"][where] = self.batch.reset(where, rngs)

    def get_state(self) -> State:
        """All that the future depends on, a row per environment."""
        return {
            "stream": self.streams,
            "task": np.full(len(self.streams), self.task_word, np.uint32),
            "episode": self.episode,
            "elapsed": self.elapsed,
            **{f"batch/{name}": array for name, array in self.batch.get_state().items() if name != shown(self.batch)},
        }

    def set_state(self, state: State) -> None:
        self.streams, self.episode, self.elapsed = state["stream"], state["episode"], state["elapsed"]
        own = {name.removeprefix("batch/"): array for name, array in state.items() if name.startswith("batch/")}
        if (name := shown(self.batch)) is not None:
            own[name] = state["obs"]
        self.batch.set_state(own)

    def render(self, indices: Sequence[int]) -> list[Any]:
        # Optional, so not in the protocol: the pool has looked.
        return [self.batch.render(index) for index in indices]  # type: ignore[attr-defined]

    def describe(self) -> Any:
        """What a renderer outside has to know of the scene; optional too."""
        return self.batch.describe()  # type: ignore[attr-defined]

    def close(self) -> None:
        if hasattr(self, "batch"):
            self.batch.close()
            del self.batch

    def leave(self) -> None:
        """End this share, and close the shared memory's file."""
        self.close()
        if hasattr(self, "memory"):
            os.close(self.memory)
            del self.memory
