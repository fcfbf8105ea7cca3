"""Settings by name: `sphere train --preset NAME`."""

import dataclasses
from typing import Any

from sphere import registry
from sphere.algos.classifier import Classifier
from sphere.algos.ppo import PPO
from sphere.algos.td3 import TD3
from sphere.algos.td3_bc import TD3BC
from sphere.data.offline import Offline
from sphere.data.streams import Stream
from sphere.envs.environments import Environments
from sphere.errors import unknown
from sphere.methods import LayerNorm, Sphere
from sphere.nets import NetConfig, TransformerConfig
from sphere.training.settings import Boundary, Evaluation, FleetConfig

_SMALL = NetConfig(kind="top-k", width=32, depth=2, experts=4, top_k=2)

_PROBE = FleetConfig(
    tasks=("probe/reach-north", "probe/reach-east", "probe/reach-south", "probe/reach-west"),
    steps_per_task=40_960,
    rho=(0.0, 0.1),
    source=Environments(),
    learner=PPO(
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

# The paper's settings are the defaults of PPO and NetConfig: 8 envs x 2048 steps, minibatches of 256, ten epochs,
# Top-2 of ten experts of three layers of 256.
_METAWORLD = FleetConfig(
    tasks=tuple(f"metaworld/{task}" for task in CW10), rho=(0.1,), learner=PPO(), source=Environments()
)

# The released code names MetaWorld's frozen-goal environments; its default coefficient is 0.05, by loss ratio.
_METAWORLD_RELEASED = dataclasses.replace(
    _METAWORLD,
    rho=(0.05,),
    source=Environments(goals="frozen"),
    learner=PPO(methods=(Sphere(coefficient="loss-ratio"),)),
)

# The paper says "a ResNet" and no more: an IMPALA ResNet for actor and critic each, all else as from states.
_METAWORLD_PIXELS = dataclasses.replace(
    _METAWORLD,
    tasks=tuple(f"metaworld-pixels/{task}" for task in CW10),
    learner=PPO(actor=NetConfig(encoder="impala"), critic=NetConfig(kind="mlp", encoder="impala")),
    evaluation=Evaluation(heldout=64),
)

# Ten tasks twice: the longer chain as Continual World has it; the paper does not name its tasks.
_METAWORLD_TWICE = dataclasses.replace(_METAWORLD, tasks=2 * _METAWORLD.tasks)

# The paper gives no settings of TD3: those of SBX, with exploration noise and a warm-up of 10,000 steps in every task.
_METAWORLD_TD3 = dataclasses.replace(_METAWORLD, learner=TD3(), checkpoint_every=250)
_METAWORLD_TD3_LN = dataclasses.replace(
    _METAWORLD_TD3, learner=TD3(methods=(Sphere(placement="critic"), LayerNorm(placement="critic")))
)

# The authors' settings, and a fifth of their 1e6 updates. One set of all ten tasks; a tenth of training is named after
# each of them, and the final policy is evaluated on all.
_METAWORLD_TD3_BC = dataclasses.replace(
    _METAWORLD,
    steps_per_task=20_000,
    learner=TD3BC(),
    source=Offline(dataset="metaworld/scripted-v0"),
    boundary=Boundary(replay=True),
    evaluation=Evaluation(every=20_000),
    checkpoint_every=50,
)

H1 = ("stand", "walk", "pole", "slide", "run")
"""HumanoidBench's tasks in the paper's order."""

_HUMANOIDBENCH = FleetConfig(
    tasks=tuple(f"humanoidbench/{task}" for task in H1),
    steps_per_task=10_000_000,
    rho=(1e-3,),
    learner=PPO(num_envs=128, rollout_steps=16, batch_size=64, anneal=0.5),
    source=Environments(normalise_observations=True),
    checkpoint_every=100,
)

# The KL-adaptive rate takes the place of any schedule.
_HUMANOIDBENCH_RELEASED = dataclasses.replace(
    _HUMANOIDBENCH, learner=dataclasses.replace(_HUMANOIDBENCH.learner, target_kl=0.03)
)

_DEMO = FleetConfig(
    tasks=("metaworld/faucet-close", "metaworld/window-close"),
    steps_per_task=143_360,
    seeds=(0, 1),
    rho=(0.0, 0.1),
    source=Environments(horizon=200, normalise_observations=True),
    learner=PPO(
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

# Streams of labelled tasks: an iteration is an epoch. What the paper leaves open: docs/streams.md.
_CIFAR100 = FleetConfig(
    tasks=tuple(f"cifar100/{i}" for i in range(20)),
    steps_per_task=5 * 2500,
    learner=Classifier(),
    source=Stream(augment=True),
    evaluation=Evaluation(heldout=128),
    checkpoint_every=5,
)

_CIFAR100_VIT = dataclasses.replace(
    _CIFAR100,
    learner=Classifier(
        actor=NetConfig(
            width=256,
            depth=1,
            activation="gelu",
            experts=128,
            transformer=TransformerConfig(layers=8, heads=8, width=256, patch=4),
        ),
        methods=(Sphere(rows=1024),),
    ),
    evaluation=Evaluation(heldout=32),
    checkpoint_every=50,  # of 1.6 GB for each run
)

_NEWSGROUPS = FleetConfig(
    tasks=tuple(f"newsgroups/{i}" for i in range(400)),
    steps_per_task=50,
    learner=Classifier(
        examples=50,
        batch_size=64,
        learning_rate=1e-3,
        weight_decay=0.3,
        actor=NetConfig(
            width=1024,
            depth=1,
            activation="gelu",
            experts=8,
            top_k=1,
            temperature=0.01,
            transformer=TransformerConfig(layers=4, heads=8, width=128),
        ),
        methods=(Sphere(mixtures="all", rows=1024),),
    ),
    source=Stream(classes=10, drawn=True, per_class=5, test_per_class=50, argmax="task", diagnose_every=20),
    evaluation=Evaluation(heldout=32),
    checkpoint_every=50,
)


def _with_encoder(stream: FleetConfig, **encoder: Any) -> FleetConfig:
    """The same with other settings of the Transformer."""
    actor = stream.learner.actor
    actor = dataclasses.replace(actor, transformer=dataclasses.replace(actor.transformer, **encoder))
    return dataclasses.replace(stream, learner=dataclasses.replace(stream.learner, actor=actor))


_NEWSGROUPS_DEMO = dataclasses.replace(
    _NEWSGROUPS,
    tasks=_NEWSGROUPS.tasks[:6],
    steps_per_task=4 * 200,
    rho=(0.0, 0.1),
    learner=Classifier(
        examples=200,
        batch_size=25,
        learning_rate=2e-3,
        actor=NetConfig(
            width=64,
            depth=1,
            activation="gelu",
            experts=4,
            transformer=TransformerConfig(layers=1, heads=4, width=64),
        ),
        methods=(Sphere(rows=256),),
    ),
    source=Stream(
        classes=4,
        drawn=True,
        per_class=50,
        test_per_class=50,
        argmax="task",
        length=64,
        vocabulary=5000,
        diagnose_every=3,
    ),
    evaluation=Evaluation(heldout=16),
    checkpoint_every=4,
)

_CONTINUAL = {
    "metaworld": (_METAWORLD, _METAWORLD_RELEASED),
    "humanoidbench": (_HUMANOIDBENCH, _HUMANOIDBENCH_RELEASED),
}

PRESETS: dict[str, FleetConfig] = {
    f"{suite}-{protocol}{suffix}": dataclasses.replace(config, protocol=protocol)
    for suite, configs in _CONTINUAL.items()
    for config, suffix in zip(configs, ("", "-released"), strict=True)
    for protocol in ("crl", "rl")
} | {
    "metaworld-cw20": _METAWORLD_TWICE,
    "metaworld-pixels-crl": _METAWORLD_PIXELS,
    "metaworld-pixels-rl": dataclasses.replace(_METAWORLD_PIXELS, protocol="rl"),
    "metaworld-crl-td3": _METAWORLD_TD3,
    "metaworld-rl-td3": dataclasses.replace(_METAWORLD_TD3, protocol="rl"),
    "metaworld-crl-td3-ln": _METAWORLD_TD3_LN,
    "metaworld-rl-td3-ln": dataclasses.replace(_METAWORLD_TD3_LN, protocol="rl"),
    "metaworld-td3-bc": _METAWORLD_TD3_BC,
    "cifar100-mlp": _CIFAR100,
    "cifar100-vit": _CIFAR100_VIT,
    "cifar100-vit-post-ln": _with_encoder(_CIFAR100_VIT, norm="after"),
    "metaworld-demo": _DEMO,
    "newsgroups": _NEWSGROUPS,
    # with K = 1 the temperature and the router's learning need it
    "newsgroups-all": _with_encoder(_NEWSGROUPS, softmax="all"),
    # as PyTorch's own modules
    "newsgroups-plain": _with_encoder(_NEWSGROUPS, norm="after", masked=False, word_deviation=1.0),
    "newsgroups-post-ln": _with_encoder(_NEWSGROUPS, norm="after"),
    "newsgroups-demo": _NEWSGROUPS_DEMO,
    "probe-crl": _PROBE,
    "probe-rl": dataclasses.replace(_PROBE, protocol="rl"),
}


def preset(name: str) -> FleetConfig:
    known = PRESETS | registry.PRESETS
    if name not in known:
        raise unknown("preset", name, known)
    return known[name]
