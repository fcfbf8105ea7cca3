"""H1's rewards, ends and resets in JAX against the exact CPU environments and the recorded traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from h1_physics import OnCpu
from test_humanoidbench import TRACES, models  # noqa: F401 - a fixture
from test_humanoidbench_rewards import scenes

from sphere.envs import humanoidbench_worlds as h1
from sphere.envs import worlds
from sphere.envs.humanoidbench import NOISE, TASKS, HumanoidBench, simulator
from sphere.envs.humanoidbench_rewards import Readings
from sphere.envs.humanoidbench_worlds import H1Worlds

pytestmark = pytest.mark.usefixtures("models_compiled_once")
CLOSE = 1e-5
"""Of rewards in float32."""
MOST = 200
"""Contacts of a robot."""


def single(measured):
    return Readings(*(jnp.asarray(a, jnp.float32 if a.dtype == np.float64 else None) for a in measured))


def in_jax(task, measured):
    """Reward and end by a compiled program in float32."""
    program = jax.jit(lambda m: (TASKS[task].reward(m), TASKS[task].terminated(m)))
    reward, terminated = program(single(measured))
    assert reward.dtype == jnp.float32
    return np.asarray(reward), np.asarray(terminated)


def edges(n=400):
    """Scenes on both sides of every bar, as near as float32 tells apart, and at both ends of every tolerance."""
    rng = np.random.default_rng(1)
    near = rng.choice([-1e-5, -1e-6, 0.0, 1e-6, 1e-5], n)
    base = scenes(n, seed=2)
    return base._replace(
        height=rng.choice([0.2, 0.5], n) + near,
        upright=rng.choice([0.1, 0.5, 0.9, -1.0, 1.0], n) + near,
        head=rng.choice([1.65, 1.2, 1.65 - 1.65 / 4], n) + near,
        force=rng.choice([0.0, 10.0, -10.0], (n, 1)) + rng.choice([-1e-5, 0.0, 1e-5], (n, 19)),
        velocity=np.stack([rng.choice([0.0, 0.5, 1.0, 5.0, -5.0], n) + near] * 3, axis=1),
        touched=rng.uniform(size=n) < 0.5,
    )


@pytest.mark.parametrize("task", TASKS)
def test_rewards_and_ends_in_float32_are_those_of_the_cpu(task):
    for measured in (scenes(500), edges()):
        reward, terminated = in_jax(task, measured)
        np.testing.assert_allclose(reward, TASKS[task].reward(measured), atol=CLOSE, rtol=0)
        name, least = TASKS[task].least
        told_apart = np.abs(getattr(measured, name) - least) > 2e-8  # else it is the same number in float32
        np.testing.assert_array_equal(terminated[told_apart], TASKS[task].terminated(measured)[told_apart])
        assert 0 < terminated.sum() < len(terminated)


def test_a_touched_pole_takes_nine_tenths_and_nothing_else_does():
    measured = edges()
    touched, free = (in_jax("pole", measured._replace(touched=np.full(400, one)))[0] for one in (True, False))
    np.testing.assert_allclose(touched, 0.1 * free, rtol=1e-6)
    for task in set(TASKS) - {"pole"}:
        one, other = (in_jax(task, measured._replace(touched=np.full(400, flag)))[0] for flag in (True, False))
        np.testing.assert_array_equal(one, other)


def arrays(data):
    """MuJoCo's arrays as MJX has them, in float32, and whether a pole is touched by contacts as they are listed."""
    xmat = data.xmat.reshape(-1, 3, 3)
    fields = (data.qpos, data.site_xpos, xmat, data.actuator_force, data.sensordata)
    geoms, distance, margin = np.zeros((MOST, 2), int), np.full(MOST, np.inf, np.float32), np.zeros(MOST, np.float32)
    contacts = zip(
        (geoms, distance, margin), (data.contact.geom, data.contact.dist, data.contact.includemargin), strict=True
    )
    for to, values in contacts:
        to[: data.ncon] = values
    return [*(np.asarray(one, np.float32).copy() for one in fields), geoms, distance, margin]


def from_arrays(task, batch, rows):
    """Reward and end of every row by the JAX functions, of simulator data alone."""
    *columns, geoms, distance, margin = [jnp.stack(column) for column in zip(*rows, strict=True)]
    touched = jnp.any(h1.touching(batch.places, geoms, distance, margin), axis=1)
    measured = h1.measured(batch.places, *columns, touched)
    reward, terminated = jax.jit(lambda m: (TASKS[task].reward(m), TASKS[task].terminated(m)))(measured)
    return np.asarray(reward), np.asarray(terminated), np.asarray(touched)


