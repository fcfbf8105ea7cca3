"""Our MetaWorld beside the package's own, step by step: `sphere verify metaworld`.

Four environments per task and their doubles: random actions; the package's scripted policy; that policy with noise;
and the policy, or a way to the goal, while the object is thrown about, near the hand or the goal, so that every branch
of the rewards is seen. Every other episode has float64 actions, for which the package computes some rewards in another
precision. Then scenes that physics would hardly come to, for the rewards alone: all points put where it matters.
"""

import warnings
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sphere.envs.metaworld import PUCK, MetaWorld
from sphere.envs.metaworld_origin import simulator

EPISODE = 250
ENVS = 4
THROW_EVERY = 10
TARGET = 1e-9


class Differences(NamedTuple):
    """The largest differences from the package on one task, and what they were looked for in."""

    task: str
    steps: int
    episodes: int
    successes: int  # episodes in which the package said success at least once
    observation: float
    reward: float
    flags: int  # steps or scenes whose success flags differ
    scenes: int = 0  # in which points were put by hand

    @property
    def passed(self) -> bool:
        # NaN does not pass.
        return self.observation <= TARGET and self.reward <= TARGET and self.flags == 0


def verify(
    steps: int = 2000, tasks: Sequence[str] = MetaWorld.tasks, seed: int = 0, scenes: int = 1000
) -> list[Differences]:
    """Step ours and the package's side by side, at least `steps` per task; then judge `scenes`."""
    if steps < 1:
        raise ValueError(f"steps={steps}; nothing would be compared, want 1 or more")
    rows = []
    for task in tasks:
        row = episodes(task, steps, seed)
        reward, flags, count = scattered(task, scenes, seed)
        rows.append(row._replace(reward=_worse(row.reward, reward), flags=row.flags + flags, scenes=count))
    return rows


def _worse(one: float, other: float) -> float:
    """The larger; NaN, which Python's max may pass over, if one of them is."""
    return float(np.maximum(one, other))


