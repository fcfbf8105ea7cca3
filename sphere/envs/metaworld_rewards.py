"""MetaWorld's rewards (its version 2) and success flags of the ten tasks, for all environments of a batch at once.

A task says between which points it measures (`DistanceTerm`). `metaworld_scene` measures, and has the shapes that
rewards are put together from. Results are those of the package to the last digits, for actions of either precision.
"""

import numpy as np

from sphere.envs.metaworld_scene import (
    FROM_PAD,
    TINY,
    DistanceTerm,
    Flags,
    Scene,
    Vector,
    distance,
    gaussian,
    grasp_terms,
    grasped,
    hamacher,
    shaped,
    some,
    steepness,
    tail,
)

Result = tuple[Vector, Flags]


HAMMER = {
    **grasp_terms(radius=0.015, pad=0.02, xz=0.01),
    "head to target": DistanceTerm("object", "target", 0.02, lambda start: 0.2, shift=(0.16, 0.06, 0.0)),
}


LEVEL = np.array([1.0, 0.0, 0.0, 0.0])  # rotation of a hammer that lies or is held flat


def hammer_along(scene: Scene) -> None:
    """The handle is long: along it, any place is as good to grasp."""
    gap = scene.vector["xz"][:, 0]
    hand = np.minimum(np.maximum(scene.hand[:, 0], -0.525), 0.525)  # as observed
    np.copyto(gap, scene.tcp[:, 0] - hand, where=np.abs(scene.object[:, 0] - hand) < 0.07)


def hammer(scene: Scene) -> Result:
    lifted = scene.object[:, 2] > 0.02
    in_place = (0.1 * 6) * lifted + (0.9 * 6) * tail(scene.excess["head to target"])
    level = np.maximum(1 - distance(scene.rotation, LEVEL) / 0.4, 0)
    success = scene.extra[:, 0] > 0.09  # how far the nail is in

    def reward(grasp: Vector) -> Vector:
        value = (2 * grasp + in_place.astype(grasp.dtype)) * level.astype(grasp.dtype)
        return np.where(success & (value > 5), 10.0, value)

    return shaped(grasped(scene), reward), success


TO_TARGET = DistanceTerm("object", "target", 0.05, lambda start: distance(start.object, start.target))
TO_TCP = DistanceTerm("object", "tcp")

# The way round the wall goes by a point at the object's own height, so that its margin moves with the object.
MIDPOINT, ROUND = (0.05, -0.77, 0.0), (3.0, 1.0, 0.0)
PUSH_WALL = {
    **grasp_terms(radius=0.015, pad=0.05, xz=0.005),
    "to target": TO_TARGET,
    "to tcp": TO_TCP,
    "to midpoint": DistanceTerm("object", "", 0.05, shift=MIDPOINT, weight=ROUND),
    "to midpoint at first": DistanceTerm("start object", "", shift=MIDPOINT, weight=ROUND),
}


def push_wall(scene: Scene) -> Result:
    away, grasp = scene.distance["to target"], grasped(scene)
    held = (scene.distance["to tcp"] < 0.02) & (scene.opening > 0)
    past = scene.object[:, 1] > 0.75

    def reward(grasp: Vector) -> Vector:
        reach = 2 * grasp
        push = np.where(past, reach + 1 + 4 + second.astype(grasp.dtype), reach + 1 + first.astype(grasp.dtype))
        return np.where(held, push, reach)

    if some(held):
        margin = scene.distance["to midpoint at first"] ** 2 + (scene.start.object[:, 2] - scene.object[:, 2]) ** 2
        beside = np.maximum(scene.distance["to midpoint"] - 0.05, 0) ** 2
        first = 4 * tail(beside * (9 / np.maximum(margin, TINY)))
        second = 3 * tail(scene.excess["to target"])
        value = shaped(grasp, reward)
    else:
        value = shaped(grasp, lambda grasp: 2 * grasp)
    return np.where(away < 0.05, 10.0, value), away <= 0.07


