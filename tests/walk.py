"""A suite for the tests of the pool, light because their workers import it."""

import os
import sys
import threading
from pathlib import Path

import numpy as np

HORIZON = 7
TROUBLED = 3  # the step that a troubled environment does not survive


class Walk:
    """Walks by its action plus a drift, both drawn; ends after a drawn life or at the time limit."""

    tasks = ("walk", "run", "wide")
    horizon = HORIZON
    action_low, action_high = np.array([-2.0]), np.array([1.0])

    def __init__(self, task, num_envs, trouble="", sign=""):
        self.observation_size = 5 if task == "wide" else 3
        self.speed = 2.0 if task == "run" else 1.0
        self.trouble, self.sign = trouble, sign  # a file that is made when the trouble begins
        self.x, self.drift = np.zeros(num_envs), np.zeros(num_envs)
        self.t, self.life = np.zeros(num_envs, int), np.zeros(num_envs, int)
        if trouble == "begin":
            raise OSError("no model file")

    def observe(self):
        return np.stack([self.x, self.t, self.drift], axis=1)

    def reset(self, where, rngs):
        draws = [draw(rng) for rng in rngs]
        self.x[where], self.drift[where], self.life[where] = map(list, zip(*draws, strict=True))
        self.t[where] = 0
        return self.observe()[where]

    def step(self, action):
        self.t += 1
        self.x += self.speed * action[:, 0] + self.drift
        if self.t.max() == TROUBLED:
            self.fail()
        return self.observe(), self.x.copy(), self.t >= self.life, self.x > 0

    def fail(self):
        if self.sign:
            Path(self.sign).touch()
        if self.trouble == "step":
            raise ZeroDivisionError("the robot fell apart")
        if self.trouble == "hang":
            threading.Event().wait()  # for ever
        if self.trouble == "exit":
            os._exit(3)

    def get_state(self):
        return {"x": self.x, "drift": self.drift, "t": self.t, "life": self.life}

    def set_state(self, state):
        self.x, self.drift, self.t, self.life = (state[name] for name in ("x", "drift", "t", "life"))

    def render(self, index):
        return np.full((2, 2), self.x[index])

    def close(self):
        pass


class Spy(Walk):
    """Observes what its process has loaded."""

    def observe(self):
        sees = [name in sys.modules for name in ("jax", "equinox")] + [os.environ.get("OMP_NUM_THREADS") == "1"]
        return np.tile(np.array(sees, float), (len(self.x), 1))


def draw(rng):
    return rng.normal(), rng.normal() / 4, rng.integers(1, 12)


def play(pool, steps=25, key=0):
    """Everything that a pool says during some steps of random actions, as one flat list of arrays."""
    rng = np.random.default_rng(key)
    for _ in range(steps):
        obs, reward, terminated, truncated, infos = pool.step(rng.normal(size=pool.action_space.shape))
        yield from (obs, reward, terminated, truncated, infos["final_obs"], infos["success"])
        yield from infos.get("episode", {}).values()
