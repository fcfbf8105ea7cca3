"""MetaWorld's ten tasks of Continual World, in its order, at the speed of their physics.

Models, resets and goals are the package's own (`metaworld` 3.1.1, by way of `metaworld_origin`). Its step is not: one
simulation after another is moved on, and observations, rewards and success of all are then computed at once.
`metaworld_verify` compares the two. Goals are drawn by the package's reset, from the generator of (run seed, task,
index, episode). A task is a row of a table: where its objects are found, which distances its reward reads, and the
reward.

All environments of a batch share one model, 20 MB; an environment has its own `MjData`, under 1 MB, and where a reset
places a part of the scene, its position, which is written into the model before a step.

mujoco warm-starts its solver from the last acceleration, and the `mj_forward` with which the package ends a step renews
that too: leaving it out, or asking for it once more, changes all that follows. But the next step begins where that
`mj_forward` has left everything, contacts included, and only the hand's target has moved: what depends on it is
computed again, the rest (an eighth of a step's time) is not.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sphere.envs import metaworld_rewards as rewards
from sphere.envs.batch import State, Stepped
from sphere.envs.metaworld_origin import FRAME_SKIP, Origin
from sphere.envs.metaworld_scene import CLAWS, DistanceTerm, Layout, Objects, Scene, Start
from sphere.errors import unknown

GOALS = ("random", "frozen")
Row = Float[np.ndarray, " k"]

HAND_LOW, HAND_HIGH = (-0.525, 0.348, -0.0525), (0.525, 1.025, 0.7)
"""Hand positions are clipped to this box when observed."""

ACTION_SCALE = 0.01
"""Metres that the hand's target moves under an action of 1."""

UPRIGHT = 0.7072
"""Above this, the last entry of a rotation is the largest."""


class Task(NamedTuple):
    """Where a task's numbers are found, and how they are rewarded."""

    objects: Objects
    """Position and rotation of each object; rotations in mujoco's order of entries or scipy's, or none."""
    terms: dict[str, DistanceTerm]
    reward: Callable[[Scene], rewards.Result]
    placed: str = ""
    """The body that a reset places."""
    other: str = ""
    """The package's name for the second position at the start that the reward depends on."""
    extra: str = ""
    """One more thing that the reward reads."""
    offset: float = 0.0
    """In the height of the object as observed."""
    adjust: Callable[[Scene], None] | None = None
    """A change to the differences before their lengths are taken."""


PUCK = (("body obj", "xyzw obj"),)

TASKS = {
    "hammer": Task(
        (("body hammer", "wxyz hammer"), ("body nail_link", "wxyz nail_link")),
        rewards.HAMMER,
        rewards.hammer,
        extra="joint NailSlideJoint",
        adjust=rewards.hammer_along,
    ),
    "push-wall": Task(PUCK, rewards.PUSH_WALL, rewards.push_wall),
    "faucet-close": Task(
        (("site handleStartClose", "wxyz faucetBase"),),
        rewards.FAUCET_CLOSE,
        rewards.faucet_close,
        placed="faucetBase",
        offset=-0.01,
    ),
    "push-back": Task(PUCK, rewards.PUSH_BACK, rewards.push_back),
    "stick-pull": Task(
        (("body stick", "xyzw stick"), ("site insertion", "")),
        rewards.STICK_PULL,
        rewards.stick_pull,
        other="stick_init_pos",
        extra="site stick_end",
    ),
    "handle-press-side": Task(
        (("site handleStart", ""),),
        rewards.HANDLE_PRESS_SIDE,
        rewards.handle_press_side,
        placed="box",
        other="_handle_init_pos",
    ),
    "push": Task(PUCK, rewards.PUSH, rewards.push),
    "shelf-place": Task(PUCK, rewards.SHELF_PLACE, rewards.shelf_place, placed="shelf"),
    "window-close": Task(
        (("site handleCloseStart", ""),),
        rewards.WINDOW_CLOSE,
        rewards.window_close,
        placed="window",
        other="window_handle_pos_init",
    ),
    "peg-unplug-side": Task(
        (("site pegEnd", "wxyz plug1"),), rewards.PEG_UNPLUG_SIDE, rewards.peg_unplug_side, placed="box"
    ),
}


