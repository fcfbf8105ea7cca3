"""A suite of images for tests, light because their workers import it: a dot that is to be brought to the middle."""

import numpy as np

from sphere.envs.frame_stack import Stack

SIDE, HORIZON = 12, 5


class Dots:
    """The action moves a dot; the reward is how near it is to the middle. Ends at the edge, or after five steps."""

    tasks = ("red", "blue")
    same_sizes = True
    shown = "seen"
    horizon = HORIZON
    action_low, action_high = np.full(2, -1.0), np.full(2, 1.0)
    image_shape, frame_stack = (SIDE, SIDE, 9), 3
    observation_size = SIDE * SIDE * 9

    def __init__(self, task, num_envs):
        self.channel = 0 if task == "red" else 2
        self.place = np.zeros((num_envs, 2))
        self.stack = Stack(num_envs, (SIDE, SIDE, 3), 3)

    def draw(self, where):
        frame = np.zeros((len(where), SIDE, SIDE, 3), np.uint8)
        at = np.clip(np.rint(self.place[where]), 0, SIDE - 1).astype(int)
        frame[np.arange(len(where)), at[:, 0], at[:, 1], self.channel] = 255
        return frame

    def reset(self, where, rngs):
        self.place[where] = [rng.uniform(3, SIDE - 4, 2) for rng in rngs]
        self.stack.restart(where, self.draw(where))
        return self.stack.seen[where]

    def step(self, action):
        self.place += 2 * action
        self.stack.push(self.draw(np.arange(len(action))))
        reward = -np.abs(self.place - SIDE / 2).sum(axis=1) / SIDE
        outside = ((self.place < 0) | (self.place > SIDE - 1)).any(axis=1)
        return self.stack.seen, reward, outside, reward > -0.1

    def get_state(self):
        return {"place": self.place, "seen": self.stack.seen}

    def set_state(self, state):
        self.place, self.stack.seen = state["place"], state["seen"]

    def render(self, index):
        return self.stack.seen[index, ..., -3:].repeat(8, axis=0).repeat(8, axis=1)

    def close(self):
        pass
