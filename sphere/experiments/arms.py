"""The arms of an experiment as plain values, and the paper's methods by the names of its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Arm:
    """Runs of one setting that a table or figure shows under one label: a preset and what is changed in it."""

    label: str
    """As the paper calls it."""
    method: str = "none"
    """As on the command line; several are joined by +."""
    actor: str = "top-k"
    preset: str = "humanoidbench-crl"
    rho: float | None = None
    """None: the preset's."""
    net: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the actor's network."""
    penalty: Mapping[str, Any] = field(default_factory=dict)
    """Changes to SPHERE's settings."""
    tasks: int | None = None
    """Only so many of the preset's tasks, from the first one on."""


METHODS: dict[str, tuple[str, str]] = {
    "PPO": ("none", "ppo"),
    "PPO(10x)": ("none", "ppo-10x"),
    "Top-K MoE": ("none", "top-k"),
    "LN": ("layernorm", "top-k"),
    "Dense-MoE": ("none", "dense-moe"),
    "DS-MoE": ("none", "ds-moe"),
    "SPHERE": ("sphere", "top-k"),
    "PW": ("parseval", "top-k"),
    "C-CHAIN": ("c-chain", "top-k"),
    "CBP": ("cbp", "top-k"),
}
"""Label -> method and actor, by their names on the command line."""

PAIR = ("Top-K MoE", "SPHERE")
ARCHITECTURES = ("PPO", "Top-K MoE", "Dense-MoE", "DS-MoE")
OF_SUITE: dict[str, tuple[str, ...]] = {
    "metaworld": tuple(name for name in METHODS if name not in ("Dense-MoE", "DS-MoE")),
    "humanoidbench": tuple(METHODS),
}
"""Methods of the paper's tables of a suite."""


def methods(labels: Sequence[str], preset: str = "humanoidbench-crl") -> tuple[Arm, ...]:
    return tuple(Arm(label, *METHODS[label], preset=preset) for label in labels)
