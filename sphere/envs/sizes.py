"""What a pool has to know of a task before it steps: shapes, bounds, the row that learner and worker share."""

from typing import Any, NamedTuple

import numpy as np


class Sizes(NamedTuple):
    """Of one environment of a task."""

    observation: tuple[int, ...]
    type: str
    """Of an observation's entries: "f4", or "u1" of an image."""
    action_low: np.ndarray
    action_high: np.ndarray
    horizon: int
    frames: int = 0
    """Images that an observation is a stack of; 0: it is no image."""
    numbers: int = 0
    """Numbers beside an image, in the bytes of a row below it (`sphere.envs.frame_stack`)."""
    drawn: tuple[int, int, int] = (0, 0, 0)
    """Where the learner draws from poses: pixels of a side, frames and numbers of an observation."""

    @property
    def space(self) -> tuple[Any, Any, tuple[int, ...], Any]:
        """Of an observation: bounds, shape and type."""
        kind = np.dtype(self.type)
        low, high = (0, 255) if kind == np.uint8 else (-np.inf, np.inf)
        return low, high, self.observation, kind.type

    @property
    def record(self) -> np.dtype:
        """One environment's row in the memory that learner and worker share."""
        return np.dtype(
            [
                ("reward", "f8"),
                ("action", "f4", self.action_low.shape),
                ("obs", self.type, self.observation),
                ("final_obs", self.type, self.observation),
                ("terminated", "?"),
                ("truncated", "?"),
                ("success", "?"),
            ],
            align=True,
        )


def sizes_of(batch: Any) -> Sizes:
    """Of a `sphere.envs.batch.Batch`."""
    low, high = np.asarray(batch.action_low), np.asarray(batch.action_high)
    plain = Sizes((batch.observation_size,), "f4", low, high, batch.horizon, drawn=getattr(batch, "drawn", (0, 0, 0)))
    if (image := getattr(batch, "image_shape", None)) is None:
        return plain
    frames, numbers = getattr(batch, "frame_stack", 1), getattr(batch, "numbers", 0)
    return plain._replace(observation=image, type="u1", frames=frames, numbers=numbers)
