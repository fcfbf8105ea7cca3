"""What the tests of MetaWorld and HumanoidBench share: seeded episodes, random play, and what every batch promises."""

import numpy as np
import pytest

from sphere import envs
from sphere.envs.offscreen import NoPictures


def rngs(*episodes, seed=0):
    return [np.random.default_rng([seed, 7, i, episode]) for i, episode in enumerate(episodes)]


def begun(suite, task, num_envs=2, **settings):
    batch = suite(task, num_envs, **settings)
    return batch, batch.reset(np.arange(num_envs), rngs(*[0] * num_envs))


def play(batch, steps, seed=0):
    """Random float32 actions; everything that came back, in one array."""
    shape = (steps, len(batch.data), len(batch.action_low))
    actions = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
    return np.stack([np.column_stack(batch.step(action)) for action in actions])


def played_in_a_pool(name, actions, workers, horizon):
    """All that a pool gives for these actions [time, env, act], from its first observation on."""
    with envs.make(name, num_envs=actions.shape[1], seed=0, workers=workers, horizon=horizon) as pool:
        rows = [pool.reset()[0]]
        for action in actions:
            obs, reward, terminated, truncated, infos = pool.step(action)
            rows.append(np.c_[obs, infos["final_obs"], reward, terminated, truncated, infos["success"]])
    return rows


def restored(fresh, state):
    """A fresh batch that goes on from the state of another one."""
    assert {name: (array.shape, array.dtype) for name, array in fresh.get_state().items()} == {
        name: (array.shape, array.dtype) for name, array in state.items()
    }
    fresh.set_state({name: array.copy() for name, array in state.items()})
    return fresh


def assert_a_picture_changes_nothing(batch, double, steps):
    """`double` is the same batch, of which no picture is taken."""
    play(batch, steps), play(double, steps)
    try:
        pictures = [batch.render(i) for i in range(2)]
    except NoPictures as error:
        pytest.skip(str(error))
    assert pictures[0].shape == (480, 480, 3)
    assert pictures[0].dtype == np.uint8
    assert pictures[0].std() > 10
    assert (pictures[0] != pictures[1]).any()
    np.testing.assert_array_equal(play(batch, 5), play(double, 5))
    batch.close()
