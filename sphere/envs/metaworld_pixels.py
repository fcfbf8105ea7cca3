"""MetaWorld from pixels: `metaworld-pixels/<task>`. Physics, rewards, success and goals are those of `metaworld`."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int, UInt8

from sphere.envs import offscreen
from sphere.envs.batch import State, Stepped
from sphere.envs.frames import Stack, frame_shape, with_numbers
from sphere.envs.metaworld import MetaWorld
from sphere.envs.metaworld_pictures import Painter, Stage
from sphere.errors import UserError, unknown

CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
HAND = 4
"""Numbers of the observation that are the hand's own: its position, and how far the gripper is open."""
SMALLEST = 8
"""Pixels of a side."""
FILM = 480
"""Pixels, about, of a side of a picture for people."""


class MetaWorldPixels:
    """A `Batch` whose observations are the last pictures, uint8 [size, size, 3 x frame_stack], the oldest first.

    camera: one of the package's.
    image_size: pixels of a side.
    frame_stack: how many pictures; an episode begins with copies of its first.
    proprioception: the hand's position and the gripper's opening too, as bytes in one more row (`sphere.envs.frames`).
    """

    tasks: ClassVar[tuple[str, ...]] = MetaWorld.tasks
    same_sizes: ClassVar[bool] = True
    shown: ClassVar[str] = "seen"

    def __init__(
        self,
        task: str,
        num_envs: int,
        goals: str = "random",
        horizon: int = 500,
        camera: str = "corner4",
        image_size: int = 84,
        frame_stack: int = 3,
        proprioception: bool = False,
    ) -> None:
        check_settings(camera, image_size, frame_stack)
        self.world = world = MetaWorld(task, num_envs, goals, horizon)
        self.action_low, self.action_high, self.horizon = world.action_low, world.action_high, world.horizon
        self.numbers, self.frame_stack = HAND if proprioception else 0, frame_stack
        origin = world.origin
        self.stage = Stage(origin.mujoco, origin.env.model_name, origin.model, world.task.placed, camera)
        self.painter = Painter(self.stage, image_size)
        self.stack = Stack(num_envs, frame_shape(image_size, self.numbers), frame_stack)
        self.image_shape: tuple[int, ...] = self.stack.seen.shape[1:]
        self.observation_size = int(np.prod(self.image_shape))

    @staticmethod
    def check(camera: str = "corner4", image_size: int = 84, frame_stack: int = 3, **others: Any) -> None:
        """Refuse what cannot be drawn before a worker is started."""
        check_settings(camera, image_size, frame_stack)
        offscreen.platform()

    @property
    def data(self) -> list[Any]:
        return self.world.data

    def _frames(self, where: Int[np.ndarray, " k"], state: np.ndarray) -> UInt8[np.ndarray, "k height width 3"]:
        """Pictures of these environments, whose observations in the state suite are rows of `state`."""
        frames = []
        for i in where.tolist():
            self.stage.pose(self.world.data[i], self.world.placed[i], self.world.start.target[i])
            frames.append(self.painter.paint())
        pictures = np.stack(frames)
        return with_numbers(pictures, state[:, :HAND].astype(np.float32)) if self.numbers else pictures

    def reset(self, where: Int[np.ndarray, " k"], rngs: Sequence[np.random.Generator]) -> UInt8[np.ndarray, "k h w c"]:
        state = self.world.reset(where, rngs)
        self.stack.restart(where, self._frames(where, state))
        return self.stack.seen[where]

    def step(self, action: np.ndarray) -> Stepped:
        state, reward, terminated, success = self.world.step(action)
        self.stack.push(self._frames(np.arange(len(state)), state))
        return self.stack.seen, reward, terminated, success

    def get_state(self) -> State:
        return self.world.get_state() | {self.shown: self.stack.seen.copy()}

    def set_state(self, state: State) -> None:
        self.world.set_state({name: array for name, array in state.items() if name != self.shown})
        self.stack.seen[:] = state[self.shown]

    def render(self, index: int) -> np.ndarray:
        """The newest picture that the policy sees, every pixel enlarged."""
        side = self.image_shape[1]
        picture = self.stack.seen[index, :side, :, -3:]
        return picture.repeat(max(1, FILM // side), axis=0).repeat(max(1, FILM // side), axis=1)

    def close(self) -> None:
        self.painter.close()
        self.world.close()


def check_settings(camera: str, image_size: int, frame_stack: int) -> None:
    if camera not in CAMERAS:
        raise unknown("camera", camera, CAMERAS)
    if image_size < SMALLEST:
        raise UserError(f"image_size={image_size}; want {SMALLEST} pixels or more, 84 is usual")
    if frame_stack < 1:
        raise UserError(f"frame_stack={frame_stack}; want 1 or more, 3 is usual")
