"""Images of a rollout as they come from environments, each kept once (`sphere.algos.frames`)."""

import math
import os

import numpy as np
from jaxtyping import Bool, Int, UInt8

from sphere.algos.frames import Frames, capacity
from sphere.errors import UserError


def check_room(shape: tuple[int, ...], stack: int, runs: int, rollout: tuple[int, int]) -> None:
    """Refuse a rollout whose images this machine cannot hold."""
    envs, steps = rollout
    needed = runs * envs * (steps + stack) * math.prod(shape) // stack
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > has:
        raise UserError(
            f"the images of one iteration ({steps:,} steps of {envs:,} environments, {runs} runs) take "
            f"{needed / 2**30:,.0f} GiB, and this machine has {has / 2**30:,.0f}; use fewer runs, environments or "
            "rollout_steps, or a smaller image_size"
        )


class FrameLog:
    """`obs` [run, env, ...] are the observations before the first of `steps` steps."""

    def __init__(self, obs: UInt8[np.ndarray, "run env h w stacked"], stack: int, steps: int, horizon: int) -> None:
        runs, envs, height, width, channels = obs.shape
        self.stack, self.channels, self.step = stack, channels // stack, 0
        one = (envs, height, width, self.channels)
        self.frames = Frames(
            np.empty((runs, stack + steps, *one), np.uint8),
            np.zeros((runs, steps + 1, envs), np.int32),
            np.zeros((runs, capacity(steps, horizon), *one), np.uint8),
            np.full((runs, capacity(steps, horizon), envs), steps, np.int32),
        )
        self.cut = np.zeros((runs, envs), int)
        for place in range(stack):
            self.frames.image[:, place] = obs[..., place * self.channels : (place + 1) * self.channels]

    def add(
        self,
        obs: UInt8[np.ndarray, "run env h w stacked"],
        final_obs: UInt8[np.ndarray, "run env h w stacked"],
        done: Bool[np.ndarray, "run env"],
        truncated: Bool[np.ndarray, "run env"],
    ) -> None:
        """What a step has led to."""
        frames, place = self.frames, self.stack + self.step
        frames.image[:, place] = obs[..., -self.channels :]
        frames.first[:, self.step + 1] = np.where(done, place, frames.first[:, self.step])
        run, env = np.nonzero(truncated)
        frames.final[run, self.cut[run, env], env] = final_obs[run, env][..., -self.channels :]
        frames.final_at[run, self.cut[run, env], env] = self.step
        self.cut[run, env] += 1
        self.step += 1


def sampled(frames: Frames, count: int) -> UInt8[np.ndarray, "run count h w stacked"]:
    """Observations of every run, evenly spread over the rollout's steps."""
    steps, envs = frames.first.shape[1] - 1, frames.first.shape[2]
    rows: Int[np.ndarray, " count"] = np.linspace(0, steps * envs - 1, count).astype(int)
    return np.stack([Frames(*one).observations(rows // envs, rows % envs) for one in zip(*frames, strict=True)])