HANDLE = (0.0, 0.0, -0.01)
FAUCET_CLOSE = {
    "to target": DistanceTerm(
        "object", "target", 0.07, lambda start: np.abs(distance(start.object, start.target) - 0.07), shift=HANDLE
    ),
    "to tcp": DistanceTerm(
        "object", "tcp", 0.01, lambda start: np.abs(distance(start.object, start.tcp) - 0.01), shift=HANDLE
    ),
}


def faucet_close(scene: Scene) -> Result:
    reward = 4 * gaussian(scene.excess["to tcp"]) + 6 * tail(scene.excess["to target"])
    success = scene.distance["to target"] <= 0.07
    return np.where(success, 10.0, reward), success


PUSH_BACK = {
    "left": DistanceTerm("body leftpad", "object", weight=FROM_PAD),
    "right": DistanceTerm("object", "body rightpad", weight=FROM_PAD),
    "xz": grasp_terms(radius=0.0, pad=0.0, xz=0.01)["xz"],
    "to target": TO_TARGET,
    "to tcp": TO_TCP,
}


def push_back(scene: Scene) -> Result:
    y = scene.vectors[:, 1:3, 1]  # of "left" and "right", which come after the claws
    # The package means the pads' first place here, but holds a view of their present one.
    steep = steepness(np.abs(np.abs(y) - 0.05))
    inner = np.maximum(0.007 - y, 0)

    def pads(upper: float) -> Vector:
        d = np.maximum(inner, y - upper)
        d *= d
        d *= steep
        return d[:, 0] + d[:, 1]

    grasp = tail(pads(0.05) + scene.excess["xz"])
    caged = grasp > 0.95
    if some(caged):
        grasp = grasp + np.where(caged, tail(pads(0.01)), 0.0)
    grasp = grasp / 2
    away, in_place = scene.distance["to target"], tail(scene.excess["to target"])
    reward = hamacher(grasp, in_place)
    held = (scene.distance["to tcp"] < 0.01) & (scene.opening > 0) & (scene.opening < 0.55)
    if some(held):
        nearer = distance(scene.start.object, scene.start.target) - away > 0.01
        reward = np.where(held & nearer, reward + 1 + 5 * in_place, reward)
    return np.where(away < 0.05, 10.0, reward), away <= 0.07


INSIDE = np.array([0.05, 0.0, 0.0])  # of the container, from its handle
FLAT = (1.0, 1.0, 2.0)
STICK_PULL = {
    **grasp_terms(radius=0.014, pad=0.05, xz=0.01),
    "to container": DistanceTerm(
        "object",
        "second",
        0.05,
        lambda start: distance(start.other * np.array(FLAT), (start.object + INSIDE) * np.array(FLAT)),
        shift=(-0.05, 0.0, 0.0),
        weight=FLAT,
    ),
    "to target": DistanceTerm("object", "target", 0.05, lambda start: distance(start.other, start.target)),
    "container to target": DistanceTerm(
        "second", "target", 0.05, lambda start: distance(start.object, start.target), shift=(0.05, 0.0, 0.0)
    ),
    "handle to target": DistanceTerm("second", "target"),
    "to tcp": TO_TCP,
    "end to handle": DistanceTerm("extra", "second"),
}


def stick_pull(scene: Scene) -> Result:
    in_place = tail(scene.excess["to container"])
    x, y, z = scene.vector["end to handle"].T
    inserted = (x >= 0) & (np.abs(y) <= 0.04) & (np.abs(z) <= 0.06)
    success = inserted & (scene.distance["handle to target"] <= 0.12)
    reward = shaped(grasped(scene), lambda grasp: hamacher(grasp, in_place.astype(grasp.dtype)))
    lifted = scene.object[:, 2] - 0.01 > scene.start.other[:, 2]
    held = (scene.distance["to tcp"] < 0.02) & (scene.opening > 0) & lifted
    if some(held):
        home = 2 * tail(scene.excess["to target"]) + tail(scene.excess["container to target"])
        pulling = np.where(success, 10.0, 6 + in_place + home)
        carrying = np.where(inserted, pulling, 1 + 6 * in_place)
        reward = np.where(held, carrying, reward)
    return reward, success


