"""The physics of H1's worlds on a GPU: MuJoCo Warp, called from JAX through MJX.

A world is what MuJoCo begins a step from (positions, velocities, the solver's warm start) and nothing else: Data is
made anew for every action, so that a run which was stopped goes on as one that was not.
"""

import importlib.metadata
import importlib.util
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from sphere.envs.humanoidbench import FRAME_SKIP, places, simulator
from sphere.envs.humanoidbench_worlds import Simulated, measured, touching
from sphere.errors import UserError

CONTACTS = 96
"""Room for contacts, and for pairs of geoms that may touch, per world; all worlds share it. Random actions made at most
26, on pole (12 falls of 100 actions on each of walk, pole, slide and stair, mujoco 3.17 on a CPU)."""
CONSTRAINTS = 256
"""Rows of constraints of a world; contacts beyond them would be ignored. There: at most 104."""

INSTALL = "pip install 'sphere-rl[warp]'"
ELSE = "or use --simulator cpu"


class Inner(NamedTuple):
    """All that a step begins from."""

    qpos: Float[Array, "world qpos"]
    qvel: Float[Array, "world qvel"]
    warmstart: Float[Array, "world qvel"]


def check_installed() -> None:
    """Refuse where MJX or Warp is missing."""
    try:
        found = importlib.util.find_spec("mujoco.mjx") and importlib.util.find_spec("warp")
    except ModuleNotFoundError:  # mujoco itself
        found = None
    if not found:
        raise UserError(f"--simulator gpu needs MuJoCo Warp, which is not installed: {INSTALL}, {ELSE}")


def check_gpu() -> None:
    """Refuse where there is no NVIDIA GPU that jax uses."""
    if jax.default_backend() != "gpu":
        raise UserError(
            f"--simulator gpu needs an NVIDIA GPU, and jax has found none here (it uses {jax.default_backend()}); on a "
            f"machine that has one install jax[cuda13], {ELSE}"
        )


def prepared(model: Any) -> Any:
    """The model with one contact for each pair of convex bodies, as MuJoCo 3.3.0 makes them: several are the default
    of later versions, and move the robot by 5e-3 in an action where it has fallen."""
    disable = simulator().mjtDisableBit
    if hasattr(disable, "mjDSBL_MULTICCD"):  # before that, several had to be asked for
        model.opt.disableflags |= int(disable.mjDSBL_MULTICCD)
    return model


class Mjx:
    """`sphere.envs.humanoidbench_worlds.Physics` by MJX.

    impl: "warp", or "jax" where there is no GPU, for models with simple geoms.
    """

    def __init__(self, model: Any, worlds: int, impl: str = "warp") -> None:
        from mujoco import mjx

        mujoco, self.mjx, self.count = simulator(), mjx, worlds
        model = prepared(model)
        room = {"naconmax": CONTACTS * worlds, "njmax": CONSTRAINTS} if impl == "warp" else {}
        self.model, self.blank = mjx.put_model(model, impl=impl), mjx.make_data(model, impl=impl, **room)
        self.places = places(model)
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        mujoco.mj_forward(model, data)
        # Of the keyframe without noise: the solver converges from there, and a forward pass for every reset is saved.
        self.warmstart = np.asarray(data.qacc_warmstart, np.float32)
        self.name = f"mujoco {mujoco.__version__}, {impl}"
        if impl == "warp":
            self.name += f" {importlib.metadata.version('warp-lang')}"

    @property
    def bytes_per_world(self) -> int:
        """Of its data, at least; a step reads one and writes another."""
        made = jax.eval_shape(lambda: self._data(self._worlds(), jnp.zeros((self.count, self.model.nu))))
        return 2 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made)) // self.count

    def _worlds(self) -> Inner:
        return self.reset(jnp.zeros((self.count, self.model.nq)), jnp.zeros((self.count, self.model.nv)))

    def reset(self, qpos: Float[Array, "world qpos"], qvel: Float[Array, "world qvel"]) -> Inner:
        return Inner(qpos, qvel, jnp.tile(self.warmstart, (len(qpos), 1)))

    def _data(self, worlds: Inner, control: Float[Array, "world act"]) -> Any:
        def one(own: Inner, ctrl: Array) -> Any:
            return self.blank.replace(qpos=own.qpos, qvel=own.qvel, qacc_warmstart=own.warmstart, ctrl=ctrl)

        return jax.vmap(one)(worlds, control)

    def step(self, worlds: Inner, control: Float[Array, "world act"]) -> tuple[Inner, Simulated]:
        def substep(data: Any, _: None) -> tuple[Any, None]:
            return jax.vmap(self.mjx.step, in_axes=(None, 0))(self.model, data), None

        data, _ = jax.lax.scan(substep, self._data(worlds, control), None, length=FRAME_SKIP)
        found = measured(
            self.places,
            data.qpos,
            data.site_xpos,
            data.xmat,
            data.actuator_force,
            data.sensordata,
            self._touched(data._impl),
        )
        return Inner(data.qpos, data.qvel, data.qacc_warmstart), Simulated(data.qpos, data.qvel, found)

    def _touched(self, own: Any) -> Bool[Array, " world"]:
        """Which worlds' robots touch a pole."""
        nobody = jnp.zeros(self.count, bool)
        if not self.places.poles.any():
            return nobody
        if not hasattr(own, "contact__geom"):
            contact = own.contact
            return jnp.any(touching(self.places, contact.geom, contact.dist, contact.includemargin), axis=1)
        # Warp has the contacts of all worlds in one list
        hits = touching(self.places, own.contact__geom, own.contact__dist, own.contact__includemargin)
        hits &= jnp.arange(len(hits)) < own.nacon.reshape(())
        # Whole numbers: of these a GPU knows that the order does not matter, and takes them all at once. Others it
        # would take one after the other, thousands of them, because programs are compiled for the same bits every time.
        return jnp.zeros(self.count, jnp.int32).at[own.contact__worldid].max(hits.astype(jnp.int32)) > 0
