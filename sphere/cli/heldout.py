"""`sphere heldout`: how the held-out states of a suite are made, by which policy, and how its states are gathered."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from sphere import envs
from sphere.envs.heldout import Heldout, load, save
from sphere.envs.player import unit_noise
from sphere.errors import UserError, unknown
from sphere.nets import NetConfig
from sphere.presets import preset
from sphere.saved import Policy, SavedFleet
from sphere.storage import provenance
from sphere.training.settings import Evaluation, FleetConfig, to_json

ENVS = 8

_SMALL = NetConfig(kind="mlp", width=64, depth=2)


def _recipe(name: str, normalise: bool, **changes: Any) -> FleetConfig:
    """A small dense policy without any method, trained as the preset trains."""
    start = preset(name)
    learner = dataclasses.replace(start.learner, actor=_SMALL, critic=_SMALL, methods=(), epochs=5)
    source = dataclasses.replace(start.source, normalise_observations=normalise)
    evaluation = Evaluation(every=500_000, heldout=0)
    return dataclasses.replace(start, rho=(0.0,), learner=learner, source=source, evaluation=evaluation, **changes)


RECIPES = {
    "humanoidbench": _recipe("humanoidbench-rl", True, tasks=("humanoidbench/stair",), steps_per_task=1_500_000),
    "metaworld": _recipe("metaworld-crl", True, steps_per_task=65_536),
}
"""The policy of each suite: Stair, which no comparison trains on; and a walk through all ten tasks of CW10."""


def make(directory: Path, count: int, path: Path, seed: int = 0) -> Heldout:
    """States of the first run of a trained fleet, as many from each of its tasks, to a file."""
    fleet = SavedFleet.open(directory)
    policy, config = Policy(fleet, 0), fleet.config
    rng = np.random.default_rng(seed)
    found, returns = [], {}
    for i, task in enumerate(config.tasks):
        share = count * (i + 1) // len(config.tasks) - count * i // len(config.tasks)
        states, returns[task] = _visited(policy, config, task, seed)
        found.append(states[rng.permutation(len(states))[:share]])
    states = rng.permutation(np.concatenate(found))
    facts = {"tasks": list(config.tasks), "steps": fleet.steps, "mean_return": returns, "seed": seed}
    save(path, states, facts | {"settings": to_json(config), "environment": provenance.describe()})
    return load(path)


def _visited(policy: Policy, config: FleetConfig, task: str, seed: int) -> tuple[np.ndarray, float]:
    """The states that the policy meets in one horizon of eight environments, acting as in training; its mean return."""
    with envs.make(task, num_envs=ENVS, seed=seed, workers=0, **config.source.of_suite()) as pool:
        raw, _ = pool.reset()
        shape = (pool.horizon, ENVS, pool.single_action_space.shape[0])
        noise = unit_noise(np.array([seed]), 0, shape)[0] * policy.net.spread()
        seen, returns = [raw], []
        for t in range(pool.horizon):
            raw, _, _, _, infos = pool.step(policy.act(raw) + noise[t])
            seen.append(raw)
            if "episode" in infos:
                returns += infos["episode"]["r"][infos["_episode"]].tolist()
    return np.concatenate(seen), float(np.mean(returns)) if returns else float("nan")


@dataclass(frozen=True)
class MakeHeldout:
    """Train the policy whose states r_e(K) is compared on, and store a batch of them. Repeat the command to resume."""

    suite: tyro.conf.Positional[str]
    states: int = 512
    work: Path | None = None
    """Where the policy is trained; default: runs/heldout- and the suite's name."""
    out: Path | None = None
    """Default: the suite's name and .npz, here; the package's own are in sphere/heldout/."""


def _check_states(config: FleetConfig, states: int) -> None:
    """Refuse what cannot be had, before hours of training."""
    if states < 1:
        raise UserError(f"--states {states}; want at least 1, the shipped batches have 512")
    with envs.make(config.tasks[0], num_envs=1, seed=0, workers=0, **config.source.of_suite()) as pool:
        most = len(config.tasks) * ENVS * (pool.horizon + 1)
    if states > most:
        raise UserError(
            f"--states {states:,}; want at most the {most:,} that the policy meets, the shipped batches have 512"
        )


def heldout(arguments: list[str]) -> None:
    from sphere.training.loop import Interrupted
    from sphere.training.loop import train as run

    options = tyro.cli(MakeHeldout, prog="sphere heldout", args=arguments)
    if options.suite not in RECIPES:
        raise unknown("recipe for held-out states of", options.suite, list(RECIPES))
    _check_states(RECIPES[options.suite], options.states)
    work = options.work or Path("runs") / f"heldout-{options.suite}"
    out = options.out or Path(f"{options.suite}.npz")
    try:
        run(RECIPES[options.suite], work, resume=(work / "fleet.json").exists())
    except Interrupted as stopped:
        raise Interrupted(f"{stopped.at}; continue with the same command") from None
    batch = make(work, options.states, out)
    states, size = batch.states.shape
    print(f"{out}: {states} states of {size} numbers, sha256 {batch.provenance['sha256'][:12]}…")
    for task, mean in batch.provenance["mean_return"].items():
        print(f"  {task:<32} mean return {mean:.1f}")
