"""A rollout of images, each of them once.

An observation is a stack of the last few images. The next one shares all but one with it, and the successor of a step
is the next observation unless an episode ends there. So a rollout holds images in the order in which they came, says
for every observation where its episode begins among them, and has the last images of episodes that were cut off apart.
Networks get stacks, made where they are needed.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt8

Numbers = Any  # arrays of jax, or of numpy where they come from the host


class Frames(NamedTuple):
    """Axes as in a rollout, [run] before them in a fleet. There is one observation more than steps: after the last.

    The newest image of observation t is image[stack - 1 + t]; before those stand the older ones of the first.
    """

    image: UInt8[Numbers, "*fleet place env height width channel"]
    first: Int[Numbers, "*fleet time env"]
    """The place of the first image of the observation's episode; 0 for one that began before."""
    final: UInt8[Numbers, "*fleet cut env height width channel"]
    """Of the successors of steps at which an episode was cut off by its time limit, the newest image."""
    final_at: Int[Numbers, "*fleet cut env"]
    """Those steps; the number of all steps where there is none."""

    @property
    def stack(self) -> int:
        """Images of an observation, of one run."""
        return self.image.shape[0] - self.first.shape[0] + 1

    def _older(self, time: Any, env: Any, count: int) -> list[Any]:
        """The `count` newest images of observations, the oldest first."""
        newest, first = self.stack - 1 + time, self.first[time, env]
        return [self.image[(newest - k).clip(first), env] for k in reversed(range(count))]

    def observations(self, time: Int[Numbers, " n"], env: Int[Numbers, " n"]) -> UInt8[Numbers, "n h w stacked"]:
        """As networks see them, of one run."""
        return _joined(self._older(time, env, self.stack))

    def finals(self, time: Int[Numbers, " n"], env: Int[Numbers, " n"], image: Any) -> UInt8[Numbers, "n h w stacked"]:
        """The successors of those steps, of which these are the newest images."""
        return _joined([*self._older(time, env, self.stack - 1), image])


def _joined(images: list[Any]) -> Any:
    return (np if isinstance(images[0], np.ndarray) else jnp).concatenate(images, axis=-1)


def capacity(steps: int, horizon: int) -> int:
    """How often a time limit can cut off episodes of one environment in so many steps."""
    return -(-steps // horizon)
