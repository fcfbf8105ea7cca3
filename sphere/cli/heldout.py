"""How the held-out states of a suite are made: which policy is trained, and how its states are gathered."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sphere import envs
from sphere.algos import ppo
from sphere.algos.ppo import PPOConfig
from sphere.envs.heldout import Heldout, load, save
from sphere.envs.source import unit_noise
from sphere.nets import NetConfig
from sphere.presets import preset
from sphere.storage import provenance, run_directory
from sphere.training.fleet import Fleet
from sphere.training.settings import Evaluation, FleetConfig

ENVS = 8

_SMALL = NetConfig(kind="mlp", width=64, depth=2)


def _recipe(name: str, **changes: Any) -> FleetConfig:
    """A small dense policy without any method, trained as the preset trains."""
    start = preset(name)
    settings = {**vars(start.ppo), "actor": _SMALL, "critic": _SMALL, "penalty": None, "epochs": 5}
    evaluation = Evaluation(every=500_000, heldout=0)
    return dataclasses.replace(start, rho=(0.0,), ppo=PPOConfig(**settings), evaluation=evaluation, **changes)


RECIPES = {
    "humanoidbench": _recipe("humanoidbench-rl", tasks=("humanoidbench/stair",), steps_per_task=1_500_000),
    "metaworld": _recipe("metaworld-crl", steps_per_task=65_536, normalise_observations=True),
}
"""The policy of each suite: Stair, which no comparison trains on; and a walk through all ten tasks of CW10."""


def make(config: FleetConfig, directory: Path, count: int, path: Path, seed: int = 0) -> Heldout:
    """States of the first run of a trained fleet, as many from each of its tasks, to a file."""
    fleet = Fleet(config, directory)
    try:
        fleet.resume()
        actor = jax.tree.map(lambda leaf: leaf[:1], fleet.actor)
        kept, steps = fleet.statistics, fleet.steps
    finally:
        fleet.close()
    scale = kept.normalise if kept is not None else partial(np.asarray, dtype=np.float32)
    rng = np.random.default_rng(seed)
    found, returns = [], {}
    for i, task in enumerate(config.tasks):
        share = count * (i + 1) // len(config.tasks) - count * i // len(config.tasks)
        states, returns[task] = _visited(actor, scale, config, task, seed)
        found.append(states[rng.permutation(len(states))[:share]])
    states = rng.permutation(np.concatenate(found))
    settings = run_directory.plain(dataclasses.asdict(config))
    facts = {"tasks": list(config.tasks), "steps": steps, "mean_return": returns, "seed": seed, "settings": settings}
    save(path, states, facts | {"environment": provenance.describe()})
    return load(path)


def _visited(actor: Any, scale: Any, config: FleetConfig, task: str, seed: int) -> tuple[np.ndarray, float]:
    """All states that the policy, acting as in training, meets in one horizon of eight environments; its mean return."""
    with envs.make(task, num_envs=ENVS, seed=seed, workers=0, **config.simulator.given()) as pool:
        raw, _ = pool.reset()
        shape = (pool.horizon, ENVS, pool.single_action_space.shape[0])
        noise = unit_noise(np.array([seed]), 0, shape)[0]
        noise = noise * np.exp(np.asarray(actor.log_std))
        seen, returns = [raw], []
        for t in range(pool.horizon):
            action = np.asarray(ppo.mean_fleet(actor, scale(raw[None])))[0] + noise[t]
            raw, _, _, _, infos = pool.step(action)
            seen.append(raw)
            if "episode" in infos:
                returns += infos["episode"]["r"][infos["_episode"]].tolist()
    return np.concatenate(seen), float(np.mean(returns)) if returns else float("nan")
