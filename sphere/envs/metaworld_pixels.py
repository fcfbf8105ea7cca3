"""MetaWorld from pixels: `metaworld-pixels/<task>`. Physics, rewards, success and goals are those of `metaworld`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, Num, UInt8

from sphere.envs import offscreen
from sphere.envs.batch import State, Stepped
from sphere.envs.frame_stack import Stack, enlarged, frame_shape, with_numbers
from sphere.envs.metaworld import MetaWorld
from sphere.envs.metaworld_pictures import Painter, PosedScene
from sphere.envs.warp_process import geom_names
from sphere.errors import UserError, unknown

if TYPE_CHECKING:
    from sphere.envs.pool import Pool

CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
HAND = 4
"""Numbers of the observation that are the hand's own: its position, and how far the gripper is open."""
SMALLEST = 8
"""Pixels of a side."""
RENDERERS = ("mujoco", "warp")
POSE = 1200
"""Numbers of a pose, in all tasks: the largest scene has 77 geoms of twelve numbers each."""


class MetaWorldPixels:
    """A `Batch` whose observations are the last pictures, uint8 [size, size, 3 x frame_stack], the oldest first.

    camera: one of the package's.
    image_size: pixels of a side.
    frame_stack: how many pictures; an episode begins with copies of its first.
    proprioception: the hand's position and the gripper's opening too, as bytes in one more row (`frame_stack.py`).
    renderer: "mujoco", its own, here; "warp", MuJoCo Warp in one process for all environments. Then observations of the
    batch are poses, and its pool (`sphere.envs.drawn`) makes pictures of them.
    """

    tasks: ClassVar[tuple[str, ...]] = MetaWorld.tasks
    same_sizes: ClassVar[bool] = True
    mujoco_version: ClassVar[str] = MetaWorld.mujoco_version

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
        renderer: str = "mujoco",
    ) -> None:
        check_settings(camera, image_size, frame_stack, renderer)
        self.world = world = MetaWorld(task, num_envs, goals, horizon)
        self.action_low, self.action_high, self.horizon = world.action_low, world.action_high, world.horizon
        self.hand = HAND if proprioception else 0
        origin = world.origin
        self.stage = PosedScene(origin.mujoco, origin.env.model_name, origin.model, world.task.placed, camera)
        self.painter = self.shown = self.image_shape = None
        if renderer == "warp":
            self.drawn, self.observation_size = (image_size, frame_stack, self.hand), POSE + self.hand
            return
        self.painter, self.shown = Painter(self.stage, image_size), "seen"
        self.numbers, self.frame_stack = self.hand, frame_stack
        self.stack = Stack(num_envs, frame_shape(image_size, self.hand), frame_stack)
        self.image_shape = self.stack.seen.shape[1:]
        self.observation_size = int(np.prod(self.image_shape))

    def describe(self) -> dict[str, Any]:
        """What a renderer outside has to know of the scene."""
        stage = self.stage
        scene = {"path": self.world.origin.env.model_name, "camera": stage.model.camera(stage.camera).name}
        return scene | {
            "geoms": geom_names(stage.model),
            "lights": stage.model.nlight,
            "upside_down": stage.upside_down,
        }

    @staticmethod
    def check(
        camera: str = "corner4", image_size: int = 84, frame_stack: int = 3, renderer: str = "mujoco", **others: Any
    ) -> None:
        """Refuse what cannot be drawn before a worker is started."""
        check_settings(camera, image_size, frame_stack, renderer)
        if renderer == "mujoco":
            offscreen.platform()

    @staticmethod
    def pool(renderer: str = "mujoco", **others: Any) -> "type[Pool]":
        """The pool of these settings: workers draw, or one process draws for all environments."""
        if renderer == "mujoco":
            from sphere.envs.pool import Pool

            return Pool
        from sphere.envs import drawn

        drawn.check_renderer(drawn.interpreter())
        return drawn.DrawnPool

    @staticmethod
    def about(pool: Any) -> str:
        """What draws, in words."""
        if device := getattr(pool, "device", ""):
            return f"pictures by MuJoCo Warp on {device}"
        found = offscreen.platform()
        return f"pictures by MuJoCo's own renderer through {found.name} on {found.device}"

    @property
    def data(self) -> list[Any]:
        return self.world.data

    def _posed(self, where: Int[np.ndarray, " k"]) -> Iterator[PosedScene]:
        """The stage as it is in these environments, one after the other."""
        world = self.world
        for i in where.tolist():
            self.stage.pose(world.data[i], world.placed[i], world.start.target[i])
            yield self.stage

    def _frames(self, where: Int[np.ndarray, " k"], state: np.ndarray) -> UInt8[np.ndarray, "k height width 3"]:
        """Pictures of these environments, whose observations in the state suite are rows of `state`."""
        painter: Any = self.painter
        pictures = np.stack([painter.paint() for _ in self._posed(where)])
        return with_numbers(pictures, state[:, : self.hand].astype(np.float32)) if self.hand else pictures

    def _poses(self, where: Int[np.ndarray, " k"], state: np.ndarray) -> Float[np.ndarray, "k numbers"]:
        found = np.zeros((len(where), self.observation_size), np.float32)
        for row, stage in zip(found, self._posed(where), strict=True):
            pose = stage.poses()
            row[: len(pose)] = pose
        found[:, POSE:] = state[:, : self.hand]
        return found

    def reset(self, where: Int[np.ndarray, " k"], rngs: Sequence[np.random.Generator]) -> Num[np.ndarray, "k *obs"]:
        state = self.world.reset(where, rngs)
        if self.painter is None:
            return self._poses(where, state)
        self.stack.restart(where, self._frames(where, state))
        return self.stack.seen[where]

    def step(self, action: np.ndarray) -> Stepped:
        state, reward, terminated, success = self.world.step(action)
        every = np.arange(len(state))
        if self.painter is None:
            return self._poses(every, state), reward, terminated, success
        self.stack.push(self._frames(every, state))
        return self.stack.seen, reward, terminated, success

    def get_state(self) -> State:
        seen = {} if self.shown is None else {self.shown: self.stack.seen.copy()}
        return self.world.get_state() | seen

    def set_state(self, state: State) -> None:
        self.world.set_state({name: array for name, array in state.items() if name != self.shown})
        if self.shown is not None:
            self.stack.seen[:] = state[self.shown]

    def render(self, index: int) -> np.ndarray:
        """The newest picture that the policy sees, every pixel enlarged."""
        return enlarged(self.stack.seen[index])

    def close(self) -> None:
        if self.painter is not None:
            self.painter.close()
        self.world.close()


def check_settings(camera: str, image_size: int, frame_stack: int, renderer: str) -> None:
    if renderer not in RENDERERS:
        raise unknown("renderer", renderer, RENDERERS)
    if camera not in CAMERAS:
        raise unknown("camera", camera, CAMERAS)
    if image_size < SMALLEST:
        raise UserError(f"image_size={image_size}; want {SMALLEST} pixels or more, 84 is usual")
    if frame_stack < 1:
        raise UserError(f"frame_stack={frame_stack}; want 1 or more, 3 is usual")