def episodes(task: str, steps: int, seed: int) -> Differences:
    rng = np.random.default_rng([seed, zlib.crc32(task.encode())])
    batch, doubles = MetaWorld(task, ENVS), [reference(task) for _ in range(ENVS)]
    policy = scripted(task)
    count = -(-steps // (ENVS * EPISODE))
    observation, reward, flags, successes = 0.0, 0.0, 0, 0
    for episode in range(count):
        seen = np.zeros(ENVS, bool)
        ours = batch.reset(np.arange(ENVS), [np.random.default_rng([seed, i, episode]) for i in range(ENVS)])
        theirs = np.stack([restart(env, goal) for env, goal in zip(doubles, batch.goal, strict=True)])
        observation = _worse(observation, np.abs(ours - theirs).max())
        for t in range(EPISODE):
            if t % THROW_EVERY == THROW_EVERY - 1:
                throw(doubles[-1], batch.data[-1], rng)
                batch.forwarded[-1] = False
            action = act(policy, theirs, t, rng).astype(np.float64 if episode % 2 else np.float32)
            ours, our_reward, _, our_success = batch.step(action)
            results = [env.step(row) for env, row in zip(doubles, action, strict=True)]
            theirs = np.stack([result[0] for result in results])
            success = np.array([result[4]["success"] for result in results]) > 0
            observation = _worse(observation, np.abs(ours - theirs).max())
            reward = _worse(reward, np.abs(our_reward - [float(result[1]) for result in results]).max())
            flags += int((our_success != success).sum())
            seen |= success
        successes += int(seen.sum())
    batch.close()
    return Differences(task, count * EPISODE * ENVS, count * ENVS, successes, float(observation), float(reward), flags)


def scattered(task: str, scenes: int, seed: int) -> tuple[float, int, int]:
    """The largest difference in reward, different flags, and how many scenes the package had a reward for."""
    rng = np.random.default_rng([seed, zlib.crc32(task.encode()), 1])
    batch, env = MetaWorld(task, 1), reference(task)
    deviation, flags, count = 0.0, 0, 0
    for i in range(scenes):
        if i % 50 == 0:
            batch.reset(np.arange(1), [np.random.default_rng([seed, i])])
            restart(env, batch.goal[0])
        scatter(env, batch, rng)
        action = rng.uniform(-0.5, 1, 4).astype(np.float64 if i % 2 else np.float32)
        space = env.sawyer_observation_space
        try:
            reward, info = env.evaluate_state(np.clip(env._get_obs(), space.low, space.high), action)
        except (ValueError, AssertionError):  # a negative margin and the like
            continue
        our_reward, our_success = batch.judge(env.data, action[None])
        deviation = _worse(deviation, abs(float(our_reward[0]) - float(reward)))
        flags += int(our_success[0] != (info["success"] > 0))
        count += 1
    batch.close()
    return deviation, flags, count


def scatter(env: Any, batch: MetaWorld, rng: np.random.Generator) -> None:
    """Object, fingers, pads and the rest, near each other or the goal by turns."""
    data, task = env.data, batch.task

    def near(point: np.ndarray, *scales: float) -> np.ndarray:
        return point + rng.normal(scale=rng.choice(scales), size=3)

    def apart(most: float) -> np.ndarray:
        return np.array([0, rng.uniform(0, most), 0])

    def put(name: str, point: np.ndarray) -> None:
        kind, _, name = name.partition(" ")
        getattr(data, kind)(name).xpos[:] = point

    corner = env._target_pos + rng.uniform([-0.2, -0.2, -0.3], [0.2, 0.1, 0.05])
    start = batch.start
    thing = near([env._target_pos, start.object[0], start.other[0], corner][rng.integers(4)], 0.001, 0.02, 0.1)
    tcp, half = near(thing, 0.002, 0.01, 0.1), rng.normal(scale=0.02, size=3)
    put("site rightEndEffector", tcp + half)
    put("site leftEndEffector", tcp - half)
    put("body hand", near(tcp, 0.02))
    put("body leftpad", thing + apart(rng.choice([0.03, 0.1])))
    put("body rightpad", thing - apart(rng.choice([0.03, 0.1])))
    put("body rightclaw", tcp)
    put("body leftclaw", tcp + apart(0.12))
    put(task.objects[0][0], thing - [0, 0, task.offset])
    if task.objects is PUCK:
        put("geom objGeom", thing)  # where some tasks read it
    if len(task.objects) > 1:
        second = near([thing, env._target_pos][rng.integers(2)], 0.02, 0.05)
        put(task.objects[1][0], second)
    if task.extra.startswith("site"):
        put(task.extra, near(second, 0.02, 0.05))
    if task.extra.startswith("joint"):
        data.qpos[-1] = rng.uniform(0, 0.15)
        rotation = rng.normal((1, 0, 0, 0), rng.choice([0.02, 0.2]))
        data.body("hammer").xquat[:] = rotation / np.linalg.norm(rotation)


def reference(task: str) -> Any:
    """The package's environment with the goal in its observation."""
    env = simulator()[0][f"{task}-v3"]()
    env._partially_observable, env._set_task_called = False, True
    del env.sawyer_observation_space  # cached with the goal hidden
    return env


def restart(env: Any, goal: np.ndarray) -> np.ndarray:
    """The package's own reset, all of it, with a given draw."""
    env._freeze_rand_vec, env._last_rand_vec = True, goal.copy()
    return env.reset()[0]


def scripted(task: str) -> Any:
    from metaworld.policies import ENV_POLICY_MAP

    policy: Any = ENV_POLICY_MAP[f"{task}-v3"]
    return policy()


def act(policy: Any, observation: np.ndarray, t: int, rng: np.random.Generator) -> np.ndarray:
    """One action per environment, by its place in the list above."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Constant")  # the policies' actions are meant to be clipped
        action = np.stack([policy.get_action(row) for row in observation]).astype(np.float64)
    action[0] = rng.uniform(-1, 1, 4)
    action[2:] += rng.normal(scale=0.3, size=(2, 4))
    if t % 3 == 0:
        action[2, 3] = rng.uniform(0, 1)
    if t % 40 < 30:
        action[3, 3] = rng.uniform(-0.2, 1)
    if t % 80 >= 40:  # to the goal's place at several heights
        goal = observation[3, 36:39] * np.array([1, 1, t // 80 % 3 / 2])
        action[3, :3] = 10 * (goal - observation[3, :3])
    return np.clip(action, -1, 1)


def throw(env: Any, data: Any, rng: np.random.Generator) -> None:
    """Put the object near the fingers, the goal or between them, in both simulations."""
    if env.model.jnt_type[9] == 0:  # a free joint
        share = rng.choice([0.0, 0.0, 0.5, 1.0])
        place = env.tcp_center + share * (env._target_pos - env.tcp_center)
        place = place + rng.normal(scale=rng.choice([0.003, 0.03, 0.15]), size=3)
        where, what = slice(9, 12), np.maximum(place, [-1, 0, 0.01])
    else:
        low, high = env.model.jnt_range[9]
        where, what = slice(9, 10), rng.uniform(low, high, size=1)
    for simulation in (env.data, data):
        simulation.qpos[where] = what
