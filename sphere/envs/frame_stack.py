"""Images as a policy sees them: the last few of an episode, one behind another, and numbers beside them.

A frame is [height, width, 3] in bytes. Numbers that belong to it (proprioception) stand in one more row below, as the
bytes of float32: so an observation is one array of bytes, from the renderer to the network.
"""

import numpy as np
from jaxtyping import Float, Int, UInt8

CHANNELS = 3
FILM = 480
"""Pixels, about, of a side of a picture for people."""


def frame_shape(size: int, numbers: int) -> tuple[int, int, int]:
    return size + (numbers > 0), size, CHANNELS


def with_numbers(
    image: UInt8[np.ndarray, "n height width 3"], numbers: Float[np.ndarray, "n k"]
) -> UInt8[np.ndarray, "n below width 3"]:
    """Images with a row below them that holds these numbers."""
    n, _, width, channels = image.shape
    row = np.zeros((n, width * channels), np.uint8)
    given = np.ascontiguousarray(numbers, "<f4").view(np.uint8)
    row[:, : given.shape[1]] = given
    return np.concatenate([image, row.reshape(n, 1, width, channels)], axis=1)


def enlarged(seen: UInt8[np.ndarray, "height width stacked"]) -> UInt8[np.ndarray, "h w 3"]:
    """The newest picture of an observation for people, every pixel as a square."""
    side = seen.shape[1]
    factor = max(1, FILM // side)
    return seen[:side, :, -CHANNELS:].repeat(factor, axis=0).repeat(factor, axis=1)


class Stack:
    """The last `frames` frames of every environment, the oldest first; before an episode's first stand copies of it."""

    def __init__(self, num_envs: int, shape: tuple[int, int, int], frames: int) -> None:
        height, width, self.channels = shape
        self.frames = frames
        self.seen = np.zeros((num_envs, height, width, self.channels * frames), np.uint8)

    def push(self, frame: UInt8[np.ndarray, "env height width c"]) -> None:
        self.seen[..., : -self.channels] = self.seen[..., self.channels :]
        self.seen[..., -self.channels :] = frame

    def restart(self, where: Int[np.ndarray, " k"], frame: UInt8[np.ndarray, "k height width c"]) -> None:
        """A new episode begins with these frames."""
        self.seen[where] = np.tile(frame, self.frames)
