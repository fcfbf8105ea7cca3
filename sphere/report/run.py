"""A run as a report knows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("evaluation", "retention", "final")
"""When an episode was played: during a task, at a task boundary, at the end of the sequence."""


@dataclass(frozen=True)
class Episodes:
    """Evaluation episodes of one run, a column per field."""

    step: np.ndarray
    task: np.ndarray
    """Index into the run's tasks."""
    kind: np.ndarray
    """Index into KINDS; -1 for one that a report does not know."""
    success_at_end: np.ndarray
    success_once: np.ndarray
    returns: np.ndarray


@dataclass(frozen=True)
class Curve:
    """Evaluations of the task in training, in order."""

    step: np.ndarray
    task: np.ndarray
    wall: np.ndarray
    """Seconds, by the clock."""
    values: Mapping[str, np.ndarray]
    """By the name of the metric; NaN where an evaluation did not have it or it does not apply."""


@dataclass(frozen=True)
class Run:
    path: Path
    name: str
    """Its path below what all loaded runs have in common."""
    method: str
    protocol: str
    seed: int
    tasks: tuple[str, ...]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    steps: int
    """Environment steps so far."""
    curve: Curve
    episodes: Episodes

    @property
    def suite(self) -> str:
        return self.tasks[0].split("/")[0]

    @property
    def task_steps(self) -> int:
        """Environment steps of a task, in whole rollouts."""
        ppo = self.config.get("ppo") or {}
        rollout = int(ppo.get("num_envs", 1)) * int(ppo.get("rollout_steps", 1))
        return -(-int(self.config["steps_per_task"]) // rollout) * rollout

    @property
    def speed(self) -> float | None:
        """Environment steps per second of this run, its evaluations included. A pause (it was stopped and resumed) counts
        as three times the usual time of its steps at most."""
        steps, seconds = np.diff(self.curve.step), np.diff(self.curve.wall)
        known = (steps > 0) & (seconds > 0)
        if not known.any():
            return None
        steps, seconds = steps[known], seconds[known]
        usual = np.median(seconds / steps)
        return float(steps.sum() / np.minimum(seconds, 3 * usual * steps).sum())

    @property
    def finished(self) -> bool:
        return self.steps >= self.task_steps * len(self.tasks)


@dataclass(frozen=True)
class Loaded:
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    """What was left out and why, a sentence each."""
