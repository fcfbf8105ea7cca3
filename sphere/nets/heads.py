"""What a network is used for: a Gaussian policy, a state value, a pair of action values. Each over any trunk."""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sphere.nets.mlp import MLP
from sphere.nets.moe import MoE
from sphere.nets.trace import Trace

Trunk = MLP | MoE


class Gaussian(NamedTuple):
    """A diagonal normal distribution over actions."""

    mean: Float[Array, "n act"]
    log_std: Float[Array, " act"]

    def log_prob(self, action: Float[Array, "n act"]) -> Float[Array, " n"]:
        z = (action - self.mean) * jnp.exp(-self.log_std)[None, :]
        return -0.5 * jnp.sum(jnp.square(z) + math.log(2 * math.pi), axis=-1) - jnp.sum(self.log_std)

    def entropy(self) -> Float[Array, ""]:
        return jnp.sum(self.log_std) + 0.5 * self.log_std.size * (1 + math.log(2 * math.pi))

    def sample(self, key: PRNGKeyArray) -> Float[Array, "n act"]:
        return self.mean + jnp.exp(self.log_std)[None, :] * jax.random.normal(key, self.mean.shape, self.mean.dtype)


class GaussianActor(eqx.Module):
    """The trunk gives the mean; log_std is learned, does not depend on the state and starts at 0."""

    trunk: Trunk
    log_std: Float[Array, " act"]

    def __init__(self, trunk: Trunk, action_size: int):
        self.trunk = trunk
        self.log_std = jnp.zeros(action_size)

    def __call__(self, x: Float[Array, "n obs"], taps: tuple[Array, ...] | None = None) -> tuple[Gaussian, Trace]:
        mean, trace = self.trunk(x, taps)
        return Gaussian(mean, self.log_std), trace


class Value(eqx.Module):
    """V(s), from a trunk with one output."""

    trunk: Trunk

    def __call__(
        self, x: Float[Array, "n obs"], taps: tuple[Array, ...] | None = None
    ) -> tuple[Float[Array, " n"], Trace]:
        value, trace = self.trunk(x, taps)
        return value[:, 0], trace


class TwinQ(eqx.Module):
    """Two independent action values Q(s, a), for clipped double Q-learning; taps and traces come in pairs."""

    first: Trunk
    second: Trunk

    def __init__(self, make: Callable[[PRNGKeyArray], Trunk], *, key: PRNGKeyArray):
        """`make(key)` builds one trunk from [observation, action] to one value."""
        one, two = jax.random.split(key)
        self.first, self.second = make(one), make(two)

    def __call__(
        self, x: Float[Array, "n obs"], action: Float[Array, "n act"]
    ) -> tuple[Float[Array, "2 n"], tuple[Trace, Trace]]:
        joint = jnp.concatenate([x, action], axis=1)
        (one, trace), (two, second) = self.first(joint), self.second(joint)
        return jnp.stack([one[:, 0], two[:, 0]]), (trace, second)
