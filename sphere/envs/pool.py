"""A vector environment over worker processes, the same numbers for any number of them.

Learner and workers share a piece of memory with a row per environment, and tell each other by a counter in memory that
a step is wanted or done (`Doorbell` in `worker.py`). A side that sleeps is woken by a byte through a pipe: as fast as
an eventfd, half the cost of a socket, and it tells when the other end has died.
"""

import mmap
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike

from sphere.envs import worker_path
from sphere.envs.batch import Region, State, Suite, check_state, streams_of
from sphere.envs.handles import Worker, WorkerError, anonymous_memory, check_importable, cores, dismiss, extend, start
from sphere.envs.running_statistics import EpisodeSums
from sphere.envs.sizes import Sizes
from sphere.errors import unknown

__all__ = ["Pool", "WorkerError"]

MANY = 8
"""From this number of cores on the learner, by default, leaves all stepping to workers: a simulator that crashes or
hangs then does not take it along. With fewer, its core is needed, and it steps a share itself."""


class Pool(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """`num_envs` environments of one task for each of the run `seeds`, run-major, with same-step autoreset.

    All that an environment draws is from `default_rng([run seed, crc32(task), index in run, episode])`, so trajectories
    depend neither on other runs nor on `workers` (0: in this process; default: one per core, few cores shared).
    Actions are clipped to their box here.

    `step` answers in `infos`: `final_obs`, the true successor of every environment (where `_final_obs`, the
    last observation of its episode, while `obs` has the first of the next); `success` at this step; and, when
    episodes ended, `episode` with `r`, `l`, `success_once` and `success_at_end` where `_episode`.
    """

    single_observation_space: Box
    single_action_space: Box

    def __init__(
        self,
        suite: Suite,
        task: str,
        num_envs: int = 1,
        seeds: Sequence[int] = (0,),
        workers: int | None = None,
        timeout: float = 120.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._owner = os.getpid()
        self._workers: list[Worker] = []
        self._memory = anonymous_memory()
        self._dismiss = weakref.finalize(self, dismiss, self._workers, self._memory, self._owner)
        total = num_envs * len(seeds)
        if num_envs < 1 or total < 1:
            raise ValueError(f"num_envs={num_envs} for {len(seeds)} run seeds; want at least one of each")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout}; want a positive number of seconds")
        if (workers or 0) < 0:
            raise ValueError(f"workers={workers}; want 0 (in this process) or more")
        self._path = worker_path.first(suite)  # where there is one, nothing is simulated in this process
        here = not self._path and (workers == 0 or (workers is None and cores() < MANY))
        workers = min(max(cores() - here if workers is None else workers, len(self._path)), total - here)
        if task not in suite.tasks:
            raise unknown("task", task, suite.tasks)
        self._suite, self.task, self.num_envs, self.num_runs = suite, task, total, len(seeds)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        shares = workers + here
        bounds = [total * i // shares for i in range(shares + 1)]
        self._parts = [slice(*pair) for pair in pairwise(bounds)]
        streams = streams_of(seeds, self.num_runs, total)
        try:
            self._begin(here, timeout, [(suite, dict(settings or {}), streams[part], task) for part in self._parts])
        except BaseException:
            self.close()
            raise
        self._row = {name: self._rows[name] for name in self._rows.dtype.names or ()}
        self.row_type = self._rows.dtype
        self.episodes = EpisodeSums(total)
        self._started = self._pending = False

    def _begin(self, here: bool, timeout: float, arguments: list[tuple]) -> None:
        """Start the workers and set up spaces and rows by what they say; `here`: the first share is this process's."""
        if len(self._parts) > here:
            check_importable(self._suite)
        start(here, self._parts, self._memory, timeout, self._workers, self._path)
        dtype = self._adopt(self._call("begin", arguments))
        self._rows = np.frombuffer(self.share(self.num_envs * dtype.itemsize)[1], dtype, self.num_envs)
        files = [self._memory.fileno()] * len(self._parts)
        if here:
            files[0] = os.dup(files[0])  # a share closes its file in the end
        self._call("attach", [(file, self.num_envs, part) for file, part in zip(files, self._parts, strict=True)])

    def _adopt(self, found: Sequence[Sizes]) -> np.dtype:
        """Set the spaces from what the workers report of their environments."""
        sizes = found[0]
        self.sizes, self.horizon = sizes, sizes.horizon
        self._low, self._high = sizes.action_low.astype(np.float32), sizes.action_high.astype(np.float32)
        self.single_observation_space = Box(*sizes.space)
        self.single_action_space = Box(self._low, self._high, dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        return sizes.record

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start the next episode everywhere; with `seed` (one per run), episode 0 of those run seeds."""
        self._check_idle("reset")
        if options:
            raise ValueError(
                f"reset got options {sorted(options)}; this pool takes none (settings go to its constructor)"
            )
        seeds = [seed] if isinstance(seed, int | np.integer) else seed
        streams = None if seeds is None else streams_of(seeds, self.num_runs, self.num_envs)
        self._call("reset", [(None if streams is None else streams[part],) for part in self._parts])
        self.episodes.restart(slice(None))
        self._started = True
        return self._row["obs"].copy(), {}

    def step(self, actions: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step everywhere, with same-step autoreset."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: ArrayLike) -> None:
        """Begin a step; the caller may do something else, also with another pool, until `step_wait`."""
        self._check_idle("step")
        self._check_started("step")
        actions = np.asarray(actions, np.float32)
        if actions.shape != self.action_space.shape:
            raise ValueError(
                f"actions have shape {actions.shape}, want {self.action_space.shape}: a row for each of "
                f"{self.num_runs} runs x {self.num_envs // self.num_runs} environments"
            )
        if not np.isfinite(actions).all():
            bad = int(np.flatnonzero(~np.isfinite(actions).all(axis=1))[0])
            raise ValueError(
                f"the action of environment {bad} is {actions[bad]}, want finite numbers: a diverged policy?"
            )
        np.maximum(actions, self._low, out=self._row["action"])
        np.minimum(self._row["action"], self._high, out=self._row["action"])
        self._pending = True
        self._send("step")

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """The results of the step begun by `step_async`: fresh arrays, never written to again."""
        self._check_open("step_wait")
        if not self._pending:
            raise RuntimeError("step_wait came without a step under way; call step_async(actions) first")
        self._receive()
        self._pending = False
        row, names = self._row, ("obs", "final_obs", "reward", "terminated", "truncated", "success")
        obs, final_obs, reward, terminated, truncated, success = [row[name].copy() for name in names]
        done = terminated | truncated
        infos: dict[str, Any] = {"final_obs": final_obs, "_final_obs": done, "success": success}
        self.episodes.add(reward[None], success[None])
        if done.any():
            infos["episode"], infos["_episode"] = self.episodes.end(done, success), done
        return obs, reward, terminated, truncated, infos

    def switch(self, task: str) -> tuple[np.ndarray, dict[str, Any]]:
        """Another task of the suite for all environments, in the same processes; its first observations.

        Every environment goes on to its next episode number, and the task's name is part of the seed: no two
        tasks, and no two visits to one task, draw the same numbers.
        """
        self._check_idle("switch")
        if task not in self._suite.tasks:
            raise unknown("task", task, self._suite.tasks)
        had = self._rows.dtype
        dtype = self._adopt(self._call("switch", [(task,)] * len(self._parts)))
        if dtype != had:
            self.close()
            raise ValueError(
                f"task {task!r} has other sizes of observation or action than {self.task!r}, for which this "
                "pool was made; make a pool of its own"
            )
        self.task = task
        return self.reset()

    def get_state(self) -> State:
        """All that the future depends on: arrays with a row per environment, whatever the workers.

        The rows of one run may be taken out and restored in a pool with other runs.
        """
        self._check_idle("get_state")
        self._check_started("get_state")
        return self._capture()

    def _capture(self) -> State:
        shares = self._call("get_state", [()] * len(self._parts))
        state = {name: np.concatenate([share[name] for share in shares]) for name in shares[0]}
        sums = self.episodes
        own = {"obs": self._row["obs"], "return": sums.returns, "success_once": sums.success_once}
        return state | {name: array.copy() for name, array in own.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        """Continue exactly from a captured state of the same task; its observations."""
        self._check_idle("set_state")
        want = self._capture()
        check_state(state, want)
        if (state["task"] != want["task"]).any():
            raise ValueError(f"the state is of another task than {self.task!r}; switch to that task first")
        state = {name: array.copy() for name, array in state.items()}
        self._call("set_state", [({name: state[name][part] for name in state},) for part in self._parts])
        self._row["obs"][:] = state["obs"]
        self.episodes.restore(state["return"], state["elapsed"], state["success_once"])
        self._started = True
        return self._row["obs"].copy()

    # For `sphere.envs.rollout_driver`, whose workers act by themselves ------------------------------------------------

    def share(self, size: int) -> tuple[Region, mmap.mmap]:
        """More memory that learner and workers share, zeros: where it is in their file, and the learner's view."""
        return extend(self._memory, size)

    def begin(self, command: str, arguments: Callable[[slice], tuple]) -> None:
        """Give the workers a command of `Share`, with arguments for their part of the environments; `end` waits for
        it."""
        self._check_idle(command)
        self._pending = True
        self._send(command, [arguments(part) for part in self._parts])

    def end(self) -> None:
        self._receive()
        self._pending = False

    def move(self) -> None:
        """One step with actions as the workers have them."""
        self._check_idle("move")
        self._check_started("move")
        self._call("step")

    def render(self, *indices: int) -> tuple[Any, ...]:
        """Frames of these environments; of all if none is named."""
        self._check_idle("render")
        if not hasattr(self._suite, "render"):
            raise NotImplementedError(f"{self._suite.__qualname__} cannot be rendered; it has no render(index)")
        indices = indices or tuple(range(self.num_envs))
        if not set(indices) <= set(range(self.num_envs)):
            raise IndexError(f"environments {indices} were asked for; this pool has 0 to {self.num_envs - 1}")
        wanted = [[i for i in range(part.start, part.stop) if i in indices] for part in self._parts]
        local = [([i - part.start for i in own],) for part, own in zip(self._parts, wanted, strict=True)]
        frames = dict(zip(chain(*wanted), chain(*self._call("render", local)), strict=True))
        return tuple(frames[i] for i in indices)

    def close(self, **kwargs: Any) -> None:
        """End the workers. Happens by itself at exit, after an error, and when the pool is garbage-collected."""
        self.closed = True
        self._dismiss()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_open(self, what: str) -> None:
        if self.closed or os.getpid() != self._owner:
            reason = "is closed" if self.closed else "belongs to the process that made it"
            raise RuntimeError(f"{what} came to a pool that {reason}; make a new one")

    def _check_idle(self, what: str) -> None:
        self._check_open(what)
        if self._pending:
            raise RuntimeError(f"{what} came while a step is under way; call step_wait() first")

    def _check_started(self, what: str) -> None:
        if not self._started:
            raise RuntimeError(f"{what} came before the first episode; call reset() or set_state(state) first")

    def _call(self, command: str, arguments: Sequence[tuple] | None = None) -> list[Any]:
        self._send(command, arguments)
        return self._receive()

    def _send(self, command: str, arguments: Sequence[tuple] | None = None) -> None:
        try:
            for i, worker in enumerate(self._workers):
                worker.send(command, *(arguments[i] if arguments else ()))
        except BaseException:
            self.close()
            raise

    def _receive(self) -> list[Any]:
        try:
            return [worker.receive() for worker in self._workers]
        except BaseException:
            self.close()  # on Ctrl-C too: an answer left in the pipe would be taken for that to a later command
            raise
