"""What a MetaWorld reward is made of: all distances of a step and how far each exceeds its bounds, for a whole batch.

With few environments a step costs as much as it has numpy calls. So all that a task measures (`DistanceTerm`) is
measured together, and every array has its full shape: numpy adds equal shapes three times faster than it broadcasts.

Most distances are judged by a long tail 1 / (1 + e), where the excess e is 0 within the bounds and 9 a margin beyond.
The Hamacher product a b / (a + b - a b), by which such numbers are combined, is then 1 / (1 + e_a + e_b).

The package computes with single numbers, so that under float32 actions everything that a finger's effort enters is
rounded to float32 (numpy's rule for a Python float beside a float32). `Grasp` keeps such values apart, and `shaped`
applies a formula to both kinds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

Points = Float[np.ndarray, "env 3"]
Vector = Float[np.ndarray, " env"]
Flags = Bool[np.ndarray, " env"]
Row = Float[np.ndarray, " k"]
Objects = tuple[tuple[str, str], ...]
"""Position and rotation of each object by name, "" where it has none."""

TINY = 1e-150
"""Stands for a margin of zero: nothing within the bounds, all but infinite outside, and no overflow when squared."""

FROM_PAD = (0.0, 1.0, 0.0)  # pads close along y
GRASP = ("left pad", "right pad", "xz")


class Start(NamedTuple):
    """What an episode began with."""

    target: Points
    object: Points
    tcp: Points  # tool centre point: the middle between the fingers
    other: Points  # a task's second position, where it has one


class DistanceTerm(NamedTuple):
    """The length of (a - b + shift) * weight between two points, and how it is judged."""

    a: str
    b: str
    upper: float = 0.0
    margin: Callable[[Start], Any] | None = None
    lower: float = -1.0
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    weight: tuple[float, float, float] = (1.0, 1.0, 1.0)


CLAWS = {"claws": DistanceTerm("body rightclaw", "body leftclaw")}
"""How far the gripper is open: measured in every task."""


def grasp_terms(radius: float, pad: float, xz: float) -> dict[str, DistanceTerm]:
    """For an object of a radius: both pads as near as `pad`, the fingers' middle as near as `xz` in the x-z plane.

    The pads' margins are how far they are from where the object began, so those distances are measured too.
    """
    return {
        "left pad": DistanceTerm("body leftpad", "object", pad, lower=radius, weight=FROM_PAD),
        "right pad": DistanceTerm("body rightpad", "object", pad, lower=radius, weight=FROM_PAD),
        "left pad at first": DistanceTerm("body leftpad", "start object", pad, weight=FROM_PAD),
        "right pad at first": DistanceTerm("body rightpad", "start object", pad, weight=FROM_PAD),
        "xz": DistanceTerm(
            "tcp",
            "object",
            xz,
            lambda start: distance(start.object[:, ::2], start.tcp[:, ::2]) - xz,
            weight=(1.0, 0.0, 1.0),
        ),
    }


def distance(a: Float[np.ndarray, "env k"], b: Float[np.ndarray, "#env k"] | Float[np.ndarray, " k"]) -> Vector:
    d = a - b
    return np.sqrt(np.vecdot(d, d))


def steepness(margin: Any) -> Any:
    """e of an excess by one metre, such that it is 9 for an excess by the margin."""
    return 9 / np.maximum(margin, TINY) ** 2


class Layout:
    """The columns of the table: a zero, bodies, sites, rotations, joints, and what we add to them."""

    ADDED = ("tcp", "start target", "start object", "start tcp", "start other")

    def __init__(self, model: Any, objects: Objects, extra: str) -> None:
        self.model, self.objects, self.extra = model, objects, extra
        sizes = [1, 3 * model.nbody, 3 * model.nsite, 4 * model.nbody, model.nq, 3 * len(self.ADDED)]
        self.bodies, self.sites, self.rotations, self.joints, self.added, self.width = np.cumsum(sizes).tolist()

    def reads(self, row: Row, data: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """Pairs of a part of a row and the simulation's array that it is a copy of, where they are of use."""
        pairs = [
            (row[self.bodies : self.sites].reshape(-1, 3), data.xpos),
            (row[self.sites : self.rotations].reshape(-1, 3), data.site_xpos),
        ]
        if any(rotation for _, rotation in self.objects):
            pairs.append((row[self.rotations : self.joints].reshape(-1, 4), data.xquat))
        if self.extra.startswith("joint"):
            pairs.append((row[self.joints : self.added], data.qpos))
        return pairs

    def at(self, name: str) -> list[int]:
        """Columns of "body hand", "site goal", "wxyz hammer", "start object", the task's "object", ...; zeros for
        ""."""
        aliases = {"object": self.objects[0][0], "second": self.objects[-1][0]}
        aliases |= {"extra": self.extra, "target": "start target"}
        name = aliases.get(name, name)
        if name in self.ADDED:
            return [self.added + 3 * self.ADDED.index(name) + k for k in range(3)]
        kind, _, name = name.partition(" ")
        match kind:
            case "body":
                return [self.bodies + 3 * self.model.body(name).id + k for k in range(3)]
            case "site":
                return [self.sites + 3 * self.model.site(name).id + k for k in range(3)]
            case "wxyz" | "xyzw":
                order = (0, 1, 2, 3) if kind == "wxyz" else (1, 2, 3, 0)
                return [self.rotations + 4 * self.model.body(name).id + k for k in order]
            case "joint":
                return [self.joints + int(self.model.joint(name).qposadr[0]), 0, 0]
        return [0, 0, 0]

    def view(self, table: Float[np.ndarray, "env column"], name: str) -> Float[np.ndarray, "env 3"]:
        first = self.at(name)[0]
        return table[:, first : first + 3]

    def columns(self) -> Int[np.ndarray, " k"]:
        """Of the 18 observed numbers (hand, a place for the gripper's opening, objects) and the task's extra."""
        seen = [*self.at("body hand"), 0]
        for position, rotation in self.objects:
            seen += [*self.at(position), *(self.at(rotation) if rotation else [0] * 4)]
        return np.array([*seen, *[0] * (18 - len(seen)), *self.at(self.extra)])