def agree(task, batch, rows, wanted):
    """Reward, end and touch of every row are those wanted; ends and touches."""
    found = from_arrays(task, batch, rows)
    rewards, *flags = (np.array(column) for column in zip(*wanted, strict=True))
    np.testing.assert_allclose(found[0], rewards, atol=CLOSE, rtol=0)
    for one, want in zip(found[1:], flags, strict=True):
        np.testing.assert_array_equal(one, want)
    return found[1:]


@pytest.mark.parametrize("task", TASKS)
def test_recorded_states_give_the_recorded_rewards_and_ends(models, task):  # noqa: F811
    if simulator().__version__ != HumanoidBench.mujoco_version:
        pytest.skip(f"recorded under mujoco {HumanoidBench.mujoco_version}, this is {simulator().__version__}")
    batch, rows, wanted = HumanoidBench(task, 1), [], []
    with np.load(TRACES) as file:
        for episode in range(3):
            actions, obs, reward, terminated = (
                file[f"{task}/{episode}/{name}"] for name in ("actions", "obs", "reward", "terminated")
            )
            batch.start(0, obs[0].astype(np.float64))
            for action, *result in zip(actions, reward, terminated, strict=True):
                batch.step(action[None])
                rows.append(arrays(batch.data[0]))
                wanted.append((*result, batch.measured.touched[0]))
    agree(task, batch, rows, wanted)


@pytest.mark.parametrize("task", TASKS)
def test_random_states_give_the_rewards_and_ends_of_the_cpu(models, task):  # noqa: F811
    """Poses anywhere in the air, on the ground and, for pole, at a pole; two actions from each."""
    rng, batch, rows, wanted = np.random.default_rng(3), HumanoidBench(task, 1), [], []
    for i in range(40):
        state = np.concatenate([batch.model.key_qpos[0], rng.normal(0, 0.5, 25)])
        state[:2] = (1.0, 0.75) if i % 4 == 0 else rng.uniform(-0.3, 3, 2)
        state[2] = rng.uniform(0.1, 1.2)
        state[3:7] = rng.normal([1, 0, 0, 0], 0.1 if i % 2 else 0.6)
        state[7:26] += rng.normal(0, 0.3, 19)
        batch.start(0, state)
        for _ in range(2):
            _, reward, terminated, _ = batch.step(rng.uniform(-1, 1, (1, 19)))
            rows.append(arrays(batch.data[0]))
            wanted.append((reward[0], terminated[0], batch.measured.touched[0]))
    terminated, touched = agree(task, batch, rows, wanted)
    assert 0 < terminated.sum() < len(terminated)
    if task == "pole":
        assert 0 < touched.sum() < len(touched)


@pytest.mark.parametrize("task", TASKS)
def test_worlds_are_the_cpu_environments_where_their_physics_is(models, task):  # noqa: F811
    """Same starts, same actions: observations to float32, rewards to 1e-5, the same ends, time limits and successes."""
    made = H1Worlds(task, 3, horizon=25, physics=OnCpu)
    program = jax.jit(lambda running, action: worlds.step(made, running, action))
    stream = worlds.streams(np.array([7], np.uint32), 1, task, 3)
    running, obs = jax.jit(lambda s: worlds.start(made, s, jnp.zeros(3, jnp.int32)))(stream)
    batch, elapsed, ends = HumanoidBench(task, 3), np.zeros(3, int), 0
    for i in range(3):
        batch.start(i, np.asarray(obs[i], np.float64))
    rng = np.random.default_rng(0)
    for _ in range(60):
        # their controls have no rounding between product and sum, which a compiler may or may not leave out
        action = rng.choice(np.array([-1.5, -1, -0.5, 0, 1, 1.5], np.float32), (3, 19))
        running, moved = program(running, action)
        want, reward, terminated, success = batch.step(np.clip(action, -1, 1))
        elapsed += 1
        truncated = (elapsed >= 25) & ~terminated
        np.testing.assert_array_equal(moved.final_obs, want.astype(np.float32))
        np.testing.assert_allclose(moved.reward, reward, atol=CLOSE, rtol=0)
        for came, wanted in zip(moved[3:6], (terminated, truncated, success), strict=True):
            np.testing.assert_array_equal(came, wanted)
        for i in np.flatnonzero(terminated | truncated).tolist():
            ends += 1
            elapsed[i] = 0
            assert np.abs(moved.obs[i, :26] - batch.model.key_qpos[0]).max() <= NOISE * 1.001
            assert (moved.obs[i, 26:] == 0).all()
            batch.start(i, np.asarray(moved.obs[i], np.float64))
        going = ~(terminated | truncated)
        np.testing.assert_array_equal(moved.obs[going], moved.final_obs[going])
    assert ends >= 6
