"""Recorded transitions, from data sets in Minari's format, and what is asked of them before anybody learns from
them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sphere.algos.learner import DataSpec
from sphere.errors import UserError

NEEDS = "reading and writing data sets needs Minari: pip install 'sphere-rl[offline]'"


class TransitionTable(NamedTuple):
    """Transitions of a data set, float32."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    """1 where the episode terminated; a time limit is 0."""

    @staticmethod
    def of_episodes(episodes: Iterable[Any]) -> "TransitionTable":
        """Each has observations [time + 1, obs], actions, rewards and terminations [time, ...], as Minari gives
        them."""
        parts: list[tuple[np.ndarray, ...]] = []
        for one in episodes:
            obs = np.asarray(one.observations, np.float32)
            steps = (np.asarray(column, np.float32) for column in (one.actions, one.rewards, one.terminations))
            action, reward, terminated = steps
            if not len(obs) - 1 == len(action) == len(reward) == len(terminated):
                raise UserError(
                    f"an episode of the data set has {len(obs)} observations and {len(action)} actions, wanted one "
                    "observation more than actions; it was cut off while it was written"
                )
            parts.append((obs[:-1], action, reward, obs[1:], terminated))
        if not parts:
            raise UserError("the data set has no episodes; record some, or name another")
        return TransitionTable(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def check(self, name: str, spec: DataSpec) -> None:
        """Refuse what does not fit the tasks or cannot be learned from."""
        if len(self.reward) == 0:
            raise UserError(f"the data set {name} has no transitions; record some, or name another")
        for what, found, wanted in (
            ("observations", self.obs.shape[1:], spec.observation),
            ("actions", self.action.shape[1:], (spec.action,)),
        ):
            if found != wanted:
                raise UserError(
                    f"the data set {name} has {what} of shape {found}, and the tasks have {wanted}; name a data set of "
                    "these tasks"
                )
        for what, column in self._asdict().items():
            if bad := int(np.sum(~np.isfinite(column))):
                raise UserError(
                    f"the data set {name} holds {bad} NaN or infinite numbers in {what}; leave those episodes out"
                )


def minari() -> Any:
    try:
        import minari as package
    except ImportError as error:
        raise UserError(NEEDS) from error
    return package


def read(name: str) -> TransitionTable:
    """A data set by Minari's name, or by the path of its directory."""
    if not name:
        raise UserError("no data set is named; add --dataset NAME, a name that Minari knows or the path of a directory")
    package, path = minari(), Path(name)
    inside = path / "data" if (path / "data").is_dir() else path
    try:
        found = package.MinariDataset(inside) if inside.is_dir() else package.load_dataset(name)
        spaces = (found.observation_space, found.action_space)
        if any(type(space).__name__ != "Box" or len(space.shape) != 1 for space in spaces):
            raise UserError(
                f"the data set {name} is of spaces {spaces[0]} and {spaces[1]}; wanted boxes of one dimension"
            )
        return TransitionTable.of_episodes(found.iterate_episodes())
    except UserError:
        raise
    except (OSError, KeyError, ValueError, EOFError, RuntimeError) as error:
        raise UserError(
            f"the data set {name} cannot be read: {error}; is it complete, and is it one of Minari's?"
        ) from error
