"""Rewards of HumanoidBench against their definition, row by row."""

import math

import numpy as np
import pytest

from sphere.envs.humanoidbench import TASKS
from sphere.envs.humanoidbench_rewards import Readings


def tolerance(x, low=0.0, high=0.0, *, margin, shape):
    """One number by the definition: 1 within bounds, else a shape of the distance in margins."""
    if low <= x <= high:
        return 1.0
    d = (low - x if x < low else x - high) / margin
    return {"gaussian": 0.1 ** (d * d), "linear": max(1 - d, 0), "quadratic": max(1 - d * d, 0)}[shape]


def expected(task, height, head, left, right, up, force, velocity, touched):
    """The rewards as a person would write them for one robot."""
    control = (4 + np.mean([tolerance(f, margin=10, shape="quadratic") for f in force])) / 5
    lean = 0.5 if task in ("slide", "stair") else 0.9
    upright = tolerance(up, lean, math.inf, margin=1.9, shape="linear")
    tall = tolerance(head, 1.65, math.inf, margin=1.65 / 4, shape="gaussian")
    if task in ("slide", "stair"):
        tall = tolerance(head - left, 1.2, math.inf, margin=0.45, shape="gaussian")
        tall *= tolerance(head - right, 1.2, math.inf, margin=0.45, shape="gaussian")
    if task == "stand":
        still = np.mean([tolerance(v, margin=2, shape="gaussian") for v in velocity[:2]])
        return control * tall * upright * still
    speed = {"run": 5.0, "pole": 0.5}.get(task, 1.0)
    move = (5 * tolerance(velocity[0], speed, math.inf, margin=speed, shape="linear") + 1) / 6
    if task == "pole":
        return (0.5 * control * tall * upright + 0.5 * move) * (0.1 if touched else 1)
    return control * tall * upright * move


def scenes(n, seed=0):
    rng = np.random.default_rng(seed)
    feet = rng.uniform(-0.1, 1, (2, n))
    force = rng.normal(scale=rng.choice([0.0, 5.0, 40.0], (n, 1)), size=(n, 19))
    velocity = rng.normal(scale=rng.choice([0.0, 1.0, 6.0], (n, 1)), size=(n, 3))
    head, up = rng.uniform(0, 2.2, n), rng.uniform(-1, 1, n)
    return Readings(rng.uniform(0, 1, n), head, *feet, up, force, velocity, rng.uniform(size=n) < 0.5)


@pytest.mark.parametrize("task", TASKS)
def test_rewards_are_those_of_their_definition_row_by_row(task):
    measured = scenes(200)
    reward = TASKS[task].reward(measured)
    np.testing.assert_allclose(reward, [expected(task, *row) for row in zip(*measured, strict=True)], rtol=1e-12)
    assert reward.min() >= 0
    assert reward.max() <= 1
    for part in (slice(0, 1), slice(3, 12), slice(5, 200)):
        np.testing.assert_array_equal(TASKS[task].reward(Readings(*(array[part] for array in measured))), reward[part])
