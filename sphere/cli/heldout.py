"""`sphere heldout`: how the held-out states of a suite are made, by which policy, and how its states are gathered."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from sphere import envs
from sphere.envs.collector import unit_noise
from sphere.envs.heldout import Heldout, load, save
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

SEEN_BY = {"metaworld-pixels": "metaworld"}
"""Suites of images, and the suite with the same physics whose policy acts: images are drawn of what it does."""
STATES, IMAGES = 512, 64
"""Of a shipped batch."""


def make(directory: Path, count: int, path: Path, seed: int = 0, suite: str = "") -> Heldout:
    """States of the first run of a trained fleet, as many from each of its tasks, to a file. `suite`: not its own
    states, but images of them, from a suite with the same physics."""
    fleet = SavedFleet.open(directory)
    policy, config = Policy(fleet, 0), fleet.config
    rng = np.random.default_rng(seed)
    found, returns = [], {}
    for i, task in enumerate(config.tasks):
        share = count * (i + 1) // len(config.tasks) - count * i // len(config.tasks)
        states, returns[task] = _visited(policy, config, task, seed, suite)
        found.append(states[rng.permutation(len(states))[:share]])
    states = rng.permutation(np.concatenate(found))
    facts = {"tasks": list(config.tasks), "steps": fleet.steps, "mean_return": returns, "seed": seed}
    save(path, states, facts | {"settings": to_json(config), "environment": provenance.describe()})
    return load(path)


def _visited(policy: Policy, config: FleetConfig, task: str, seed: int, suite: str) -> tuple[np.ndarray, float]:
    """The states that the policy meets in one horizon, acting as in training, and its mean return. In eight
    environments; one where images are drawn of each of its states."""
    number = 1 if suite else ENVS
    with envs.make(task, num_envs=number, seed=seed, workers=0, **config.source.of_suite()) as pool:
        raw, _ = pool.reset()
        shape = (pool.horizon, number, pool.single_action_space.shape[0])
        noise = unit_noise(np.array([seed]), 0, shape)[0] * policy.net.spread()
        seen, actions, returns = [raw], [], []
        for t in range(pool.horizon):
            actions.append(policy.act(raw) + noise[t])
            raw, _, _, _, infos = pool.step(actions[t])
            seen.append(raw)
            if "episode" in infos:
                returns += infos["episode"]["r"][infos["_episode"]].tolist()
    if suite:
        seen = _drawn(f"{suite}/{task.split('/', 1)[1]}", actions, seed)
    return np.concatenate(seen), float(np.mean(returns)) if returns else float("nan")


def _drawn(task: str, actions: list[np.ndarray], seed: int) -> list[np.ndarray]:
    """What is seen where the same physics gets these actions."""
    with envs.make(task, num_envs=len(actions[0]), seed=seed, workers=0) as pool:
        return [pool.reset()[0], *(pool.step(action)[0] for action in actions)]


@dataclass(frozen=True)
class MakeHeldout:
    """Train the policy whose states r_e(K) is compared on, and store a batch of them. Repeat the command to resume."""

    suite: tyro.conf.Positional[str]
    states: int | None = None
    """Default: 512, of images 64."""
    work: Path | None = None
    """Where the policy is trained; default: runs/heldout- and the suite's name."""
    out: Path | None = None
    """Default: the suite's name and .npz, here; the package's own are in sphere/heldout/."""


def _check_states(config: FleetConfig, states: int, shipped: int) -> None:
    """Refuse what cannot be had, before hours of training."""
    if states < 1:
        raise UserError(f"--states {states}; want at least 1, the shipped batches have {shipped}")
    with envs.make(config.tasks[0], num_envs=1, seed=0, workers=0, **config.source.of_suite()) as pool:
        most = len(config.tasks) * ENVS * (pool.horizon + 1)
    if states > most:
        raise UserError(
            f"--states {states:,}; want at most the {most:,} that the policy meets, the shipped batches have {shipped}"
        )


def heldout(arguments: list[str]) -> None:
    from sphere.training.loop import Interrupted
    from sphere.training.loop import train as run

    options = tyro.cli(MakeHeldout, prog="sphere heldout", args=arguments)
    drawn = options.suite if options.suite in SEEN_BY else ""
    acted = SEEN_BY.get(options.suite, options.suite)
    if acted not in RECIPES:
        raise unknown("recipe for held-out states of", options.suite, [*RECIPES, *SEEN_BY])
    shipped = IMAGES if drawn else STATES
    states = shipped if options.states is None else options.states
    _check_states(RECIPES[acted], states, shipped)
    work = options.work or Path("runs") / f"heldout-{acted}"
    out = options.out or Path(f"{options.suite}.npz")
    try:
        run(RECIPES[acted], work, resume=(work / "fleet.json").exists())
    except Interrupted as stopped:
        raise Interrupted(f"{stopped.at}; continue with the same command") from None
    batch = make(work, states, out, suite=drawn)
    count, *shape = batch.states.shape
    each = f"images {shape}" if drawn else f"states of {shape[0]} numbers"
    print(f"{out}: {count} {each}, sha256 {batch.provenance['sha256'][:12]}…")
    for task, mean in batch.provenance["mean_return"].items():
        print(f"  {task:<32} mean return {mean:.1f}")
