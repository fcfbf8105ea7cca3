"""Environments with known values and actions, and a continual suite that takes seconds.

| probe             | what happens                                    | known answer                         |
| ----------------- | ----------------------------------------------- | ------------------------------------ |
| `constant-reward` | one step, reward 1                              | V = 1                                |
| `observed-reward` | one step, reward = observation = +1 or -1       | V(obs) = obs                         |
| `delayed-reward`  | two steps, reward 1 after the second; obs = t   | V(0) = gamma, V(1) = 1               |
| `best-action`     | one step, reward 1 - (a - 0.5)^2                | a = 0.5, V = 1                       |
| `observed-action` | one step, reward 1 - |a - target_action(obs)|^2 | a = target_action(obs), V = 1        |
| `time-limit`      | reward 1, truncated after five steps            | V = 1/(1-gamma), if bootstrapped     |
| `termination`     | reward 1, terminated after five steps; obs = t  | V(t) = (1 - gamma^(5-t)) / (1-gamma) |

A learner that fails on one has a bug that the name points at. `optimal_action` and `optimal_value` give the
answers; success is a reward above 0.9. The tasks of `CONTINUAL` are to reach a goal with rotated controls.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sphere.envs.batch import State, Stepped
from sphere.errors import unknown

LENGTH = 5
"""Steps of an episode of `time-limit` and `termination`."""

REACH_STEPS = 10
REACH_TOLERANCE = 0.1
REACH_WALL = 1.5
"""Positions are clipped to this; else values of a policy that runs away are bootstrapped from unseen states."""

Rows = Float[np.ndarray, "env x"]
Actions = Float[np.ndarray, "env act"]
Vector = Float[np.ndarray, " env"]


class ProbeTask(NamedTuple):
    """A task: hidden state x [env, x] and time t [env] (steps already taken), all functions batched."""

    start: Callable[[np.random.Generator], np.ndarray]
    """x of one environment at the start of an episode."""
    observe: Callable[[Rows, Vector], np.ndarray]
    reward: Callable[[Rows, Vector, Actions], Vector]
    """Of x, t and the action, after the move and with this step counted."""
    steps: int = 1
    terminates: bool = True
    """Whether the last step terminates the episode or only truncates it."""
    action_size: int = 1
    move: Callable[[Rows, Actions], Rows] = lambda x, action: x


def _nothing(rng: np.random.Generator) -> np.ndarray:
    return np.ones(1)


def _sign(rng: np.random.Generator) -> np.ndarray:
    return np.array([rng.choice([-1.0, 1.0])])


def _plane(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-1, 1, 2)


def _state(x: Rows, t: Vector) -> Rows:
    return x


def _time(x: Rows, t: Vector) -> Float[np.ndarray, "env 1"]:
    return t[:, None]


def _one(x: Rows, t: Vector, action: Actions) -> Vector:
    return np.ones(len(x))


def target_action(observation: Float[np.ndarray, "*env 2"]) -> Float[np.ndarray, "*env 2"]:
    """The fixed linear function that `observed-action` wants, within the box for all its observations."""
    return _times(np.array([[0.5, 0.2], [-0.3, 0.4]]), observation) + np.array([0.1, -0.1])


def _times(matrix: Float[np.ndarray, "i j"], rows: Float[np.ndarray, "*env j"]) -> Float[np.ndarray, "*env i"]:
    """Matrix times every row, summed in an order that does not depend on their number (that of BLAS does)."""
    return (matrix * rows[..., None, :]).sum(-1)


PROBES = {
    "constant-reward": ProbeTask(_nothing, _state, _one),
    "observed-reward": ProbeTask(_sign, _state, lambda x, t, action: x[:, 0]),
    "delayed-reward": ProbeTask(_nothing, _time, lambda x, t, action: (t == 2).astype(float), steps=2),
    "best-action": ProbeTask(_nothing, _state, lambda x, t, action: 1 - (action[:, 0] - 0.5) ** 2),
    "observed-action": ProbeTask(
        _plane, _state, lambda x, t, action: 1 - ((action - target_action(x)) ** 2).sum(1), action_size=2
    ),
    "time-limit": ProbeTask(_nothing, _state, _one, steps=LENGTH, terminates=False),
    "termination": ProbeTask(_nothing, _time, _one, steps=LENGTH),
}

# Stride and rotation of the reach tasks' controls: (0, 1) is forward, and forward is where the name says.
HEADINGS = {
    "reach-north": (0.30, np.array([[1.0, 0.0], [0.0, 1.0]])),
    "reach-east": (0.45, np.array([[0.0, 1.0], [-1.0, 0.0]])),
    "reach-south": (0.25, np.array([[-1.0, 0.0], [0.0, -1.0]])),
    "reach-west": (0.35, np.array([[0.0, -1.0], [1.0, 0.0]])),
}

CONTINUAL = tuple(HEADINGS)
"""The tasks of the continual suite in order: one observation, contradicting actions."""


def _reach(stride: float, rotation: np.ndarray) -> ProbeTask:
    """Bring the position to the goal in the plane; reward - distance, from (position, goal, goal - position).

    The controls are rotated by multiples of 90 degrees, so the axes are independent and the greedy action is
    optimal: no other policy is nearer at any step.
    """

    def start(rng: np.random.Generator) -> np.ndarray:
        while True:
            x = rng.uniform(-1, 1, 4)
            if np.linalg.norm(x[2:] - x[:2]) > 5 * REACH_TOLERANCE:
                return x

    def observe(x: Rows, t: Vector) -> Float[np.ndarray, "env obs"]:
        return np.concatenate([x, x[:, 2:] - x[:, :2]], axis=1)

    def move(x: Rows, action: Actions) -> Rows:
        position = np.clip(x[:, :2] + stride * _times(rotation, action), -REACH_WALL, REACH_WALL)
        return np.concatenate([position, x[:, 2:]], axis=1)

    def reward(x: Rows, t: Vector, action: Actions) -> Vector:
        return -np.linalg.norm(x[:, 2:] - x[:, :2], axis=1)

    return ProbeTask(start, observe, reward, REACH_STEPS, terminates=False, action_size=2, move=move)


TASKS = PROBES | {task: _reach(*heading) for task, heading in HEADINGS.items()}


class Probes:
    """A `Batch` of any of these tasks."""

    tasks: ClassVar[tuple[str, ...]] = tuple(TASKS)

    def __init__(self, task: str, num_envs: int) -> None:
        if task not in TASKS:
            raise unknown("task", task, TASKS)
        self.probe = probe = TASKS[task]
        self.success_above = -REACH_TOLERANCE if task in HEADINGS else 0.9
        self.x = np.tile(probe.start(np.random.default_rng(0)), (num_envs, 1))
        self.t = np.zeros(num_envs)
        self.horizon = probe.steps
        self.observation_size = probe.observe(self.x, self.t).shape[1]
        self.action_high = np.ones(probe.action_size)
        self.action_low = -self.action_high

    def reset(self, where: Int[np.ndarray, " k"], rngs: Sequence[np.random.Generator]) -> Float[np.ndarray, "k obs"]:
        self.x[where] = [self.probe.start(rng) for rng in rngs]
        self.t[where] = 0
        return self.probe.observe(self.x[where], self.t[where])

    def step(self, action: Float[np.ndarray, "env act"]) -> Stepped:
        self.t += 1
        self.x = self.probe.move(self.x, action)
        reward = self.probe.reward(self.x, self.t, action)
        terminated = (self.t >= self.probe.steps) & self.probe.terminates
        return self.probe.observe(self.x, self.t), reward, terminated, reward > self.success_above

    def get_state(self) -> State:
        return {"x": self.x, "t": self.t}

    def set_state(self, state: State) -> None:
        self.x, self.t = state["x"], state["t"]

    def close(self) -> None:
        pass


def optimal_action(task: str, observation: Float[np.ndarray, "*env obs"]) -> Float[np.ndarray, "*env act"]:
    """The best action for every observation; zeros where actions have no effect."""
    if task in HEADINGS:
        stride, rotation = HEADINGS[task]
        return np.clip(_times(rotation.T, observation[..., 4:6]) / stride, -1, 1)
    if task == "observed-action":
        return target_action(observation)
    if task not in PROBES:
        raise unknown("task", task, TASKS)
    return np.full((*observation.shape[:-1], 1), 0.5 if task == "best-action" else 0.0)


def optimal_value(task: str, observation: Float[np.ndarray, "*env obs"], gamma: float) -> Float[np.ndarray, "*env"]:
    """V(obs) under the optimal policy, of the probes."""
    first = observation[..., 0]
    values = {
        "constant-reward": np.ones_like(first),
        "observed-reward": first,
        "delayed-reward": gamma ** (1 - first),
        "best-action": np.ones_like(first),
        "observed-action": np.ones_like(first),
        "time-limit": np.full_like(first, 1 / (1 - gamma)),
        "termination": (1 - gamma ** (LENGTH - first)) / (1 - gamma),
    }
    if task not in values:
        raise unknown("probe with a known value", task, values)
    return values[task]
