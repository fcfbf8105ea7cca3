"""GPU physics as far as a machine without a GPU can tell: MJX on a small model against MuJoCo, and what is refused."""

import importlib.util
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sphere.envs import humanoidbench_mjx as h1_mjx
from sphere.envs.humanoidbench import FRAME_SKIP, ModelIndices, places
from sphere.envs.humanoidbench_worlds import touching
from sphere.errors import UserError

ROBOT = """
<mujoco>
  <option timestep="0.002" solver="Newton" iterations="100" ls_iterations="50"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 1"/>
    <geom name="pole_r1_c1" type="capsule" fromto="0.6 0 0 0.6 0 2" size="0.05"/>
    <body name="pelvis" pos="0 0 0.5">
      <freejoint/>
      <geom type="sphere" size="0.2" mass="5"/>
      <site name="left_foot" pos="0 0.1 -0.3"/>
      <site name="right_foot" pos="0 -0.1 -0.3"/>
      <body name="torso_link" pos="0 0 0.3">
        <joint name="waist" type="hinge" axis="0 1 0" damping="1"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.3" size="0.08" mass="3"/>
        <site name="head" pos="0 0 0.4"/>
      </body>
    </body>
  </worldbody>
  <actuator><position joint="waist" kp="50" ctrlrange="-1 1"/></actuator>
  <sensor><touch site="head"/><subtreelinvel name="pelvis_subtreelinvel" body="pelvis"/></sensor>
  <keyframe><key qpos="0 0 0.5 1 0 0 0 0.1"/></keyframe>
</mujoco>
"""


def states(model, count):
    """Of the small robot: in the air, on the floor and at the pole."""
    rng = np.random.default_rng(0)
    qpos = np.tile(model.key_qpos[0], (count, 1))
    qpos[:, 0] = np.where(np.arange(count) % 2, rng.uniform(0.3495, 0.3515, count), 0.0)
    qpos[:, 2] = np.where(np.arange(count) % 3, rng.uniform(0.33, 0.6, count), 0.199)
    qpos[:, 7] += rng.normal(0, 0.2, count)
    qvel = rng.normal(0, 0.1, (count, model.nv))
    qvel[:, 0] = 0.4  # towards the pole
    return qpos, qvel, rng.uniform(-1, 1, (count, model.nu))


@pytest.fixture
def model():
    pytest.importorskip("mujoco.mjx", reason="mujoco-mjx is not installed (sphere-rl[warp])")
    import mujoco

    return mujoco.MjModel.from_xml_string(ROBOT)


def test_an_action_by_mjx_is_that_of_mujoco(model):
    import mujoco

    count = 8
    qpos, qvel, control = states(model, count)
    physics = h1_mjx.Mjx(model, count, impl="jax")
    assert physics.name == f"mujoco {mujoco.__version__}, jax"
    given = [jnp.asarray(one, jnp.float32) for one in (qpos, qvel, control)]
    inner = physics.reset(*given[:2])
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(inner.warmstart, np.tile(data.qacc_warmstart, (count, 1)), rtol=1e-6)
    with jax.numpy_rank_promotion("allow"):  # MJX's own code needs it
        _, found = jax.jit(physics.step)(inner, given[2])
    where, poles = places(model), places(model).poles
    for i in range(count):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = (np.asarray(one[i], np.float64) for one in given)
        mujoco.mj_step(model, data, FRAME_SKIP)
        np.testing.assert_allclose(found.qpos[i], data.qpos, atol=2e-4)
        np.testing.assert_allclose(found.qvel[i], data.qvel, atol=2e-2)
        measured = found.measured
        heights = [data.site_xpos[site, 2] for site in where.sites]
        came = [measured.height[i], measured.head[i], measured.left_foot[i], measured.right_foot[i]]
        np.testing.assert_allclose(came, [data.qpos[2], *heights], atol=2e-4)
        np.testing.assert_allclose(measured.upright[i], data.xmat[where.torso, 8], atol=2e-4)
        np.testing.assert_allclose(measured.force[i], data.actuator_force, atol=5e-2)
        np.testing.assert_allclose(measured.velocity[i], data.sensordata[1:4], atol=2e-2)
        assert bool(measured.touched[i]) == bool(data.ncon > 0 and poles[data.contact.geom].any())
    assert 0 < int(found.measured.touched.sum()) < count
    assert physics.bytes_per_world > 1000


def test_contacts_of_all_worlds_in_one_list_are_told_apart():
    """As Warp has them: a contact says which world it is of, and what stands behind the last one is not meant."""
    where = ModelIndices(0, 0, (0, 1, 2), np.array([False, True, False]))
    physics = SimpleNamespace(places=where, count=4)
    own = SimpleNamespace(
        contact__geom=jnp.array([[0, 2], [1, 2], [2, 1], [0, 1], [1, 2], [-1, -1]]),
        contact__dist=jnp.array([-1.0, -1.0, 0.5, -0.1, -1.0, -1.0]),
        contact__includemargin=jnp.zeros(6),
        contact__worldid=jnp.array([0, 2, 1, 3, 1, 0]),
        nacon=jnp.array([4]),
    )
    np.testing.assert_array_equal(h1_mjx.Mjx._touched(physics, own), [False, False, True, True])
    np.testing.assert_array_equal(
        touching(where, own.contact__geom, own.contact__dist, own.contact__includemargin),
        [False, True, False, True, True, False],
    )


def test_several_contacts_of_a_pair_are_switched_off_where_they_are_the_default(monkeypatch):
    flags = {"mjDSBL_MULTICCD": 64}
    monkeypatch.setattr(h1_mjx, "simulator", lambda: SimpleNamespace(mjtDisableBit=SimpleNamespace(**flags)))
    model = SimpleNamespace(opt=SimpleNamespace(disableflags=3))
    assert h1_mjx.prepared(model).opt.disableflags == 67
    flags.clear()
    monkeypatch.setattr(h1_mjx, "simulator", lambda: SimpleNamespace(mjtDisableBit=SimpleNamespace()))
    assert h1_mjx.prepared(model).opt.disableflags == 67


def test_a_missing_extra_and_a_missing_gpu_are_said_with_their_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"not installed: pip install 'sphere-rl\[warp\]', or use --simulator cpu"):
        h1_mjx.check_installed()
    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    h1_mjx.check_installed()
    if jax.default_backend() != "gpu":
        with pytest.raises(UserError, match=r"needs an NVIDIA GPU.*uses cpu.*or use --simulator cpu"):
            h1_mjx.check_gpu()
