"""Rollouts of a pool whose workers choose the actions by themselves, from a policy that lies in shared memory.

Nothing passes between learner and workers during a rollout, so no environment waits for another, and the learner's
device is free for something else. With running statistics of the observations, all environments of a run have to wait
for each other after every step; the workers choose the actions then too.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from sphere.envs.batch import Region
from sphere.envs.policy import Spec
from sphere.envs.pool import Pool

CHUNK = 256
"""Steps between two answers of a worker: in that time the learner works, and a hang goes unnoticed."""


class Finished(NamedTuple):
    """Episodes that ended in one step: where, and the numbers of all environments (meaningful there)."""

    rows: np.ndarray
    episode: dict[str, np.ndarray]


class RolloutDriver:
    """Drives a pool by policies with the same shapes as `arrays` (each with a leading run axis); without any, the
    actions are those given as noise."""

    def __init__(self, pool: Pool, spec: Spec | None = None, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self.pool = pool
        self.room: Region = (0, 0)  # for the rows of a rollout
        self.arrays: dict[str, np.ndarray] = {}
        if spec is not None and arrays is not None:
            self._share(spec, arrays)

    def _share(self, spec: Spec, arrays: Mapping[str, np.ndarray]) -> None:
        layout, end = [], 0
        for name, array in arrays.items():
            layout.append((name, array.shape, array.dtype.str, end))
            end += -(-array.nbytes // 64) * 64  # each begins on a cache line of its own
        region, memory = self.pool.share(end)
        self.arrays = {name: np.ndarray(shape, dtype, memory, at) for name, shape, dtype, at in layout}
        self.load(arrays)
        envs = self.pool.num_envs // self.pool.num_runs
        self._command("load", lambda part: (spec, layout, region, list(_runs(part, envs))))

    def _command(self, command: str, arguments: Callable[[slice], tuple]) -> None:
        self.pool.begin(command, arguments)
        self.pool.end()

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Other values for some or all of the arrays: the next step uses them."""
        for name, array in arrays.items():
            self.arrays[name][...] = array

    def run(
        self,
        steps: int,
        noise: np.ndarray | None = None,
        once: bool = False,
        after: Callable[[np.ndarray], None] | None = None,
    ) -> tuple[np.ndarray, list[Finished]]:
        """`steps` steps everywhere: their rows [time, env] (see `sphere.envs.batch.record`; to be copied before the
        next rollout) and the episodes that ended.

        noise [time, env, act] is added to the actions; `once`: stop where every environment has ended an episode (rows
        after that mean nothing); `after` gets the rows of every step, and may `load`, before the next one begins.
        """
        log = self._log(steps)
        log["action"] = 0 if noise is None else noise
        if once:
            log["terminated"] = log["truncated"] = False  # rows that are never written end no episode
        self._command("follow", lambda part: (self.region,))
        try:
            finished = self._in_pieces(log, once) if after is None else self._step_by_step(log, after)
        except BaseException:
            self.pool.close()  # on Ctrl-C too: a worker may be in the middle of a piece
            raise
        self._command("follow", lambda part: (None,))
        return log, finished

    def _log(self, steps: int) -> np.ndarray:
        dtype = self.pool.row_type
        size = steps * self.pool.num_envs * dtype.itemsize
        if size > self.room[1]:
            self.room, self.memory = self.pool.share(size)
        self.region = (self.room[0], size)
        return np.frombuffer(self.memory, dtype, steps * self.pool.num_envs).reshape(steps, -1)

    def _in_pieces(self, log: np.ndarray, once: bool) -> list[Finished]:
        """In pieces: while the workers step one, the learner sums up the episodes of the one before."""
        finished: list[Finished] = []
        before = log[:0]
        for first in range(0, len(log), CHUNK):
            piece = log[first : first + CHUNK]
            self.pool.begin("rollout", partial(_piece, len(piece), once))
            finished += self._finished(before)
            self.pool.end()
            before = piece
        return finished + list(self._finished(before))

    def _step_by_step(self, log: np.ndarray, after: Callable[[np.ndarray], None]) -> list[Finished]:
        finished: list[Finished] = []
        for rows in log:
            self.pool.move()
            finished += self._finished(rows[None])
            after(rows)
        return finished

    def _finished(self, piece: np.ndarray) -> Iterator[Finished]:
        reward, success = piece["reward"].copy(), piece["success"].copy()
        done = piece["terminated"] | piece["truncated"]
        sums, first = self.pool.episodes, 0
        for t in np.flatnonzero(done.any(axis=1)).tolist():
            sums.add(reward[first : t + 1], success[first : t + 1])
            yield Finished(np.flatnonzero(done[t]), sums.end(done[t], success[t]))
            first = t + 1
        sums.add(reward[first:], success[first:])


def _piece(steps: int, once: bool, part: slice) -> tuple[int, bool]:
    return steps, once


def _runs(part: slice, envs: int) -> Iterator[tuple[int, slice]]:
    """Which rows of a worker's part belong to which run."""
    for run in range(part.start // envs, (part.stop - 1) // envs + 1):
        first, last = max(part.start, run * envs), min(part.stop, (run + 1) * envs)
        yield run, slice(first - part.start, last - part.start)