def handle_terms(axis: int, upper: float) -> dict[str, DistanceTerm]:
    """For a handle that is moved along an axis of the room to within `upper` of the target."""
    weight = (float(axis == 0), float(axis == 1), float(axis == 2))
    return {
        "to target": DistanceTerm(
            "object",
            "target",
            upper,
            lambda start: np.abs(np.abs(start.other[:, axis] - start.target[:, axis]) - upper),
            weight=weight,
        ),
        "to tcp": DistanceTerm("object", "tcp", 0.02, lambda start: np.abs(distance(start.other, start.tcp) - 0.02)),
    }


HANDLE_PRESS_SIDE = handle_terms(axis=2, upper=0.02)


def handle_press_side(scene: Scene) -> Result:
    success = scene.distance["to target"] <= 0.02
    reward = 10 * tail(scene.excess["to tcp"] + scene.excess["to target"])
    return np.where(success, 10.0, reward), success


PUSH = {**grasp_terms(radius=0.015, pad=0.05, xz=0.005), "to target": TO_TARGET, "to tcp": TO_TCP}


def push(scene: Scene) -> Result:
    away, in_place = scene.distance["to target"], 5 * tail(scene.excess["to target"])
    held = (scene.distance["to tcp"] < 0.02) & (scene.opening > 0)

    def reward(grasp: Vector) -> Vector:
        reach = 2 * grasp
        return np.where(held, reach + (1 + reach + in_place.astype(grasp.dtype)), reach)

    return np.where(away < 0.05, 10.0, shaped(grasped(scene), reward)), away <= 0.05


SHELF_PLACE = {**grasp_terms(radius=0.02, pad=0.05, xz=0.01), "to target": TO_TARGET, "to tcp": TO_TCP}


def shelf_place(scene: Scene) -> Result:
    away, in_place = scene.distance["to target"], tail(scene.excess["to target"])
    height = scene.object[:, 2]
    lifted = height - 0.01 > scene.start.object[:, 2]
    held = (scene.distance["to tcp"] < 0.025) & (scene.opening > 0) & lifted
    grasp = grasped(scene, dense=False)

    def reach(grasp: Vector) -> Vector:
        return hamacher(grasp, in_place.astype(grasp.dtype))

    def carry(grasp: Vector) -> Vector:
        value = reach(grasp)
        # Under the shelf the package's bonus is a float64 and not rounded.
        return np.where(held, np.where(under, value + bonus, value + bonus.astype(grasp.dtype)), value)

    if some(held):
        aside, behind, _ = scene.vector["to target"].T
        low = (height > 0) & (height < 0.24) & (np.abs(aside) < 0.15)
        # Under the shelf the reward fades, behind its front edge it is gone: the way in is from above.
        under = low & (behind > -0.15) & (behind < 0)
        depth, drop = np.clip([behind / 0.15 + 1, 1 - height / 0.24], TINY, 1)
        placed = np.where(under, np.maximum(in_place - hamacher(depth, drop), 0), in_place)
        bonus = 1 + 5 * np.where(low & (behind > 0), 0.0, placed)
        value = shaped(grasp, carry)
    else:
        value = shaped(grasp, reach)
    return np.where(away < 0.05, 10.0, value), away <= 0.07


WINDOW_CLOSE = handle_terms(axis=0, upper=0.05)


def window_close(scene: Scene) -> Result:
    reach, in_place = gaussian(scene.excess["to tcp"]), tail(scene.excess["to target"])
    return 10 * hamacher(reach, in_place), scene.distance["to target"] <= 0.05


PEG_UNPLUG_SIDE = {**grasp_terms(radius=0.025, pad=0.05, xz=0.005), "to target": TO_TARGET, "to tcp": TO_TCP}


def peg_unplug_side(scene: Scene) -> Result:
    away, in_place = scene.distance["to target"], 5 * tail(scene.excess["to target"])
    out = (scene.opening > 0.5) & (scene.object[:, 0] - scene.start.object[:, 0] > 0.015)
    held = out & (scene.distance["to tcp"] < 0.035)

    def reward(grasp: Vector) -> Vector:
        reach = 2 * grasp
        return np.where(held, 1 + reach + in_place.astype(grasp.dtype), reach)

    return np.where(away <= 0.05, 10.0, shaped(grasped(scene, full=0.8), reward)), away <= 0.07
