"""A pool whose pictures are drawn in one place for all environments: workers send poses, MuJoCo Warp draws them.

The renderer is a process with an interpreter of its own (`warp_process.py`), named by SPHERE_RENDERER, because it needs
a newer MuJoCo than the physics. To users the pool is one of images, as if workers had drawn them.
"""

import functools
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector.utils import batch_space

from sphere.envs import warp_process
from sphere.envs.batch import State
from sphere.envs.frame_stack import Stack, enlarged, frame_shape, with_numbers
from sphere.envs.handles import anonymous_memory
from sphere.envs.pool import Pool
from sphere.envs.sizes import Sizes
from sphere.errors import UserError

VARIABLE = "SPHERE_RENDERER"


def interpreter() -> str:
    return os.environ.get(VARIABLE, sys.executable)


@functools.cache
def check_renderer(python: str) -> None:
    """Refuse an interpreter without MuJoCo Warp."""
    ask = [python, "-c", "import mujoco_warp; mujoco_warp.create_render_context"]
    try:
        done = subprocess.run(ask, check=False, capture_output=True, text=True)
        why = (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else ""
    except OSError as error:
        why = str(error)
    if why:
        raise UserError(
            f"renderer=warp needs an interpreter with MuJoCo Warp, and {python} has none ({why}); make one by "
            "python -m venv renderer && renderer/bin/pip install 'mujoco-warp>=3.17', and set "
            f"{VARIABLE}=$PWD/renderer/bin/python"
        )


class Renderer:
    """The learner's side of the process that draws."""

    def __init__(self, worlds: int, size: int) -> None:
        self.worlds, self.size = worlds, size
        self.memory = anonymous_memory()
        self.process = subprocess.Popen(
            [interpreter(), "-P", warp_process.__file__, str(self.memory.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(self.memory.fileno(),),
            process_group=0,  # Ctrl-C in the terminal reaches the learner only
        )

    def load(self, scene: Mapping[str, Any]) -> str:
        """Another scene from here on; the device that draws it."""
        numbers, pixels = 12 * len(scene["geoms"]) + 12 + 6 * scene["lights"], self.size**2
        os.ftruncate(self.memory.fileno(), self.worlds * (4 * numbers + 4 * pixels))
        shared = mmap.mmap(self.memory.fileno(), 0)
        self.poses = np.frombuffer(shared, np.float32, self.worlds * numbers).reshape(self.worlds, -1)
        pictures = np.frombuffer(shared, np.uint8, self.worlds * pixels * 4, self.poses.nbytes)
        self.pictures = pictures.reshape(self.worlds, self.size, self.size, 4)
        if scene["upside_down"]:
            self.pictures = self.pictures[:, ::-1, ::-1]
        wanted = {"path": scene["path"], "camera": scene["camera"], "geoms": scene["geoms"]}
        return self._ask({"load": wanted | {"size": self.size, "worlds": self.worlds}})["device"]

    def draw(self, poses: np.ndarray) -> np.ndarray:
        """Pictures uint8 [world, size, size, 3] of poses [world, numbers]; what stands after a pose is left out."""
        self.poses[:] = poses[:, : self.poses.shape[1]]
        self._ask({"draw": True})
        return self.pictures[..., 2::-1].copy()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the renderer died with exit code {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(f"the renderer says: {answer['error']}")
        return answer

    def close(self) -> None:
        """It leaves when its input ends."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()
        self.memory.close()


class DrawnPool(Pool):
    """A `Pool` of a suite whose batches send poses (renderer="warp")."""

    device = ""
    """What draws."""

    def __init__(self, *arguments: Any) -> None:
        self._renderer: Renderer | None = None
        self._loaded = ""
        super().__init__(*arguments)
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _adopt(self, found: Any) -> np.dtype:
        """Rows hold poses, observations are images."""
        dtype = super()._adopt(found)
        sizes: Sizes = self.sizes
        size, frames, numbers = sizes.drawn
        height, width, channels = frame_shape(size, numbers)
        shape = (height, width, channels * frames)
        self.sizes = sizes._replace(observation=shape, type="u1", frames=frames, numbers=numbers)
        self.single_observation_space = Box(*self.sizes.space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._pose = sizes.observation[0] - numbers
        if self._renderer is None:
            self._renderer = Renderer(self.num_envs, size)
            self._stack = Stack(self.num_envs, (height, width, channels), frames)
        return dtype

    def _load(self) -> None:
        if self._renderer is not None and self._loaded != self.task:
            scenes = self._call("describe", [()] * len(self._parts))
            self.device, self._loaded = self._renderer.load(scenes[0]), self.task

    def _draw(self, rows: np.ndarray) -> np.ndarray:
        assert self._renderer is not None
        pictures = self._renderer.draw(rows)
        return with_numbers(pictures, rows[:, self._pose :]) if self.sizes.numbers else pictures

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """As of any pool."""
        rows, infos = super().reset(**options)
        self._load()
        self._stack.restart(np.arange(self.num_envs), self._draw(rows))
        return self._stack.seen.copy(), infos

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """As of any pool."""
        rows, reward, terminated, truncated, infos = super().step_wait()
        self._stack.push(self._draw(infos["final_obs"]))
        infos["final_obs"] = self._stack.seen.copy()
        begun = np.flatnonzero(infos["_final_obs"])
        if len(begun):
            self._stack.restart(begun, self._draw(rows)[begun])
        return self._stack.seen.copy(), reward, terminated, truncated, infos

    def _capture(self) -> State:
        return super()._capture() | {"seen": self._stack.seen.copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        """As of any pool."""
        super().set_state(state)
        self._load()
        self._stack.seen[:] = state["seen"]
        return self._stack.seen.copy()

    def render(self, *indices: int) -> tuple[Any, ...]:
        """The newest pictures of these environments, every pixel enlarged; of all if none is named."""
        return tuple(enlarged(self._stack.seen[i]) for i in indices or range(self.num_envs))

    def close(self, **options: Any) -> None:
        super().close(**options)
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
