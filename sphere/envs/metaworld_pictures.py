"""MetaWorld's scenes as pictures show them.

A person who looks at MetaWorld sees its sites: goals, handles, the ends of the fingers. A renderer on a GPU draws geoms
only. So pictures are made from a model of their own, the package's with a sphere in place of every site that can be
seen. Only poses are computed in it, from positions that physics has found: pictures cannot change an episode.

Shadows and reflections are left out: on a CPU they would take most of the time (docs/pixels.md).
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from sphere.envs import offscreen
from sphere.envs.metaworld_origin import trim
from sphere.envs.warp_process import geom_name, staged
from sphere.errors import unknown

GOALS = ("goal", "goal_close")
"""Sites in the world's own frame that a reset moves to the goal."""

Row = Float[np.ndarray, " k"]


class PosedScene:
    """The scene of a task, posed as one environment after another; `mujoco` and `physics` are its simulation's."""

    def __init__(self, mujoco: Any, path: str, physics: Any, placed: str, camera: str) -> None:
        self.mujoco, self.physics = mujoco, physics
        self.model = staged(mujoco, path)
        trim()
        self.data = mujoco.MjData(self.model)
        self.slot = self.model.body(placed).id if placed else None
        self.goals = [g for g in range(self.model.ngeom) if self.model.geom(g).name in map(geom_name, GOALS)]
        self.goals = [g for g in self.goals if self.model.geom_bodyid[g] == 0]
        names = [self.model.camera(i).name for i in range(self.model.ncam)]
        if camera not in names:
            raise unknown("camera", camera, names)
        self.camera = names.index(camera)
        self._settle()
        self.upside_down = bool(self.data.cam_xmat[self.camera].reshape(3, 3)[2, 1] < -0.1)
        """Some of the package's cameras hang so."""

    def pose(self, data: Any, placed: Row, target: Row) -> None:
        """Put everything where it is in a simulation."""
        model, mine = self.model, self.data
        model.body_pos[:] = self.physics.body_pos
        if self.slot is not None:
            model.body_pos[self.slot] = placed
        model.geom_pos[self.goals] = target
        mine.qpos[:], mine.mocap_pos[:], mine.mocap_quat[:] = data.qpos, data.mocap_pos, data.mocap_quat
        self._settle()

    def _settle(self) -> None:
        for compute in (self.mujoco.mj_kinematics, self.mujoco.mj_comPos, self.mujoco.mj_camlight):
            compute(self.model, self.data)

    def poses(self) -> Row:
        """All that a renderer has to know of the present pose, as `warp_process` wants it."""
        data, camera = self.data, self.camera
        parts = (data.geom_xpos, data.geom_xmat, data.cam_xpos[camera], data.cam_xmat[camera])
        return np.concatenate([part.ravel() for part in (*parts, data.light_xpos, data.light_xdir)])


class Painter:
    """MuJoCo's own renderer on a stage."""

    def __init__(self, stage: PosedScene, size: int) -> None:
        mujoco = stage.mujoco
        self.stage = stage
        stage.model.vis.global_.offwidth = stage.model.vis.global_.offheight = size
        self.renderer = offscreen.renderer(mujoco, stage.model, size, size)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self.renderer.scene.flags[flag] = False
        self.option = mujoco.MjvOption()
        self.option.sitegroup[:] = 0  # there are geoms in their place

    def paint(self) -> np.ndarray:
        """The stage as it is posed, right side up: uint8 [size, size, 3]."""
        self.renderer.update_scene(self.stage.data, camera=self.stage.camera, scene_option=self.option)
        picture = self.renderer.render()
        return picture[::-1, ::-1] if self.stage.upside_down else picture

    def close(self) -> None:
        self.renderer.close()
