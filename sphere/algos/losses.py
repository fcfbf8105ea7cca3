"""The losses of actor and critic, their gradients with all that methods add, and one minibatch step."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, PRNGKeyArray

from sphere.algos.optimiser import clipped_adam
from sphere.algos.state import Batch, Hyper, Metrics, PPOConfig, PPOState, effective
from sphere.methods.method import Look, Role, Step, Term, Weights, overrides
from sphere.nets import GaussianActor, Trace, Value
from sphere.penalty import Penalised

LARGEST_LOG_RATIO = 20.0
"""Of a new policy to the one that acted. A sample with a negative advantage has no bound by itself: where the policy runs
away from it, exp overflows, and one infinity makes all parameters NaN. Beyond this (5e8) it has a loss and no gradient."""

AS_IT_IS: dict[Role, Callable[[Any], Any]] = {role: lambda net: net for role in ("actor", "critic")}


class Scene(NamedTuple):
    """What surrounds a minibatch in an update. By default nothing does: parameters are carried as the networks they are."""

    unpack: dict[Role, Callable[[Any], Any]] = AS_IT_IS
    """Makes the networks of what the state holds for them."""
    pack: dict[Role, Callable[[Any], Any]] = AS_IT_IS
    other_obs: Float[Array, "n obs"] | None = None
    """Observations of a second minibatch, for methods that ask for one."""
    steps: Integer[Array, ""] | int = 0
    """Steps of the run before this one."""
    key: PRNGKeyArray | None = None
    """Of this step's methods; none is needed where no method draws random numbers."""


class ActorTerms(NamedTuple):
    policy_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    kl: Float[Array, ""]
    clip_fraction: Float[Array, ""]


def actor_loss(config: PPOConfig, actor: GaussianActor, batch: Batch) -> tuple[Float[Array, ""], ActorTerms, Trace]:
    """Clipped surrogate minus entropy bonus."""
    policy, trace = actor(batch.obs)
    log_ratio = policy.log_prob(batch.action) - batch.old_log_prob
    ratio = jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))
    advantage = (batch.advantage - jnp.mean(batch.advantage)) / (jnp.std(batch.advantage) + 1e-8)
    clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
    policy_loss = -jnp.mean(jnp.minimum(advantage * ratio, advantage * clipped))
    entropy = policy.entropy()
    terms = ActorTerms(
        policy_loss,
        entropy,
        jnp.mean((ratio - 1 + 1e-7) - jnp.log(ratio + 1e-7)),  # the released code's estimate
        jnp.mean(jnp.abs(ratio - 1) > config.clip, dtype=ratio.dtype),
    )
    return policy_loss - config.entropy_coefficient * entropy, terms, trace


def critic_loss(config: PPOConfig, critic: Value, batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""], Trace]:
    """Coefficient times mean squared error, and the error itself."""
    value, trace = critic(batch.obs)
    error = jnp.mean(jnp.square(batch.returns - value))
    return config.value_coefficient * error, error, trace


class Side(NamedTuple):
    """What is known of one network's loss beside its value."""

    facts: Any
    terms: dict[str, Term]
    trace: Trace


def gradient(
    config: PPOConfig, state: PPOState, hyper: Hyper, role: Role, batch: Batch, scene: Scene
) -> tuple[Penalised, Any]:
    """Of the loss of one network with all that methods add to it; `aux` of the first is a `Side`."""
    own = state.mitigation
    losses: dict[Role, Callable] = {"actor": actor_loss, "critic": critic_loss}

    def build(params: Any) -> Any:
        return effective(config, own, role, scene.unpack[role](params))

    def function(params: Any) -> tuple[Array, Look, Side]:
        raw = scene.unpack[role](params)
        net = effective(config, own, role, raw)
        loss, facts, trace = losses[role](config, net, batch)
        look = Look(role, net, raw, batch.obs, trace, scene.other_obs, build)
        found = {method.name: method.term(own.get(method.name), look) for method in config.methods}
        terms = {name: term for name, term in found.items() if term is not None}
        for term in terms.values():
            loss = loss + term.weight * term.value
        return loss, look, Side(facts, terms, trace)

    for method in config.methods:
        balanced = method.gradient(role, function)
        if balanced is not None:
            values, grad = balanced(getattr(state, role), hyper.rho)
            break
    else:
        plain = jax.value_and_grad(lambda params: function(params)[::2], has_aux=True)
        (loss, side), grad = plain(getattr(state, role))
        values = Penalised(loss, jnp.zeros_like(loss), jnp.zeros_like(loss), side)
    # Clip and Adam are then compiled alike with and without the penalty, and rho = 0 gives the same bits.
    return values, jax.lax.optimization_barrier(grad)