class Scene:
    """`vector`, `distance` and `excess` of every term, and what else rewards depend on, all with a row per environment.

    `excess` is e in a long tail 1 / (1 + e): 0 within the bounds, 9 a margin beyond. `table` has a row of coordinates
    per environment and `columns` finds a point in it.
    """

    def __init__(
        self,
        table: Float[np.ndarray, "env column"],
        columns: Callable[[str], list[int]],
        terms: dict[str, DistanceTerm],
        start: Start,
        tcp: Points,
    ) -> None:
        self.table, self.start, self.tcp = table, start, tcp
        n, k = len(table), len(terms)
        self.terms = list(terms.values())
        self.plus = np.array([columns(term.a) for term in self.terms]).ravel()
        self.minus = np.array([columns(term.b) for term in self.terms]).ravel()
        self.difference, self.subtrahend = np.zeros((2, n, 3 * k))
        self.vectors = self.difference.reshape(n, k, 3)
        self.shift, self.weight = (
            np.tile(np.ravel([getattr(term, name) for term in self.terms]), (n, 1)) for name in ("shift", "weight")
        )
        self.lower, self.upper = (
            np.tile([getattr(term, name) for term in self.terms], (n, 1)) for name in ("lower", "upper")
        )
        self.zero, self.distances, self.excesses, self.short, self.steep = np.zeros((5, n, k))
        self.vector = dict(zip(terms, self.vectors.transpose(1, 0, 2), strict=True))
        self.distance = dict(zip(terms, self.distances.T, strict=True))
        self.excess = dict(zip(terms, self.excesses.T, strict=True))
        self.shifts = bool(self.shift.any())
        self.pads: Any = None
        if "left pad" in terms:
            first = list(terms).index("left pad")
            self.pads = [array[:, first : first + 2] for array in (self.steep, self.upper)]
            self.pads.append(self.distances[:, first + 2 : first + 4])

    def observe(
        self, hand: Points, opening: Vector, object_: Points, rotation: Float[np.ndarray, "env 4"], extra: Points
    ) -> None:
        """Set the other views that rewards read; every step rewrites what they show."""
        self.hand, self.opening, self.object, self.rotation, self.extra = hand, opening, object_, rotation, extra
        self.effort: Vector = np.zeros(len(opening))  # the action's fourth entry, in its own precision

    def begin(self) -> None:
        """Margins of the episodes that have just begun."""
        for column, term in zip(self.steep.T, self.terms, strict=True):
            if term.margin is not None:
                column[:] = steepness(term.margin(self.start))

    def subtract(self) -> None:
        """All differences."""
        difference = self.difference
        self.table.take(self.plus, axis=1, out=difference, mode="clip")
        self.table.take(self.minus, axis=1, out=self.subtrahend, mode="clip")
        np.subtract(difference, self.subtrahend, out=difference)
        if self.shifts:
            np.add(difference, self.shift, out=difference)
        np.multiply(difference, self.weight, out=difference)

    def measure(self) -> None:
        """All lengths and their excesses."""
        distances, excesses, short = self.distances, self.excesses, self.short
        np.vecdot(self.vectors, self.vectors, out=distances)
        np.sqrt(distances, out=distances)
        if self.pads is not None:
            steep, upper, at_first = self.pads
            margin = at_first - upper
            margin *= margin
            np.maximum(margin, TINY, out=margin)
            np.divide(9.0, margin, out=steep)
        np.subtract(self.lower, distances, out=short)
        np.subtract(distances, self.upper, out=excesses)
        np.maximum(excesses, short, out=excesses)
        np.maximum(excesses, self.zero, out=excesses)
        np.multiply(excesses, excesses, out=excesses)
        np.multiply(excesses, self.steep, out=excesses)


