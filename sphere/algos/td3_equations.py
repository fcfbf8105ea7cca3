"""The equations of TD3 and TD3+BC: the target, the two losses, and how targets follow. Actions are in [-1, 1] here."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sphere.nets import DeterministicActor, Trace, TwinQ

Judge = Literal["minimum", "first"]
"""Which value the actor climbs: the smaller of both critics (SBX), or the first critic's (the authors)."""


class Transition(NamedTuple):
    obs: Float[Array, "n obs"]
    action: Float[Array, "n act"]
    reward: Float[Array, " n"]
    next_obs: Float[Array, "n obs"]
    terminated: Float[Array, " n"]
    """1 where the episode terminated; 0 at a time limit, which bootstraps."""


def joint(obs: Float[Array, "n obs"], action: Float[Array, "n act"]) -> Float[Array, "n both"]:
    """What the trunks of a critic read."""
    return jnp.concatenate([obs, action], axis=1)


def bellman_target(
    actor: DeterministicActor, critic: TwinQ, batch: Transition, noise: Float[Array, "n act"], gamma: float
) -> Float[Array, " n"]:
    """y = r + gamma (1 - terminated) min over both target critics at clip(target actor + noise, -1, 1)."""
    action = jnp.clip(actor(batch.next_obs)[0] + noise, -1, 1)
    value = jnp.min(critic(batch.next_obs, action)[0], axis=0)
    return jax.lax.stop_gradient(batch.reward + gamma * (1 - batch.terminated) * value)


def critic_loss(
    critic: TwinQ, batch: Transition, target: Float[Array, " n"], weight: float
) -> tuple[Float[Array, ""], Float[Array, ""], dict[str, Trace]]:
    """weight * the sum over both critics of the mean squared error; and the mean value."""
    value, traces = critic(batch.obs, batch.action)
    return weight * jnp.sum(jnp.mean(jnp.square(value - target[None]), axis=1)), jnp.mean(value), traces


def actor_loss(
    actor: DeterministicActor, critic: TwinQ, batch: Transition, judge: Judge, alpha: float | None = None
) -> tuple[Float[Array, ""], None, Trace]:
    """-mean Q(s, pi(s)); with alpha that of TD3+BC: -lambda mean Q(s, pi(s)) + mean (pi(s) - a)^2, where
    lambda = alpha / mean |Q| is not differentiated."""
    action, trace = actor(batch.obs)
    values = critic(batch.obs, action)[0]
    value = values[0] if judge == "first" else jnp.min(values, axis=0)
    if alpha is None:
        return -jnp.mean(value), None, trace
    scale = jax.lax.stop_gradient(alpha / jnp.mean(jnp.abs(value)))
    return -scale * jnp.mean(value) + jnp.mean(jnp.square(action - batch.action)), None, trace


def follow(target: Any, net: Any, tau: float) -> Any:
    """Polyak averaging: target + tau (net - target)."""
    return jax.tree.map(lambda old, new: old + tau * (new - old), target, net)
