"""The equations of PPO: advantages, the two losses, and the rate that follows the KL divergence."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Num

from sphere.algos.frames import Frames
from sphere.nets import GaussianActor, Trace, Value

Numbers = Any  # arrays of jax, or of numpy where they come from the host

TOGETHER = 256
"""Images that go through a network at once outside of minibatches."""

LARGEST_LOG_RATIO = 20.0
"""Of a new policy to the one that acted. A sample with a negative advantage has no bound by itself: where the policy
runs away from it, exp overflows, and one infinity makes all parameters NaN. Beyond this (5e8) it has no gradient."""


class Rollout(NamedTuple):
    """One iteration's experience; leading axes [time, env] and, in a fleet, [run] before them."""

    obs: Any
    """[*fleet, time, env, obs], or `Frames`."""
    action: Float[Numbers, "*fleet time env act"]
    log_prob: Float[Numbers, "*fleet time env"]
    reward: Float[Numbers, "*fleet time env"]
    next_obs: Any
    """[*fleet, time, env, obs]: the true successor, also where the episode ended and another began. None: `obs` are
    `Frames`, and have it."""
    terminated: Bool[Numbers, "*fleet time env"]
    done: Bool[Numbers, "*fleet time env"]
    """The episode ended here, by termination or time limit."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Rollout":
        """Of what a source gives, which may be more."""
        return cls(**{name: data[name] for name in cls._fields})


class Minibatch(NamedTuple):
    obs: Num[Array, "n *obs"]
    action: Float[Array, "n act"]
    old_log_prob: Float[Array, " n"]
    advantage: Float[Array, " n"]
    returns: Float[Array, " n"]


def drawn_log_prob(noise: Float[Array, "*batch act"], log_std: Float[Array, " act"]) -> Float[Array, "*batch"]:
    """log pi(a) of a = mean + exp(log_std) noise, from the noise: -1/2 sum(noise^2 + log 2 pi) - sum(log_std)."""
    return -0.5 * jnp.sum(jnp.square(noise) + math.log(2 * math.pi), axis=-1) - jnp.sum(log_std)


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


def prepare(critic: Value, rollout: Rollout, gamma: float, gae_lambda: float) -> Minibatch:
    """The rollout as a flat batch with advantages and returns. Time limits are bootstrapped, terminations not. Images
    are left out of the batch."""
    time, env = rollout.reward.shape
    obs = rollout.obs

    def values(obs: Array) -> Array:
        return critic(obs.reshape(time * env, *obs.shape[2:]))[0].reshape(time, env)

    if isinstance(obs, Frames):
        value, next_value = values_of_frames(critic, obs)
        obs = jnp.zeros((time, env, 0), value.dtype)
    else:
        value, next_value = values(obs), values(rollout.next_obs)
    discount = gamma * (1 - rollout.terminated.astype(value.dtype))
    lam = gae_lambda * (1 - rollout.done.astype(value.dtype))
    advantage = jax.vmap(gae, in_axes=1, out_axes=1)(rollout.reward, discount, value, next_value, lam)
    flat = Minibatch(obs, rollout.action, rollout.log_prob, advantage, advantage + value)
    return jax.tree.map(lambda leaf: leaf.reshape(time * env, *leaf.shape[2:]), flat)


def shuffled(key: Array, samples: int, epochs: int, batch: int) -> Integer[Array, "minibatch batch"]:
    """Every epoch takes the samples in an order of its own."""
    rows = jax.vmap(lambda k: jax.random.permutation(k, samples))(jax.random.split(key, epochs))
    return rows.reshape(-1, batch)


def table_of(flat: Minibatch) -> Callable[[Integer[Array, " batch"]], Minibatch]:
    """What takes rows of all columns in one gather instead of five: on a GPU small steps are bound by the number of
    launches."""
    columns = [leaf.reshape(len(leaf), -1) for leaf in flat]
    ends = np.cumsum([column.shape[1] for column in columns])[:-1].tolist()
    table = jnp.concatenate(columns, axis=1)

    def taken(rows: Integer[Array, " batch"]) -> Minibatch:
        parts = jnp.split(table[rows], ends, axis=1)
        return Minibatch(*(part.reshape(len(rows), *leaf.shape[1:]) for part, leaf in zip(parts, flat, strict=True)))

    return taken


def by_time(frames: Frames, function: Callable[..., Array], *columns: Array) -> Float[Array, "time env"]:
    """function(observations of all environments, rows of the columns), step by step, some steps at a time: what
    convolutions keep of a whole rollout would not fit."""
    times = jnp.arange(len(columns[0]) if columns else len(frames.first), dtype=jnp.int32)
    envs = jnp.arange(frames.first.shape[1], dtype=jnp.int32)

    def one(own: tuple[Array, ...]) -> Array:
        time, *rows = own
        return function(frames.observations(jnp.full_like(envs, time), envs), *rows)

    return jax.lax.map(one, (times, *columns), batch_size=max(1, TOGETHER // len(envs)))


def values_of_frames(critic: Value, frames: Frames) -> tuple[Float[Array, "time env"], Float[Array, "time env"]]:
    """Of every observation, and of its true successor: that is the next observation, unless a time limit came."""
    value = by_time(frames, lambda obs: critic(obs)[0])
    envs = jnp.arange(frames.first.shape[1], dtype=jnp.int32)

    def final(own: tuple[Int[Array, " env"], Array]) -> Float[Array, " env"]:
        return critic(frames.finals(own[0], envs, own[1]))[0]

    found = jax.lax.map(final, (frames.final_at, frames.final))
    return value[:-1], value[1:].at[frames.final_at, envs[None]].set(found, mode="drop")


class ActorTerms(NamedTuple):
    policy_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    kl: Float[Array, ""]
    clip_fraction: Float[Array, ""]


def actor_loss(
    actor: GaussianActor, batch: Minibatch, clip: float, entropy_coefficient: float = 0.0
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


def critic_loss(
    critic: Value, batch: Minibatch, coefficient: float
) -> tuple[Float[Array, ""], Float[Array, ""], Trace]:
    """Coefficient times mean squared error, and the error itself."""
    value, trace = critic(batch.obs)
    error = jnp.mean(jnp.square(batch.returns - value))
    return coefficient * error, error, trace


def adapt_rate(rate: Float[Array, ""], kl: Float[Array, ""], target: float) -> Float[Array, ""]:
    """kl > 2 target: rate / 1.5; kl < target / 2: rate * 1.5; kept in [1e-5, 1e-2]."""
    factor = jnp.where(kl > 2 * target, 1 / 1.5, jnp.where(kl < 0.5 * target, 1.5, 1.0))
    return jnp.clip(rate * factor, 1e-5, 1e-2)


def scheduled(config: Any, numbers: Mapping[str, Numbers], progress: Float[Array, ""]) -> Float[Array, ""]:
    """Linear from the first to the final rate over `anneal` of the task, then constant; progress runs from 0 to 1."""
    fraction = jnp.clip(progress / config.anneal, 0.0, 1.0)
    first, last = numbers["learning_rate"], numbers["final_learning_rate"]
    return first + fraction * (last - first)


class PPOMetrics(NamedTuple):
    """Means over the minibatches of an update, unless said otherwise."""

    policy_loss: Float[Array, ""]
    value_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    kl: Float[Array, ""]
    clip_fraction: Float[Array, ""]
    penalty: Float[Array, ""]
    """Of all methods that add to a loss, before it is weighted; of several, their sum."""
    coefficient: Float[Array, ""]
    """Its weight; of several, their sum."""
    felt: Float[Array, ""]
    """Length of the gradient that a penalty weighted by gradients added, beside the task's: rho, unless a floor
    holds."""
    actor_grad_norm: Float[Array, ""]
    critic_grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    finite: Bool[Array, ""]
    """No loss, gradient or parameter is NaN or infinite; the minimum over minibatches."""
    replaced: Float[Array, ""]
    """Units that were reset (CBP, ReDo); the sum over minibatches."""