class Grasp(NamedTuple):
    """How well the object is held; `rounded` replaces `value` in `rows`, where there are any."""

    value: Vector
    rows: Flags | None = None
    rounded: Vector | None = None


def tail(excess: Vector) -> Vector:
    value = excess + 1.0
    return np.reciprocal(value, out=value)


def gaussian(excess: Vector) -> Vector:
    """1 within the bounds and 0.1 a margin beyond like the long tail, but falling as exp(-x^2)."""
    return np.exp(excess * (-np.log(10) / 9))


def some(flags: Flags) -> bool:
    """Is any set? Twice as fast as numpy's `any` where they are few."""
    return True in flags.tolist()


def hamacher(a: Vector, b: Vector | float) -> Vector:
    """One of the two must not be 0."""
    ab = a * b
    return ab / (a + b - ab)


def shaped(grasp: Grasp, formula: Callable[[Vector], Vector]) -> Vector:
    """A formula of the grasp, in the precision that the package computes it in."""
    value = formula(grasp.value)
    if grasp.rows is not None and grasp.rounded is not None:
        value = np.where(grasp.rows, formula(grasp.rounded), value)
    return value


def grasped(scene: Scene, dense: bool = True, full: float = 1.0) -> Grasp:
    """The reward for caging the object between the pads and then closing the fingers.

    dense: reward the caging as such. full: the effort that counts as closed.
    """
    left, right, across = (scene.excess[name] for name in GRASP)
    caging = tail(left + right + across)
    value = caging * 0.5 if dense else np.zeros_like(caging)
    closing = (caging > 0.97) & (scene.effort > 0)
    if not some(closing):
        return Grasp(value)

    def close(caging: Vector, effort: Any) -> Vector:
        held = hamacher(caging, effort)
        return (held + caging) / 2 if dense else held

    # More than the full effort is the package's own constant, not the action's float32.
    beyond = closing & (scene.effort > full)
    value = np.where(beyond, close(caging, 1.0), value)
    effort = np.minimum(scene.effort, full) / full
    return Grasp(value, closing & ~beyond, close(caging.astype(effort.dtype), np.maximum(effort, 0)))
