"""What settings of TD3 have to agree with each other, and which methods act on its critic."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sphere.errors import in_range
from sphere.methods import Method
from sphere.methods.method import check_together
from sphere.nets import NetConfig

BOUNDS: dict[str, tuple[float | None, float | None]] = {
    **dict.fromkeys(("num_envs", "rollout_steps", "batch_size", "buffer_size", "policy_delay"), (1, None)),
    **dict.fromkeys(("gamma", "tau"), (0, 1)),
    **dict.fromkeys(("learning_starts", "exploration", "target_noise", "target_noise_clip"), (0, None)),
    **dict.fromkeys(("learning_rate", "critic_learning_rate", "adam_eps", "update_ratio"), (0, None)),
}


def check_sizes(config: Any) -> None:
    in_range(config, {name: bound for name, bound in BOUNDS.items() if hasattr(config, name)}, f"{config.name}.")
    name, batch, buffer = config.name, config.batch_size, config.buffer_size
    if batch > buffer:
        raise ValueError(
            f"{name}.batch_size={batch} is larger than {name}.buffer_size={buffer}: no minibatch could be drawn; "
            "use a smaller batch or a larger buffer"
        )
    if config.learning_starts > buffer:
        raise ValueError(
            f"{name}.learning_starts={config.learning_starts} is larger than {name}.buffer_size={buffer}: nothing "
            "would ever be learned; start earlier or use a larger buffer"
        )
    if 0 < config.learning_starts < batch:
        raise ValueError(
            f"{name}.learning_starts={config.learning_starts} does not fill a minibatch of {batch}; use {batch} or "
            "more, or a smaller batch"
        )


def check_critic_methods(learner: str, methods: tuple[Method, ...], nets: Mapping[str, NetConfig]) -> None:
    """Refuse methods that exclude each other, that act on a policy, or that could have no effect on the critic."""
    check_together(methods)
    for method in methods:
        placement = getattr(method, "placement", "critic")
        if placement != "critic":
            fixed = "placement" not in {one.name for one in dataclasses.fields(method)}  # type: ignore[arg-type]
            why = "it is made for a policy" if fixed else f"its placement is {placement!r}"
            remedy = "choose another method" if fixed else "use placement 'critic'"
            raise ValueError(
                f"{method.name} has no effect here: methods act on the critic of {learner}, and {why}; {remedy}"
            )
        method.check({"critic": nets["critic"]})
