"""A critic that reads the features of the actor's encoder. The encoder belongs to the actor and is stepped with it;
both losses reach it, as if their sum were differentiated."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from sphere.errors import UserError
from sphere.methods.method import Method, overrides
from sphere.nets import EncoderTrunk, NetConfig, Value, build


def check(methods: tuple[Method, ...]) -> None:
    """Refuse methods that would need the critic's own inputs."""
    for method in methods:
        if overrides(method, "gradient") and getattr(method, "placement", None) in ("critic", "both"):
            raise UserError(
                f"{method.name} on the critic needs an encoder of the critic's own; set the critic's encoder to impala "
                "or resnet-18, or place the method on the actor"
            )


def on_features(config: NetConfig, actor: Any, *, key: PRNGKeyArray) -> Any:
    """The critic's own part, for the trunk of an actor."""
    if not isinstance(actor, EncoderTrunk):
        raise UserError(
            "the critic's encoder is shared, and the actor has none; set the actor's to impala or resnet-18"
        )
    return build(dataclasses.replace(config, encoder=None), actor.encoder.features, 1, key=key)


def whole(critic: Value, actor: Any) -> Value:
    """The critic with the encoder of an actor."""
    own: Any = critic.trunk
    return Value(EncoderTrunk(actor.trunk.encoder, own))


def jointly(losses: Mapping[str, Callable], nets: Mapping[str, Any]) -> dict[str, Callable]:
    """The losses of actor and critic (value, facts, trace) for this kind of critic; each moves its own network only."""
    actor, critic = (jax.lax.stop_gradient(nets[role]) for role in ("actor", "critic"))

    def of_actor(net: Any) -> tuple[Any, Any, Any]:
        loss, facts, trace = losses["actor"](net)
        return loss + losses["critic"](whole(critic, net))[0], facts, trace

    return {"actor": of_actor, "critic": lambda net: losses["critic"](whole(net, actor))}
