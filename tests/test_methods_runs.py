"""Methods in training: every one learns and resumes, and a task switch keeps or renews what they know."""

import dataclasses

import fleets
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import (
    assert_same_bits,
    fresh,
    small,
    with_methods,
)

from sphere.algos import rows
from sphere.algos.ppo import PPO
from sphere.choices import with_method
from sphere.envs.environments import Environments
from sphere.methods import CBP, CChain, ReDo, SpectralNorm
from sphere.nets import NetConfig
from sphere.storage import checkpoint, run_directory
from sphere.training import loop
from sphere.training.group import Order
from sphere.training.loop import train
from sphere.training.settings import NOTHING, Boundary, Evaluation, FleetConfig, from_json

TRAINED = ["c-chain", "cbp", "parseval", "redo", "spectral-norm", "spectral-reg", "load-balance", "sphere+layernorm"]
"""All but none and sphere alone, which every other test of training trains."""

# Two short tasks with a known best action; busy methods are made to act within them.
LADDER = FleetConfig(
    tasks=("probe/observed-action", "probe/observed-action"),
    steps_per_task=12 * 256,
    seeds=(0,),
    rho=(0.0, 0.1),
    learner=PPO(
        num_envs=16,
        rollout_steps=16,
        batch_size=64,
        epochs=8,
        gamma=0.8,
        learning_rate=1e-2,
        final_learning_rate=1e-3,
        actor=NetConfig(kind="top-k", width=12, depth=1, experts=3, top_k=2),
        critic=NetConfig(kind="mlp", width=12, depth=1, activation="tanh"),
    ),
    evaluation=Evaluation(every=100_000, episodes=16, heldout=0),
    checkpoint_every=4,
    source=Environments(workers=0),
)
BUSY = {
    "cbp": CBP(maturity=100, replacement_rate=1e-3),
    "redo": ReDo(period=50, tau=0.025),
    "spectral-norm": SpectralNorm(layers="hidden"),
}


def fleet_of(method: str) -> FleetConfig:
    if method not in BUSY:
        return with_method(LADDER, method)
    return dataclasses.replace(LADDER, rho=(0.0,), learner=with_methods(LADDER.learner, BUSY[method]))


def stopped_and_resumed(config, directory, after):
    """Broken off in the middle of an iteration, as by a crash, and taken up from the last checkpoint."""
    fleets.write(config, directory)
    fleets.cut_after(after, config, directory)
    newest = checkpoint.checkpoints(directory)[-1]
    assert 0 < int(newest.stem.rsplit("-", 1)[1]) < after - 1  # it goes on from there, and some iterations come twice
    train(config, directory, resume=True, quiet=True)


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_learns_and_resumes_to_the_same_numbers(method, tmp_path):
    config = fleet_of(method)
    train(config, tmp_path / "straight", quiet=True)
    stopped_and_resumed(config, tmp_path / "resumed", after=18)  # in the second task
    fleets.assert_same(tmp_path / "straight", tmp_path / "resumed")
    for one_run in config.runs:
        path = tmp_path / "straight" / one_run.name
        events = run_directory.read_events(path)
        returns = [event["train/return"] for event in events if "train/return" in event]
        last = [event["evaluation/return"] for event in events if "evaluation/return" in event][-1]
        assert last > returns[0]
        saved = from_json(run_directory.read_config(path)["settings"])
        assert saved.learner.methods == config.learner.methods
        replaced = sum(event.get("train/replaced", 0) for event in events)
        assert (replaced > 0) == ("cbp" in method or "redo" in method)


def test_a_task_switch_keeps_or_renews_what_methods_know():
    config = with_methods(small(), SpectralNorm(layers="hidden"), CChain(), CBP())
    seeds = jnp.array([0, 1], jnp.uint32)
    new = fresh(config, seeds)
    state = jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf), new)
    kept = rows.cross(config, Boundary(), state, new, seeds)
    assert_same_bits(kept.methods["cbp"], state.methods["cbp"])
    assert_same_bits(kept.methods["spectral-norm"], state.methods["spectral-norm"])
    chain = kept.methods["c-chain"]
    assert not np.any([chain[name] for name in ("steps", "iterations")])
    np.testing.assert_array_equal(chain["weight"], 100)
    renewed = rows.cross(config, Boundary(methods=False), state, new, seeds)
    assert_same_bits(renewed.methods["cbp"], new.methods["cbp"])
    assert_same_bits(renewed.methods["c-chain"]["previous"], state.nets["actor"])  # of the networks as they are
    for before in (kept, renewed):
        assert_same_bits((before.nets, before.moments), (state.nets, state.moments))
    gone = rows.cross(config, NOTHING, state, new, seeds)
    assert_same_bits(gone, new)


def test_boundaries_reach_the_methods(tmp_path):
    config = fleet_of("cbp")
    ages = {}
    for name, boundary in {
        "kept": Boundary(),
        "renewed": Boundary(methods=False),
        "gone": Boundary(parameters=False),
    }.items():
        fleet = loop.Fleet(dataclasses.replace(config, boundary=boundary), tmp_path)
        try:
            fleet.begin_task()
            fleet.groups[0].advance(Order(0, 0, 1.0))
            fleet.groups[0].enter(config.tasks[1], fleet.config.kept)
            ages[name] = int(np.max(fleet.state.methods["cbp"]["critic"]["expert"][0].age))
        finally:
            fleet.close()
    assert ages == {"kept": 32, "renewed": 0, "gone": 0}
