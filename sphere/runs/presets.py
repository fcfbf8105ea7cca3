"""Settings by name: `sphere train --preset NAME`."""

import dataclasses
import difflib

from sphere.algos.ppo import PPOConfig
from sphere.nets import NetConfig
from sphere.runs.settings import Evaluation, FleetConfig, Simulator
from sphere.variants import PenaltyConfig

_SMALL = NetConfig(kind="top-k", width=32, depth=2, experts=4, top_k=2)

_PROBE = FleetConfig(
    tasks=("probe/reach-north", "probe/reach-east", "probe/reach-south", "probe/reach-west"),
    steps_per_task=40_960,
    rho=(0.0, 0.1),
    ppo=PPOConfig(
        num_envs=8,
        rollout_steps=128,
        batch_size=128,
        epochs=6,
        learning_rate=1e-3,
        final_learning_rate=3e-4,
        actor=_SMALL,
        critic=NetConfig(kind="mlp", width=32, depth=2),
    ),
    evaluation=Evaluation(every=10_240, episodes=20, heldout=128),
)

CW10 = (
    "hammer",
    "push-wall",
    "faucet-close",
    "push-back",
    "stick-pull",
    "handle-press-side",
    "push",
    "shelf-place",
    "window-close",
    "peg-unplug-side",
)
"""Continual World's ten tasks in their order."""

# The paper's settings are the defaults of PPOConfig and NetConfig: 8 envs x 2048 steps, minibatches of 256, ten epochs,
# Top-2 of ten experts of three layers of 256.
_METAWORLD = FleetConfig(tasks=tuple(f"metaworld/{task}" for task in CW10), rho=(0.1,))

# The released code has no MetaWorld settings of its own; what differs from the paper is its default coefficient.
_RELEASED = dataclasses.replace(_METAWORLD.ppo, penalty=PenaltyConfig(coefficient="loss-ratio"))

_DEMO = FleetConfig(
    tasks=("metaworld/faucet-close", "metaworld/window-close"),
    steps_per_task=102_400,
    seeds=(0, 1),
    rho=(0.0, 0.1),
    simulator=Simulator(horizon=200),
    normalise_observations=True,
    ppo=PPOConfig(
        num_envs=8,
        rollout_steps=256,
        batch_size=256,
        epochs=8,
        learning_rate=1e-3,
        final_learning_rate=3e-4,
        actor=NetConfig(kind="top-k", width=64, depth=2, experts=4, top_k=2),
        critic=NetConfig(kind="mlp", width=64, depth=2),
    ),
    evaluation=Evaluation(every=20_480, episodes=5, heldout=256),
    checkpoint_every=25,
)

PRESETS: dict[str, FleetConfig] = {
    "metaworld-crl": _METAWORLD,
    "metaworld-rl": dataclasses.replace(_METAWORLD, protocol="rl"),
    "metaworld-crl-released": dataclasses.replace(_METAWORLD, ppo=_RELEASED),
    "metaworld-rl-released": dataclasses.replace(_METAWORLD, protocol="rl", ppo=_RELEASED),
    "metaworld-demo": _DEMO,
    "probe-crl": _PROBE,
    "probe-rl": dataclasses.replace(_PROBE, protocol="rl"),
}


def preset(name: str) -> FleetConfig:
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PRESETS)}"
        raise ValueError(f"no preset {name!r}; {hint}")
    return PRESETS[name]
