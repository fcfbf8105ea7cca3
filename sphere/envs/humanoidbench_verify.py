"""Our HumanoidBench against recorded traces of the package: `sphere verify humanoidbench`.

A file of traces holds TASK/EPISODE/{actions, obs, reward, terminated} for any tasks and any number of episodes of any
length, and TASK/success_bar. `obs` has a row more than the others: its first is the state after the reset.
"""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sphere.envs.humanoidbench import TASKS, HumanoidBench
from sphere.storage.files import MOST_RECORD, open_regular

TARGET = 1e-9
ARRAYS = ("actions", "obs", "reward", "terminated")


class Differences(NamedTuple):
    """The largest differences from the traces of one task, and in how much they were looked for."""

    task: str
    episodes: int
    steps: int
    observation: float
    reward: float
    terminations: int  # steps whose flags differ
    bar: float  # difference of the success bars

    @property
    def passed(self) -> bool:
        # NaN does not pass.
        return self.observation <= TARGET and self.reward <= TARGET and self.terminations == 0 and self.bar == 0


def verify(path: Path | str) -> list[Differences]:
    """Replay every episode of a file of traces."""
    path = Path(path)
    arrays = load(path)
    tasks = list(dict.fromkeys(name.split("/")[0] for name in arrays))
    strange = [task for task in tasks if task not in TASKS]
    if strange or not tasks:
        raise ValueError(f"{path} holds traces of {strange or 'nothing'}; want some of {', '.join(TASKS)}")
    return [replay(path, task, arrays) for task in tasks]


def load(path: Path) -> dict[str, np.ndarray]:
    try:
        with open_regular(path, MOST_RECORD) as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .npz of recorded traces: {error}") from error


def replay(path: Path, task: str, arrays: Mapping[str, np.ndarray]) -> Differences:
    """All episodes of a task, one after the other in the same environment."""
    names = (name.split("/") for name in arrays if name.startswith(f"{task}/"))
    episodes = list(dict.fromkeys(name[1] for name in names if len(name) == 3))
    if not episodes or f"{task}/success_bar" not in arrays:
        raise ValueError(
            f"{path} lacks {task}/0/{ARRAYS[0]} or {task}/success_bar; want TASK/EPISODE/ARRAY and the bar"
        )
    batch = HumanoidBench(task, 1)
    found = []
    for episode in episodes:
        prefix = f"{task}/{episode}"
        missing = [name for name in ARRAYS if f"{prefix}/{name}" not in arrays]
        if missing:
            raise ValueError(f"{path} lacks {prefix}/{missing[0]}; an episode has {', '.join(ARRAYS)}")
        trace = [arrays[f"{prefix}/{name}"] for name in ARRAYS]
        check(f"{path}: {prefix}", batch, *trace)
        found.append(compare(batch, *trace))
    batch.close()
    bar = abs(float(arrays[f"{task}/success_bar"]) - TASKS[task].success_bar)
    # numpy's maximum, unlike Python's, hands NaN on.
    observation, reward = (float(np.max([one[k] for one in found])) for k in (1, 2))
    steps, flags = (sum(one[k] for one in found) for k in (0, 3))
    return Differences(task, len(episodes), int(steps), observation, reward, int(flags), bar)


def check(
    where: str,
    batch: HumanoidBench,
    actions: np.ndarray,
    obs: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
) -> None:
    """The shapes that belong together."""
    steps = len(actions) if actions.ndim else 0
    came = (actions.shape, obs.shape, reward.shape, terminated.shape)
    want = ((steps, len(batch.action_low)), (steps + 1, batch.observation_size), (steps,), (steps,))
    if came != want or steps == 0:
        raise ValueError(f"{where} has {', '.join(ARRAYS)} of shapes {came}; want {want} with at least one step")


def compare(
    batch: HumanoidBench, actions: np.ndarray, obs: np.ndarray, reward: np.ndarray, terminated: np.ndarray
) -> tuple[int, float, float, int]:
    """Steps, largest differences of observations and rewards, and different flags of one episode."""
    batch.start(0, obs[0].astype(np.float64))
    ours = [batch.observation[0].copy()]
    results = []
    for action in actions:
        observation, *result, _ = batch.step(action[None])
        ours.append(observation[0])
        results.append([float(part[0]) for part in result])
    our_reward, our_terminated = np.array(results).T
    return (
        len(actions),
        float(np.abs(np.stack(ours) - obs).max()),
        float(np.abs(our_reward - reward).max()),
        int((our_terminated.astype(bool) != terminated).sum()),
    )
