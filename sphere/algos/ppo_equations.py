"""The equations of PPO: advantages, the two losses, and the rate that follows the KL divergence."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sphere.nets import GaussianActor, Trace, Value

Numbers = Any  # arrays of jax, or of numpy where they come from the host

LARGEST_LOG_RATIO = 20.0
"""Of a new policy to the one that acted. A sample with a negative advantage has no bound by itself: where the policy
runs away from it, exp overflows, and one infinity makes all parameters NaN. Beyond this (5e8) it has no gradient."""


class Rollout(NamedTuple):
    """One iteration's experience; leading axes [time, env] and, in a fleet, [run] before them."""

    obs: Float[Numbers, "*fleet time env obs"]
    action: Float[Numbers, "*fleet time env act"]
    log_prob: Float[Numbers, "*fleet time env"]
    reward: Float[Numbers, "*fleet time env"]
    next_obs: Float[Numbers, "*fleet time env obs"]
    """The true successor, also where the episode ended and another began."""
    terminated: Bool[Numbers, "*fleet time env"]
    done: Bool[Numbers, "*fleet time env"]
    """The episode ended here, by termination or time limit."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Rollout":
        """Of what a source gives, which may be more."""
        return cls(**{name: data[name] for name in cls._fields})


class Batch(NamedTuple):
    obs: Float[Array, "n obs"]
    action: Float[Array, "n act"]
    old_log_prob: Float[Array, " n"]
    advantage: Float[Array, " n"]
    returns: Float[Array, " n"]


def gae(
    reward: Float[Array, " time"],
    discount: Float[Array, " time"],  # gamma; 0 where the episode terminated
    value: Float[Array, " time"],
    next_value: Float[Array, " time"],  # of the true successor, also at a time limit
    lam: Float[Array, " time"],  # lambda; 0 where the episode ended for any reason
) -> Float[Array, " time"]:
    """A_t = delta_t + discount_t lam_t A_{t+1},  delta_t = r_t + discount_t V(s_{t+1}) - V(s_t)."""
    delta = reward + discount * next_value - value

    def back(advantage: Array, xs: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, decay_t = xs
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    return jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, discount * lam), reverse=True)[1]


def prepare(critic: Value, rollout: Rollout, gamma: float, gae_lambda: float) -> Batch:
    """The rollout as a flat batch with advantages and returns. Time limits are bootstrapped, terminations not."""
    time, env = rollout.reward.shape

    def values(obs: Array) -> Array:
        return critic(obs.reshape(time * env, *obs.shape[2:]))[0].reshape(time, env)

    value, next_value = values(rollout.obs), values(rollout.next_obs)
    discount = gamma * (1 - rollout.terminated.astype(value.dtype))
    lam = gae_lambda * (1 - rollout.done.astype(value.dtype))
    advantage = jax.vmap(gae, in_axes=1, out_axes=1)(rollout.reward, discount, value, next_value, lam)
    flat = Batch(rollout.obs, rollout.action, rollout.log_prob, advantage, advantage + value)
    return jax.tree.map(lambda leaf: leaf.reshape(time * env, *leaf.shape[2:]), flat)


class ActorTerms(NamedTuple):
    policy_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    kl: Float[Array, ""]
    clip_fraction: Float[Array, ""]


def actor_loss(
    actor: GaussianActor, batch: Batch, clip: float, entropy_coefficient: float = 0.0
) -> tuple[Float[Array, ""], ActorTerms, Trace]:
    """Clipped surrogate minus entropy bonus."""
    policy, trace = actor(batch.obs)
    log_ratio = policy.log_prob(batch.action) - batch.old_log_prob
    ratio = jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))
    advantage = (batch.advantage - jnp.mean(batch.advantage)) / (jnp.std(batch.advantage) + 1e-8)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    policy_loss = -jnp.mean(jnp.minimum(advantage * ratio, advantage * clipped))
    entropy = policy.entropy()
    terms = ActorTerms(
        policy_loss,
        entropy,
        jnp.mean((ratio - 1 + 1e-7) - jnp.log(ratio + 1e-7)),  # the released code's estimate
        jnp.mean(jnp.abs(ratio - 1) > clip, dtype=ratio.dtype),
    )
    return policy_loss - entropy_coefficient * entropy, terms, trace


def critic_loss(critic: Value, batch: Batch, coefficient: float) -> tuple[Float[Array, ""], Float[Array, ""], Trace]:
    """Coefficient times mean squared error, and the error itself."""
    value, trace = critic(batch.obs)
    error = jnp.mean(jnp.square(batch.returns - value))
    return coefficient * error, error, trace


def adapt_rate(rate: Float[Array, ""], kl: Float[Array, ""], target: float) -> Float[Array, ""]:
    """kl > 2 target: rate / 1.5; kl < target / 2: rate * 1.5; kept in [1e-5, 1e-2]."""
    factor = jnp.where(kl > 2 * target, 1 / 1.5, jnp.where(kl < 0.5 * target, 1.5, 1.0))
    return jnp.clip(rate * factor, 1e-5, 1e-2)
