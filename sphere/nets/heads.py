"""What a network is used for: a Gaussian or deterministic policy, a state value, a pair of action values. Each over any
trunk.

A head gives its trunks by name (`trunks`). The name is empty where there is one, so that names made with it (of
parts, of numbers in records) have no prefix. A head with several gives its traces as a dict of the same names.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num, PRNGKeyArray

from sphere.nets.trace import Trace


@runtime_checkable
class Trunk(Protocol):
    """A network: MLP, MoE, or any that is called in the same way."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""

    def __call__(self, x: Array, taps: tuple[Array, ...] | None = None) -> tuple[Array, Trace]: ...


class Head(eqx.Module):
    """A head over one trunk."""

    trunk: Trunk

    @property
    def trunks(self) -> dict[str, Any]:
        return {"": self.trunk}

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.trunk.input_shape


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


class GaussianActor(Head):
    """The trunk gives the mean; log_std is learned, does not depend on the state and starts at 0."""

    log_std: Float[Array, " act"]

    def __init__(self, trunk: Trunk, action_size: int):
        self.trunk = trunk
        self.log_std = jnp.zeros(action_size)

    def __call__(self, x: Num[Array, "n *input"], taps: tuple[Array, ...] | None = None) -> tuple[Gaussian, Trace]:
        mean, trace = self.trunk(x, taps)
        return Gaussian(mean, self.log_std), trace

    def act(self, x: Num[Array, "n *input"]) -> Float[Array, "n act"]:
        """What is done in evaluation, and to which training adds noise."""
        return self(x)[0].mean

    def spread(self) -> Float[np.ndarray, "*run act"]:
        """The deviation of that noise, on the host."""
        return np.exp(np.asarray(self.log_std))


class DeterministicActor(Head):
    """tanh of what the trunk gives, in [-1, 1]; `act` gives it in the units of the simulator's box."""

    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)

    @property
    def centre(self) -> Float[np.ndarray, " act"]:
        return (np.array(self.high, np.float32) + np.array(self.low, np.float32)) / 2

    @property
    def half(self) -> Float[np.ndarray, " act"]:
        """Half the width of the box."""
        return (np.array(self.high, np.float32) - np.array(self.low, np.float32)) / 2

    def __call__(
        self, x: Num[Array, "n *input"], taps: tuple[Array, ...] | None = None
    ) -> tuple[Float[Array, "n act"], Trace]:
        output, trace = self.trunk(x, taps)
        return jnp.tanh(output), trace

    def act(self, x: Num[Array, "n *input"]) -> Float[Array, "n act"]:
        return self.centre[None] + self.half[None] * self(x)[0]

    def spread(self) -> Float[np.ndarray, " act"]:
        """By itself it does not explore; see `Explorer`."""
        return np.zeros_like(self.half)


class Explorer(eqx.Module):
    """A deterministic actor and how it explores: normal noise on its action or, while it is warm, uniform actions."""

    actor: DeterministicActor
    deviation: Float[Any, "*run"]
    """Of the noise, where the box is [-1, 1]."""
    warm: Bool[Any, "*run"]

    @property
    def trunk(self) -> Trunk:
        return self.actor.trunk

    def act(self, x: Num[Array, "n *input"]) -> Float[Array, "n act"]:
        """What is done in evaluation."""
        return self.actor.act(x)

    def spread(self) -> Float[np.ndarray, "*run act"]:
        """The deviation of the noise, on the host."""
        return np.asarray(self.deviation)[..., None] * self.actor.half

    def uniform(self) -> bool:
        """Whether actions are drawn evenly from the box now, on the host; runs of a group warm up together."""
        return bool(np.all(np.asarray(self.warm)))


class Value(Head):
    """V(s), from a trunk with one output."""

    def __call__(
        self, x: Num[Array, "n *input"], taps: tuple[Array, ...] | None = None
    ) -> tuple[Float[Array, " n"], Trace]:
        value, trace = self.trunk(x, taps)
        return value[:, 0], trace


class Logits(Head):
    """A classifier: the trunk gives a logit for every class."""

    def __call__(
        self, x: Num[Array, "n *input"], taps: tuple[Array, ...] | None = None
    ) -> tuple[Float[Array, "n classes"], Trace]:
        return self.trunk(x, taps)

    def act(self, x: Num[Array, "n *input"]) -> Float[Array, "n classes"]:
        return self(x)[0]


class TwinQ(eqx.Module):
    """Two independent action values Q(s, a), for clipped double Q-learning."""

    first: Trunk
    second: Trunk

    def __init__(self, make: Callable[[PRNGKeyArray], Trunk], *, key: PRNGKeyArray):
        """`make(key)` builds one trunk from [observation, action] to one value."""
        one, two = jax.random.split(key)
        self.first, self.second = make(one), make(two)

    @property
    def trunks(self) -> dict[str, Any]:
        return {"first": self.first, "second": self.second}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of [observation, action], which the trunks read."""
        return self.first.input_shape

    def __call__(
        self, x: Float[Array, "n obs"], action: Float[Array, "n act"]
    ) -> tuple[Float[Array, "2 n"], dict[str, Trace]]:
        joint = jnp.concatenate([x, action], axis=1)
        (one, first), (two, second) = self.first(joint), self.second(joint)
        return jnp.stack([one[:, 0], two[:, 0]]), {"first": first, "second": second}
