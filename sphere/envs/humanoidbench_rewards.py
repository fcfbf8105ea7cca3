"""Rewards of HumanoidBench's H1 tasks for all environments at once, of numpy's arrays or of JAX's.

They are products of tolerances: 1 where a number is as wanted, falling with its distance from there in one of three
shapes. The order of products is the package's, so that the roundings are. Worker processes give float64 and have no
jax; simulators on a GPU give float32 inside a compiled program. The equations are the same.
"""

import math
from typing import Any, NamedTuple

from jaxtyping import Bool, Float

Row = Float[Any, " env"]
Array = Float[Any, "*shape"]

GAUSSIAN = math.sqrt(-2 * math.log(0.1))
"""Standard deviations at which a Gaussian has fallen to 0.1: its value at the margin."""

HEAD = 1.65
"""Height of the head above the floor, in metres, from which on the robot stands."""

HEAD_ABOVE_FOOT = 1.2
"""The same above a foot, where the floor is not level."""

POLE_TOUCHED = 0.1
"""Factor while the robot touches a pole."""


class Readings(NamedTuple):
    """What rewards and terminations are computed from.

    `height` is of after the step; all else is of before its last physics substep, as mujoco leaves it.
    """

    height: Row  # of the pelvis
    head: Row
    left_foot: Row
    right_foot: Row
    upright: Row  # z of the torso's own z axis
    force: Float[Any, "env act"]
    velocity: Float[Any, "env 3"]  # of the centre of mass
    touched: Bool[Any, " env"]  # a pole


def library(array: Any) -> Any:
    """numpy or jax.numpy: whose array it is."""
    return array.__array_namespace__()


def gaussian(x: Array) -> Array:
    return library(x).exp(-0.5 * (x * GAUSSIAN) ** 2)


def linear(x: Array) -> Array:
    return library(x).where(abs(x) < 1, 1 - x, 0.0)


def quadratic(x: Array) -> Array:
    return library(x).where(abs(x) < 1, 1 - x**2, 0.0)


def upright(measured: Readings, enough: float) -> Row:
    value = measured.upright
    return library(value).where(value >= enough, 1.0, linear((enough - value) / 1.9))


def tall(height: Row, enough: float, margin: float) -> Row:
    return library(height).where(height >= enough, 1.0, gaussian((enough - height) / margin))


def small_control(measured: Readings) -> Row:
    """Between 0.8 and 1: the mean over actuators, each of which counts below 10 Nm."""
    # Rows are contiguous, so numpy sums each of them in the same order however many there are.
    return (4 + quadratic(abs(measured.force) / 10).mean(axis=1)) / 5


def forward(measured: Readings, speed: float) -> Row:
    """Between 1/6 and 1, which is reached at `speed` (m/s)."""
    velocity = measured.velocity[:, 0]
    fast = library(velocity).where(velocity >= speed, 1.0, linear((speed - velocity) / speed))
    return (5 * fast + 1) / 6


def standing(measured: Readings) -> Row:
    return tall(measured.head, HEAD, HEAD / 4) * upright(measured, 0.9)


def stand(measured: Readings) -> Row:
    still = gaussian(abs(measured.velocity[:, :2]) / 2)
    return small_control(measured) * standing(measured) * ((still[:, 0] + still[:, 1]) / 2)


def walk(measured: Readings) -> Row:
    return small_control(measured) * standing(measured) * forward(measured, 1.0)


def run(measured: Readings) -> Row:
    return small_control(measured) * standing(measured) * forward(measured, 5.0)


def pole(measured: Readings) -> Row:
    reward = 0.5 * (small_control(measured) * standing(measured)) + 0.5 * forward(measured, 0.5)
    return library(reward).where(measured.touched, reward * POLE_TOUCHED, reward)


def climb(measured: Readings) -> Row:
    """Slide and stair: the head is measured from each foot, and a torso may lean more."""
    left = tall(measured.head - measured.left_foot, HEAD_ABOVE_FOOT, 0.45)
    right = tall(measured.head - measured.right_foot, HEAD_ABOVE_FOOT, 0.45)
    return left * right * upright(measured, 0.5) * small_control(measured) * forward(measured, 1.0)
