"""A classifier that learns a stream of tasks by task-masked cross entropy and AdamW.

An iteration is one epoch over the examples of a task; its source gives them augmented and in a new order. The
softmax is over the classes of the task alone: head rows of other classes get no gradient from the loss, only weight
decay.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_map_with_path
from jaxtyping import Array, Bool, Float, Integer

from sphere.algos.learner import Clock, Data, DataSpec, Keep, Learner, Numbers, divisors_near
from sphere.algos.optimiser import clipped_adam
from sphere.algos.state import (
    INIT_ACTOR,
    METHODS,
    SHUFFLE_OTHER,
    Forms,
    TrainState,
    all_finite,
    crossed,
    effective,
    forms,
    in_form,
    init_methods,
    init_moments,
    key_of,
    of_methods,
    planned,
)
from sphere.algos.step import Surroundings, added, after_step, as_it_is, gradient
from sphere.errors import in_range
from sphere.methods import Method, Sphere
from sphere.methods.method import check_methods, overrides
from sphere.nets import Logits, NetConfig, build, with_temperature

METRICS = ("loss", "accuracy", "penalty", "coefficient", "felt", "grad_norm", "finite", "replaced")
"""Means over the minibatches of an epoch; `accuracy` is within the task's classes, before each step."""


@dataclass(frozen=True)
class Classifier(Learner):
    """Task-masked cross entropy by AdamW. Numbers that a sweep varies are named in `numbers`."""

    name: ClassVar[str] = "classifier"
    title: ClassVar[str] = "Classifier"

    examples: int = 2500
    """Training examples of a task: classes of a task times examples of a class. An epoch is an iteration."""
    batch_size: int = 125
    """Examples of a minibatch; must divide `examples`, or be larger: then all of them are one minibatch."""
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    """Of all parameters, decoupled from Adam (AdamW): p - rate * decay * p."""
    adam_eps: float = 1e-8
    actor: NetConfig = NetConfig()
    """The classifier's network. Observations are flat rows of numbers, of a text the ids of its words."""
    methods: tuple[Method, ...] = (Sphere(),)
    """What keeps the network plastic; on the command line --method NAME. With rho 0 SPHERE leaves no trace."""
    deterministic: bool = True
    """On a GPU, choose kernels by rule, not by timing them, as an exact resume needs."""

    def __post_init__(self) -> None:
        in_range(self, {"examples": (1, None), "batch_size": (1, None)}, "classifier.")
        in_range(self, dict.fromkeys(("learning_rate", "weight_decay", "adam_eps"), (0, None)), "classifier.")
        if self.batch_size < self.examples and self.examples % self.batch_size:
            raise ValueError(
                f"an epoch has {self.examples} examples, not a multiple of batch_size={self.batch_size}; use one of "
                f"{divisors_near(self.examples, self.batch_size, 4)}, or a larger one for all of them at once"
            )
        check_methods(self.methods, self.nets)

    @property
    def rollout(self) -> tuple[int, int]:
        return 1, self.examples

    @property
    def nets(self) -> dict[str, NetConfig]:
        return {"actor": self.actor}

    @property
    def numbers(self) -> dict[str, float]:
        rates = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        return rates | ({} if self.actor.kind == "mlp" else {"temperature": self.actor.temperature})

    def init(self, spec: DataSpec, seed: Integer[Array, ""], numbers: Numbers) -> TrainState:
        config = planned(self.methods, self.nets)["actor"]
        key = jax.random.fold_in(jax.random.key(seed), INIT_ACTOR)
        trunk = build(config, math.prod(spec.observation), spec.action, key=key, vocabulary=spec.vocabulary)
        if "temperature" in numbers:
            trunk = with_temperature(trunk, numbers["temperature"])
        nets = {"actor": Logits(trunk)}
        return TrainState(nets=nets, moments=init_moments(nets), methods=init_methods(self.methods, nets, seed))

    def policy(self, state: TrainState) -> Logits:
        """The network as it acts: `act` gives logits of all classes."""
        return effective(self.methods, state.methods, "actor", state.nets["actor"])

    def update(
        self, state: TrainState, numbers: Numbers, data: Data, seed: Integer[Array, ""], clock: Clock
    ) -> tuple[TrainState, dict[str, Array]]:
        """One epoch, as one scan over minibatches in the order of the data."""
        batch = min(self.batch_size, self.examples)
        obs, label = (data[name].reshape(-1, batch, *data[name].shape[1:]) for name in ("obs", "label"))
        index = jnp.arange(len(obs), dtype=jnp.int32)
        # through one step alone the way into another form and back would cost more than it saves
        same: Forms = {"actor": as_it_is}
        pack, unpack = forms(state.nets) if len(obs) > 1 else (same, same)
        decay = decayed(state.nets["actor"], pack["actor"])
        other = self._other(data["obs"], seed, clock) if any(method.other_batch for method in self.methods) else None
        after = any(overrides(method, "after") for method in self.methods)
        method_key = key_of(seed, METHODS, clock.iteration)

        def step(state: TrainState, xs: tuple[Any, ...]) -> tuple[TrainState, Float[Array, " metric"]]:
            obs, label, second, number = xs
            around = Surroundings(unpack, pack, other_inputs=second)
            if after:
                steps = clock.iteration * len(index) + number
                around = around._replace(steps=steps, key=jax.random.fold_in(method_key, number))
            return self._minibatch(state, numbers, (obs, label, data["allowed"]), decay, around)

        state = of_methods(self.methods, state, lambda method, own: method.begin_iteration(own, clock.progress))
        packed, written = jax.lax.scan(step, in_form(self.methods, state, pack), (obs, label, other, index))
        state = in_form(self.methods, packed, unpack)
        metrics = dict(zip(METRICS, jnp.mean(written, axis=0), strict=True))
        metrics["finite"] = jnp.all(written[:, METRICS.index("finite")] > 0) & all_finite(state.nets)
        metrics["replaced"] = metrics["replaced"] * len(index)
        metrics["learning_rate"] = numbers["learning_rate"]
        return state, metrics

    def _other(self, obs: Array, seed: Integer[Array, ""], clock: Clock) -> Array:
        """The same examples in another order, for methods that want a second minibatch."""
        key = key_of(seed, SHUFFLE_OTHER, clock.iteration)
        batch = min(self.batch_size, self.examples)
        return obs[jax.random.permutation(key, len(obs))].reshape(-1, batch, *obs.shape[1:])

    def _minibatch(
        self, state: TrainState, numbers: Numbers, batch: tuple[Array, Array, Array], decay: Any, around: Surroundings
    ) -> tuple[TrainState, Float[Array, " metric"]]:
        obs, label, allowed = batch

        def loss(net: Logits) -> tuple[Array, Array, Any]:
            logits, trace = net(obs)
            value, right = masked_cross_entropy(logits, label, allowed)
            return value, right, trace

        values, grad = gradient(self.methods, state, numbers, "actor", loss, obs, around)
        rate, before = numbers["learning_rate"], state.nets["actor"]
        net, moments, norm = clipped_adam(
            before, state.moments["actor"], grad, rate, max_norm=math.inf, eps=self.adam_eps
        )
        shrink = rate * numbers["weight_decay"]
        net = jax.tree.map(lambda new, old, on: new - shrink * on * old, net, before, decay)
        stepped = dataclasses.replace(state, nets={"actor": net}, moments={"actor": moments})
        found = {"actor": values}
        one = jnp.ones_like(rate)
        stepped, replaced = after_step(self.methods, state, stepped, found, {"actor": values.loss}, one, around)
        finite = jnp.isfinite(norm + values.loss)
        numbers_found = (values.loss, values.aux.facts, *added(found), norm, finite, replaced)
        return stepped, jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers_found])

    def cross(self, old: TrainState, fresh: TrainState, keep: Keep, seed: Integer[Array, ""]) -> TrainState:
        return crossed(self.methods, old, fresh, keep, seed)

    def trial(self, spec: DataSpec, runs: int) -> tuple["Classifier", dict[str, Any], float]:
        few = dataclasses.replace(self, examples=min(self.examples, 2 * self.batch_size))
        obs = np.ones((runs, few.examples, math.prod(spec.observation)), np.float32)  # as an id: a word, no padding
        label = np.zeros((runs, few.examples), np.int32)
        return (
            few,
            {"label": label, "obs": obs, "allowed": np.ones((runs, spec.action), bool)},
            (self.examples / few.examples),
        )


def masked_cross_entropy(
    logits: Float[Array, "n classes"], label: Integer[Array, " n"], allowed: Bool[Array, " classes"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """-mean log softmax(logits over the allowed classes)[label], and how many are right among the allowed."""
    masked = jnp.where(allowed[None, :], logits, -jnp.inf)
    chosen = jnp.take_along_axis(logits, label[:, None], axis=1)[:, 0]
    loss = jnp.mean(jax.nn.logsumexp(masked, axis=1) - chosen)
    return loss, jnp.mean(jnp.argmax(masked, axis=1) == label, dtype=logits.dtype)


def decayed(net: Any, pack: Any) -> Any:
    """What weight decay acts on, in the form of `pack`: all but gate temperatures, which are no parameters."""

    def on(path: Any, leaf: Array) -> Array:
        return jnp.zeros_like(leaf) if "temperature" in keystr(path) else jnp.ones_like(leaf)

    # a large kernel is decayed as a whole: no array of ones beside it
    return jax.tree.map(lambda leaf: leaf if leaf.ndim < 2 else jnp.ones(()), pack(tree_map_with_path(on, net)))