def adapt_rate(rate: Float[Array, ""], kl: Float[Array, ""], target: float) -> Float[Array, ""]:
    """kl > 2 target: rate / 1.5; kl < target / 2: rate * 1.5; kept in [1e-5, 1e-2]."""
    factor = jnp.where(kl > 2 * target, 1 / 1.5, jnp.where(kl < 0.5 * target, 1.5, 1.0))
    return jnp.clip(rate * factor, 1e-5, 1e-2)


def minibatch(
    config: PPOConfig,
    state: PPOState,
    hyper: Hyper,
    scheduled_rate: Float[Array, ""],
    batch: Batch,
    scene: Scene = Scene(),  # noqa: B008 - a value
) -> tuple[PPOState, Metrics]:
    """One gradient step of the actor, then of the critic, then what methods do after a step."""
    rate = scheduled_rate if config.target_kl is None else state.rate
    actor_values, actor_grad = gradient(config, state, hyper, "actor", batch, scene)
    critic_values, critic_grad = gradient(config, state, hyper, "critic", batch, scene)
    adam = partial(clipped_adam, max_norm=config.max_grad_norm, eps=config.adam_eps)
    actor, actor_moments, actor_norm = adam(state.actor, state.actor_moments, actor_grad, rate)
    critic, critic_moments, critic_norm = adam(state.critic, state.critic_moments, critic_grad, rate)
    terms: ActorTerms = actor_values.aux.facts
    adapted = state.rate if config.target_kl is None else adapt_rate(state.rate, terms.kl, config.target_kl)
    sides: dict[Role, Side] = {"actor": actor_values.aux, "critic": critic_values.aux}
    added = [term for side in sides.values() for term in side.terms.values()]
    weights = {name: term.weight for side in sides.values() for name, term in side.terms.items()}
    metrics = Metrics(
        terms.policy_loss,
        critic_values.aux.facts,
        terms.entropy,
        terms.kl,
        terms.clip_fraction,
        sum((term.value for term in added), start=actor_values.penalty + critic_values.penalty),
        sum(weights.values(), start=actor_values.coefficient + critic_values.coefficient),
        actor_norm,
        critic_norm,
        rate,
        jnp.isfinite(actor_norm + critic_norm + actor_values.loss + critic_values.loss),
    )
    stepped = PPOState(actor, critic, actor_moments, critic_moments, adapted, state.mitigation)
    if not any(overrides(method, "after") for method in config.methods):
        return stepped, metrics._replace(replaced=jnp.zeros_like(rate))
    fraction = scheduled_rate / hyper.learning_rate if config.target_kl is None else jnp.ones_like(rate)
    stepped, replaced = renewed(config, state, stepped, sides, fraction, scene)
    return stepped, metrics._replace(replaced=replaced)


def renewed(
    config: PPOConfig,
    before: PPOState,
    state: PPOState,
    sides: dict[Role, Side],
    rate_fraction: Float[Array, ""],
    scene: Scene,
) -> tuple[PPOState, Float[Array, ""]]:
    """The state after all methods have done what they do after a step, and how many units began anew."""
    key = jax.random.key(0) if scene.key is None else scene.key
    own = dict(state.mitigation)
    weights: dict[Role, Weights] = {
        "actor": Weights(state.actor, state.actor_moments.mu, state.actor_moments.nu),
        "critic": Weights(state.critic, state.critic_moments.mu, state.critic_moments.nu),
    }
    replaced = jnp.zeros_like(rate_fraction)
    for i, method in enumerate(config.methods):
        step = Step(
            before={"actor": before.actor, "critic": before.critic},
            trace={role: side.trace for role, side in sides.items()},
            loss={"actor": sides["actor"].facts.policy_loss, "critic": sides["critic"].facts},
            terms={role: side.terms for role, side in sides.items()},
            rate_fraction=rate_fraction,
            steps=jnp.asarray(scene.steps, jnp.int32),
            key=jax.random.fold_in(key, i),
            unpack=scene.unpack,
            pack=scene.pack,
        )
        after = method.after(own.get(method.name), weights, step)
        weights, replaced = after.weights, replaced + after.replaced
        if method.name in own:
            own[method.name] = after.own
    state = PPOState(
        weights["actor"].params,
        weights["critic"].params,
        state.actor_moments._replace(mu=weights["actor"].mu, nu=weights["actor"].nu),
        state.critic_moments._replace(mu=weights["critic"].mu, nu=weights["critic"].nu),
        state.rate,
        own,
    )
    return state, replaced
