"""Data sets of MetaWorld by the package's scripted policies with seeded noise."""

import multiprocessing
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from sphere import envs
from sphere.data.transitions import minari
from sphere.envs.metaworld_verify import scripted
from sphere.errors import UserError


class Episode(NamedTuple):
    observations: np.ndarray  # [time + 1, obs]
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray


class Behaviour(NamedTuple):
    """How well the recorded policy did on a task."""

    task: str
    episodes: int
    success_once: float
    success_at_end: float
    mean_return: float


def record(
    task: str, episodes: int, seed: int, noise: Sequence[float], uniform: float, horizon: int | None = None
) -> tuple[list[Episode], Behaviour]:
    """Whole episodes of the scripted policy: episode i with normal noise of deviation noise[i % len(noise)] on its
    actions, and a share `uniform` of all actions drawn evenly instead. Goals and noise follow from the seed."""
    rng = np.random.default_rng([seed, list(envs.tasks("metaworld")).index(task)])
    deviation = np.array([noise[i % len(noise)] for i in range(episodes)])[:, None]
    settings: dict[str, Any] = {} if horizon is None else {"horizon": horizon}
    with envs.make(f"metaworld/{task}", episodes, seed, 0, **settings) as pool:
        policies = [scripted(task) for _ in range(episodes)]
        obs, _ = pool.reset()
        steps, first, ended = [], obs, None
        for _ in range(pool.horizon):
            action = _actions(policies, obs) + deviation * rng.standard_normal((episodes, 4))
            evenly = rng.random((episodes, 1)) < uniform
            action = np.where(evenly, rng.uniform(-1, 1, action.shape), action).clip(-1, 1).astype(np.float32)
            obs, reward, terminated, truncated, infos = pool.step(action)
            following = infos["final_obs"].astype(np.float32)
            steps.append((following, action, reward.astype(np.float32), terminated.copy(), truncated.copy()))
            ended = infos.get("episode", ended)
    following, action, reward, terminated, truncated = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
    seen = np.concatenate([first[:, None].astype(np.float32), following], axis=1)
    found = [Episode(*columns) for columns in zip(seen, action, reward, terminated, truncated, strict=True)]
    means = [float(np.mean(ended[name])) for name in ("success_once", "success_at_end", "r")]  # type: ignore[index]
    return found, Behaviour(task, episodes, *means)


def record_all(tasks: Sequence[str], processes: int, *settings: Any) -> Iterator[tuple[list[Episode], Behaviour]]:
    """`record` of several tasks in their order, each in one of so many processes. The episodes do not depend on it."""
    if (count := min(processes, len(tasks))) <= 1:
        yield from (record(task, *settings) for task in tasks)
        return
    fresh = multiprocessing.get_context("spawn")  # a fork of a process that runs jax may hang
    with ProcessPoolExecutor(count, mp_context=fresh) as pool:
        yield from pool.map(record, tasks, *([one] * len(tasks) for one in settings))


def _actions(policies: Sequence[Any], obs: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Constant")  # the policies' actions are meant to be clipped
        return np.stack([policy.get_action(row) for policy, row in zip(policies, obs, strict=True)]).astype(np.float64)


def write(name: str, episodes: Sequence[Episode], behaviour: Sequence[Behaviour]) -> None:
    """A data set under this name in Minari's place (MINARI_DATASETS_PATH, by default ~/.minari/datasets)."""
    package = minari()
    from gymnasium.spaces import Box
    from minari.data_collector import EpisodeBuffer

    size, act = episodes[0].observations.shape[1], episodes[0].actions.shape[1]
    buffers = [
        EpisodeBuffer(
            observations=one.observations,
            actions=one.actions,
            rewards=one.rewards,
            terminations=one.terminations,
            truncations=one.truncations,
        )
        for one in episodes
    ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # Minari asks for authors and links, which the recorder does not know
            package.create_dataset_from_buffers(
                name,
                buffers,
                observation_space=Box(-np.inf, np.inf, (size,), np.float32),
                action_space=Box(-1, 1, (act,), np.float32),
                algorithm_name="scripted policies with noise",
                description="; ".join(f"{one.task}: success {one.success_at_end:.2f}" for one in behaviour),
            )
    except (ValueError, OSError) as error:
        raise UserError(f"the data set {name} cannot be written: {error}") from error
