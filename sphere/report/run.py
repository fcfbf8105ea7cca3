"""A run as a report knows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sphere.storage.reader import Curve, EpisodeTable


@dataclass(frozen=True)
class Run:
    path: Path
    name: str
    """Its path below what all loaded runs have in common."""
    method: str
    """Its label, with what tells it from others of the same label."""
    seed: int
    tasks: tuple[str, ...]
    """In their order; the second visit of a task is "suite/task (2)", so every name is there once."""
    score: str
    """The column of outcomes that counts."""
    config: Mapping[str, Any]
    """config.json, format 2."""
    environment: Mapping[str, Any]
    steps: int
    """Steps so far."""
    curve: Curve
    episodes: EpisodeTable

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.config["settings"]

    @property
    def protocol(self) -> str:
        return self.settings["protocol"]

    @property
    def suite(self) -> str:
        return self.config["suite"]

    @property
    def task_steps(self) -> int:
        """Steps of a task, in whole iterations."""
        return self.config["task_steps"]

    @property
    def steps_per_task(self) -> int:
        """As it was asked for."""
        return int(self.settings["steps_per_task"])

    @property
    def speed(self) -> float | None:
        """Steps per second of this run, its evaluations included. A pause (it was stopped and resumed) counts as three
        times the usual time of its steps at most."""
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