class MetaWorld:
    """A `Batch` of one of these tasks. The goal is observed: 18 numbers now, the 18 before, 3 of the goal.

    goals: "random", a new one every episode; "frozen", always the same one per environment.
    horizon: steps of an episode.
    one_hot: append which of the ten tasks it is to the observation.
    """

    tasks: ClassVar[tuple[str, ...]] = tuple(TASKS)
    same_sizes: ClassVar[bool] = True
    mujoco_version: ClassVar[str] = "3.3.0"

    def __init__(
        self, task: str, num_envs: int, goals: str = "random", horizon: int = 500, one_hot: bool = False
    ) -> None:
        if task not in TASKS:
            raise unknown("task", task, TASKS)
        if goals not in GOALS:
            raise ValueError(f"goals={goals!r}; want one of {', '.join(map(repr, GOALS))}")
        if horizon < 1:
            raise ValueError(f"horizon={horizon}; want a positive number of steps, the package's own is 500")
        self.goals, self.horizon, self.task = goals, horizon, TASKS[task]
        self.action_low, self.action_high = np.full(4, -1.0), np.full(4, 1.0)
        self.origin = Origin(task, self.task.placed, self.task.other)
        self.data = [self.origin.simulation() for _ in range(num_envs)]
        self.forwarded = [False] * num_envs
        """Whether all of a simulation's data belong to its present state; code that moves it from outside sets this
        false."""
        self._observations(self.tasks.index(task) if one_hot else None)
        self._measurements()

    def _observations(self, one_hot: int | None) -> None:
        """`last`, the observation before clipping, and its bounds."""
        n, extra = len(self.data), 0 if one_hot is None else len(TASKS)
        self.observation_size = 39 + extra
        self.last = np.zeros((n, 39 + extra))
        if one_hot is not None:
            self.last[:, 39 + one_hot] = 1
        no_bound, last = np.full(14, np.inf), np.full(extra, np.inf)
        goal_low, goal_high = self.origin.goal_bounds
        # In full shape, as everything here: numpy takes three times as long where it has to broadcast.
        self.low = np.tile([*HAND_LOW, -1, *-no_bound, *HAND_LOW, -1, *-no_bound, *goal_low, *-last], (n, 1))
        self.high = np.tile([*HAND_HIGH, 1, *no_bound, *HAND_HIGH, 1, *no_bound, *goal_high, *last], (n, 1))
        self.goal = np.zeros((n, self.origin.draw_size))
        self.placed, self.mocap, self.ctrl = np.zeros((n, 3)), np.zeros((n, 3)), np.zeros((n, 2))
        self.mocap_low, self.mocap_high = (np.tile(bound, (n, 1)) for bound in self.origin.mocap_bounds)

    def _measurements(self) -> None:
        """A table of all that is copied out of the simulations, and the views by which it is written and read."""
        task, layout = self.task, Layout(self.origin.model, self.task.objects, self.task.extra)
        self.layout = layout
        self.table = table = np.zeros((len(self.data), layout.width))
        slot, target = self.origin.slot, self.origin.target
        self.simulations = []
        for i, data in enumerate(self.data):
            writes = [(data.mocap_pos[0], self.mocap[i]), (data.xpos[target], self.mocap[i]), (data.ctrl, self.ctrl[i])]
            if slot is not None:
                writes.append((slot, self.placed[i]))
            self.simulations.append((data, writes, layout.reads(table[i], data)))
        self.columns = layout.columns()
        self.now = now = np.zeros((len(table), self.columns.size))
        self.start = Start(*(layout.view(table, f"start {name}") for name in Start._fields))
        tcp = layout.view(table, "tcp")
        self.tcp = (layout.view(table, "site rightEndEffector"), layout.view(table, "site leftEndEffector"), tcp)
        self.scene = Scene(table, layout.at, CLAWS | task.terms, self.start, tcp)
        self.scene.observe(now[:, :3], now[:, 3], now[:, 4:7], now[:, 7:11], now[:, 18:21])
        self.opening, self.rotation, self.height = now[:, 3], now[:, 7:11], now[:, 6]
        self.flips = task.objects[0][1].startswith("xyzw")
        self.frames = (self.last[:, 18:36], self.last[:, :18], now[:, :18])

    def reset(self, where: Int[np.ndarray, " k"], rngs: Sequence[np.random.Generator]) -> Float[np.ndarray, "k obs"]:
        for i, rng in zip(where.tolist(), rngs, strict=True):
            episode = self.origin.reset(rng if self.goals == "random" else stream(rng))
            self.origin.set_state(self.data[i], episode.physics)
            self.forwarded[i] = False
            self.last[i, :39], self.goal[i], self.placed[i] = episode.observation, episode.draw, episode.placed
            self.mocap[i] = self.data[i].mocap_pos[0]
            for mine, theirs in zip(self.start, episode.start, strict=True):
                mine[i] = theirs
        self.scene.begin()
        return self.last[where]

    def step(self, action: Float[np.ndarray, "env act"]) -> Stepped:
        self._simulate(action)
        self._look(action[:, 3])
        before, current, now = self.frames
        before[...] = current
        current[...] = now
        observation = np.maximum(self.last, self.low)
        np.minimum(observation, self.high, out=observation)
        reward, success = self.task.reward(self.scene)
        return observation, reward, np.zeros(len(reward), bool), success

    def _simulate(self, action: Float[np.ndarray, "env act"]) -> None:
        """Move all simulations on, and copy out where things are."""
        mocap, ctrl = self.mocap, self.ctrl
        mocap += action[:, :3] * ACTION_SCALE  # the product in the action's own precision, as in the package
        np.maximum(mocap, self.mocap_low, out=mocap)
        np.minimum(mocap, self.mocap_high, out=mocap)
        ctrl[:, 0] = action[:, 3]
        np.negative(ctrl[:, 0], out=ctrl[:, 1])
        model, mj_step, mj_forward = self.origin.model, self.origin.mujoco.mj_step, self.origin.mujoco.mj_forward
        first_step = self.origin.step_after_forward
        for (data, writes, reads), forwarded in zip(self.simulations, self.forwarded, strict=True):
            for to, value in writes:
                to[...] = value
            if forwarded:
                first_step(data)
            mj_step(model, data, FRAME_SKIP - forwarded)
            mj_forward(model, data)
            for to, value in reads:
                to[...] = value
        self.forwarded = [True] * len(self.data)

    def _look(self, effort: Row) -> None:
        """Take what is observed and rewarded from the table."""
        self.table.take(self.columns, axis=1, out=self.now, mode="clip")
        right, left, tcp = self.tcp
        np.add(right, left, out=tcp)
        tcp *= 0.5
        scene = self.scene
        scene.effort = effort
        scene.subtract()
        if self.task.adjust is not None:
            self.task.adjust(scene)
        scene.measure()
        np.minimum(scene.distance["claws"] / 0.1, 1.0, out=self.opening)
        if self.task.offset:
            self.height += self.task.offset
        # scipy's rotations, of which the package reads some, have their largest entry positive.
        if self.flips and min(self.rotation[:, 3].tolist()) < UPRIGHT:
            largest = np.abs(self.rotation).argmax(1)
            self.rotation *= np.copysign(1.0, self.rotation[np.arange(len(largest)), largest])[:, None]

    def judge(self, data: Any, action: Float[np.ndarray, "1 act"]) -> rewards.Result:
        """Reward and success of the first environment, were it as in another simulation: to compare rewards alone."""
        for to, value in self.layout.reads(self.table[0], data):
            to[...] = value
        self._look(action[:, 3])
        return self.task.reward(self.scene)

    def get_state(self) -> State:
        physics = np.stack([self.origin.get_state(data) for data in self.data])
        state = {"physics": physics, "last": self.last, "goal": self.goal, "placed": self.placed}
        return {name: array.copy() for name, array in (state | self.start._asdict()).items()}

    def set_state(self, state: State) -> None:
        for i, (data, physics) in enumerate(zip(self.data, state["physics"], strict=True)):
            self.origin.set_state(data, physics)
            self.forwarded[i] = False
            self.mocap[i] = data.mocap_pos[0]
        self.last[:], self.goal[:], self.placed[:] = state["last"], state["goal"], state["placed"]
        for name, array in self.start._asdict().items():
            array[:] = state[name]
        self.scene.begin()

    def render(self, index: int) -> np.ndarray:
        """A frame of one environment as it is now: uint8 [480, 480, 3]."""
        return self.origin.render(self.data[index], self.placed[index], self.start.target[index])

    def close(self) -> None:
        self.origin.close()
        self.simulations, self.data = [], []
        del self.layout


def stream(rng: np.random.Generator) -> np.random.Generator:
    """The generator of an environment whatever the episode: a pool's are seeded (run, task, index, episode)."""
    words = getattr(rng.bit_generator.seed_seq, "entropy", None)
    if not isinstance(words, Sequence) or len(words) < 2:
        raise ValueError(
            f"frozen goals want generators seeded with a list whose last word is the episode, got {words!r}; "
            "pools seed them so, by hand use np.random.default_rng([seed, task, index, episode])"
        )
    return np.random.default_rng(words[:-1])
