"""Stand-ins for GPU physics, for `H1Worlds` on a machine without a GPU: the CPU's own MuJoCo, called from a program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sphere.envs.humanoidbench import FRAME_SKIP, places, simulator
from sphere.envs.humanoidbench_worlds import Simulated, measured


class OnCpu:
    """Exact: a world is the bits of MuJoCo's float64 state, and every action is the call that `HumanoidBench` makes.

    A reset is keyframe, forward, state, forward, as there."""

    def __init__(self, model: Any, worlds: int) -> None:
        self.mujoco, self.model = simulator(), model
        self.spec = self.mujoco.mjtState.mjSTATE_INTEGRATION.value
        self.size = self.mujoco.mj_stateSize(model, self.spec)
        self.data, self.places = self.mujoco.MjData(model), places(model)
        self.name = f"mujoco {self.mujoco.__version__}, cpu"

    def _bits(self) -> np.ndarray:
        state = np.empty(self.size)
        self.mujoco.mj_getState(self.model, self.data, state, self.spec)
        return state.view(np.uint32)

    def reset(self, qpos, qvel):
        def start(qpos, qvel):
            rows = []
            for position, velocity in zip(qpos, qvel, strict=True):
                self.mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
                self.mujoco.mj_forward(self.model, self.data)
                self.data.qpos[:], self.data.qvel[:] = position, velocity
                self.mujoco.mj_forward(self.model, self.data)
                rows.append(self._bits())
            return np.stack(rows)

        return jax.pure_callback(start, jax.ShapeDtypeStruct((len(qpos), 2 * self.size), jnp.uint32), qpos, qvel)

    def step(self, worlds, control):
        count, model = len(worlds), self.model
        shapes = (
            *((model.nq,), (model.nv,), (model.nsite, 3), (model.nbody, 3, 3), (model.nu,), (model.nsensordata,)),
        )
        found = [jax.ShapeDtypeStruct((count, *shape), jnp.float32) for shape in shapes]
        bits = jax.ShapeDtypeStruct(worlds.shape, jnp.uint32)
        touched = jax.ShapeDtypeStruct((count,), jnp.bool_)
        bits, touched, *arrays = jax.pure_callback(self._step, (bits, touched, *found), worlds, control)
        return bits, Simulated(*arrays[:2], measured(self.places, arrays[0], *arrays[2:], touched))

    def _step(self, worlds, control):
        data, rows, poles = self.data, [], self.places.poles
        for bits, own in zip(np.asarray(worlds), np.asarray(control), strict=True):
            self.mujoco.mj_setState(self.model, data, np.array(bits).view(np.float64), self.spec)
            data.ctrl[:] = own
            self.mujoco.mj_step(self.model, data, FRAME_SKIP)
            xmat = data.xmat.reshape(-1, 3, 3)
            fields = (data.qpos, data.qvel, data.site_xpos, xmat, data.actuator_force, data.sensordata)
            touched = np.bool_(data.ncon > 0 and poles[data.contact.geom].any())
            rows.append((self._bits(), touched, *(np.asarray(one, np.float32).copy() for one in fields)))
        return tuple(np.stack(column) for column in zip(*rows, strict=True))
