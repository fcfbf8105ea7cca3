"""Generalised advantage estimation, and a rollout made ready for learning."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sphere.algos.state import Batch, PPOConfig, PPOState, Rollout, effective


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


def prepare(config: PPOConfig, state: PPOState, rollout: Rollout) -> Batch:
    """The rollout as one flat batch with advantages and returns. The critic bootstraps time limits, not terminations."""
    time, env = rollout.reward.shape
    critic = effective(config, state.mitigation, "critic", state.critic)

    def values(obs: Array) -> Array:
        return critic(obs.reshape(time * env, -1))[0].reshape(time, env)

    value, next_value = values(rollout.obs), values(rollout.next_obs)
    discount = config.gamma * (1 - rollout.terminated.astype(value.dtype))
    lam = config.gae_lambda * (1 - rollout.done.astype(value.dtype))
    advantage = jax.vmap(gae, in_axes=1, out_axes=1)(rollout.reward, discount, value, next_value, lam)
    flat = Batch(rollout.obs, rollout.action, rollout.log_prob, advantage, advantage + value)
    return jax.tree.map(lambda leaf: leaf.reshape(time * env, *leaf.shape[2:]), flat)
