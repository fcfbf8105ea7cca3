"""One update of TD3: the critics with what methods add, the targets and, when it is its turn, the actor."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sphere.algos.learner import Numbers
from sphere.algos.optimiser import clipped_adam
from sphere.algos.state import TrainState, effective
from sphere.algos.step import Surroundings, added, after_step, gradient
from sphere.algos.td3_equations import Transition, actor_loss, bellman_target, critic_loss, follow, joint

if TYPE_CHECKING:
    from sphere.algos.td3 import TD3


class TD3State(TrainState):
    targets: dict[str, Any]
    """Target networks by role. Inside an update in their packed form."""
    deviation: Float[Array, "*fleet"]
    """Of the exploration noise."""
    warm: Bool[Array, "*fleet"]
    """Whether the next actions are uniform: the memory does not hold `learning_starts` transitions yet."""


class TD3Metrics(NamedTuple):
    """Means over the updates of an iteration, unless said otherwise; zeros while none was due."""

    critic_loss: Float[Array, ""]
    actor_loss: Float[Array, ""]
    """Over the updates that step the actor."""
    value: Float[Array, ""]
    """Of both critics on the minibatch."""
    penalty: Float[Array, ""]
    """Of all methods that add to a loss, before it is weighted; of several, their sum."""
    coefficient: Float[Array, ""]
    felt: Float[Array, ""]
    """Length of the gradient that a penalty weighted by gradients added, beside the task's: rho, unless a floor
    holds."""
    critic_grad_norm: Float[Array, ""]
    actor_grad_norm: Float[Array, ""]
    """Over the updates that step the actor."""
    finite: Bool[Array, ""]
    replaced: Float[Array, ""]
    """Units that were reset (CBP, ReDo); the sum over updates."""


def summary(written: Float[Array, "update metric"], delay: int) -> TD3Metrics:
    sums = TD3Metrics(*jnp.sum(written, axis=0))
    means = TD3Metrics(*jnp.mean(written, axis=0))
    # the actor's are 0 where it did not move; a short iteration may have had no turn of its
    turns = jnp.maximum(jnp.sum(written[:, TD3Metrics._fields.index("actor_grad_norm")] > 0), 1)
    return means._replace(
        actor_loss=sums.actor_loss / turns,
        actor_grad_norm=sums.actor_grad_norm / turns,
        finite=jnp.all(written[:, TD3Metrics._fields.index("finite")] > 0),
        replaced=sums.replaced,
    )


def minibatch(
    config: "TD3",
    state: TD3State,
    numbers: Numbers,
    batch: Transition,
    noise: Float[Array, "n act"],
    turn: Bool[Array, ""],
    around: Surroundings = Surroundings(),  # noqa: B008 - a value
) -> tuple[TD3State, TD3Metrics]:
    """One step of the critics and what methods do after it; where it is the actor's turn, one of the actor."""
    methods, authors = config.methods, config.form == "authors"
    actor, critic = (_acting(config, state, role, state.targets[role], around) for role in ("actor", "critic"))
    target = bellman_target(actor, critic, batch, noise, config.gamma)
    value, grad = gradient(
        methods,
        state,
        numbers,
        "critic",
        lambda net: critic_loss(net, batch, target, 1.0 if authors else 0.5),
        joint(batch.obs, batch.action),
        around,
    )
    moved = _step(config, state, "critic", grad, numbers["critic_learning_rate"])
    one = jnp.ones_like(numbers["critic_learning_rate"])
    stepped, replaced = after_step(methods, state, moved.state, {"critic": value}, {"critic": value.loss}, one, around)

    def followed(state: TD3State) -> TD3State:
        targets = {role: follow(old, state.nets[role], config.tau) for role, old in state.targets.items()}
        return dataclasses.replace(state, targets=targets)

    def climb(state: TD3State) -> tuple[TD3State, Array, Array]:
        loss, moved = _step_of_actor(config, state, numbers, batch, around)
        return followed(moved.state) if authors else moved.state, loss, moved.norm

    def rest(state: TD3State) -> tuple[TD3State, Array, Array]:
        return state, jnp.zeros_like(value.loss), jnp.zeros_like(moved.norm)

    stepped, policy_loss, norm = jax.lax.cond(turn, climb, rest, stepped if authors else followed(stepped))
    penalty, coefficient, felt = added({"critic": value})
    finite = jnp.isfinite(value.loss + moved.norm + policy_loss + norm)
    mean = value.aux.facts
    return stepped, TD3Metrics(
        value.loss, policy_loss, mean, penalty, coefficient, felt, moved.norm, norm, finite, replaced
    )


class Moved(NamedTuple):
    state: TD3State
    norm: Float[Array, ""]


def _acting(config: "TD3", state: TD3State, role: str, params: Any, around: Surroundings) -> Any:
    return effective(config.methods, state.methods, role, around.unpacked(role)(params))


def _step_of_actor(
    config: "TD3", state: TD3State, numbers: Numbers, batch: Transition, around: Surroundings
) -> tuple[Array, Moved]:
    """Up the values of the critic as it is now; the loss before the step."""
    critic = _acting(config, state, "critic", state.nets["critic"], around)
    judge: Literal["minimum", "first"] = "first" if config.form == "authors" else "minimum"
    value, grad = gradient(
        config.methods,
        state,
        numbers,
        "actor",
        lambda net: actor_loss(net, critic, batch, judge, config.alpha),
        batch.obs,
        around,
    )
    return value.loss, _step(config, state, "actor", grad, numbers["learning_rate"])


def _step(config: "TD3", state: TD3State, role: str, grad: Any, rate: Float[Array, ""]) -> Moved:
    """Adam, without a clip, on one of the networks."""
    net, moments, norm = clipped_adam(
        state.nets[role],
        state.moments[role],
        grad,
        rate,
        max_norm=math.inf,
        eps=config.adam_eps,
        accurate=config.form == "authors",
    )
    nets, every = state.nets | {role: net}, state.moments | {role: moments}
    return Moved(dataclasses.replace(state, nets=nets, moments=every), norm)
