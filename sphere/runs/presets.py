"""Settings by name: `sphere train --preset NAME`."""

import difflib

from sphere.algos.ppo import PPOConfig
from sphere.nets import NetConfig
from sphere.runs.settings import Evaluation, FleetConfig

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

PRESETS: dict[str, FleetConfig] = {
    "probe-crl": _PROBE,
    "probe-rl": FleetConfig(
        tasks=_PROBE.tasks,
        protocol="rl",
        steps_per_task=_PROBE.steps_per_task,
        rho=_PROBE.rho,
        ppo=_PROBE.ppo,
        evaluation=_PROBE.evaluation,
    ),
}


def preset(name: str) -> FleetConfig:
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PRESETS)}"
        raise ValueError(f"no preset {name!r}; {hint}")
    return PRESETS[name]
