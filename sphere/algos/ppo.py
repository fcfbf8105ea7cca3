"""Proximal policy optimisation as the released SPHERE code runs it (SB3/SBX semantics), for a run or a fleet of runs.

Order of the file: settings, state, init, acting, advantages, losses, minibatch step, update. Functions are written for one
run; `mean_fleet`, `update_fleet` and others are their `vmap` over a leading run axis, compiled once per program.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Integer

from sphere.algos.adam import clipped_adam
from sphere.algos.packing import packing
from sphere.nets import GaussianActor, NetConfig, Value, build
from sphere.penalty import Penalised, penalised_value_and_grad
from sphere.variants import ALL_EXPERTS, PenaltyConfig, penalty

Numbers = Any  # arrays of jax, or of numpy where they come from the host

# Purposes of random keys: a key is used once, and a new consumer gets a new number.
INIT_ACTOR, INIT_CRITIC, ACT, SHUFFLE = range(4)


@dataclass(frozen=True)
class PPOConfig:
    """Everything that shapes the update; numbers that a sweep varies (rho, learning rate) are in `Hyper`."""

    num_envs: int = 8
    """Environments per run."""
    rollout_steps: int = 2048
    """Steps of each environment per iteration."""
    batch_size: int = 256
    """Samples of a minibatch; must divide num_envs * rollout_steps."""
    epochs: int = 10
    """Passes over a rollout."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    """Half-width of the trust interval on the probability ratio."""
    max_grad_norm: float = 0.5
    """Actor and critic are clipped by global norm, each on its own."""
    entropy_coefficient: float = 0.0
    value_coefficient: float = 0.5
    learning_rate: float = 3e-4
    final_learning_rate: float = 1e-4
    """Reached linearly, then kept; the schedule starts anew with every task."""
    anneal: float = 1.0
    """Fraction of a task over which the rate falls: 1 on MetaWorld, 0.5 on HumanoidBench in the paper."""
    target_kl: float | None = None
    """Set: the rate follows the KL divergence instead of the schedule (released HumanoidBench setting: 0.03)."""
    adam_eps: float = 1e-5
    """1e-5, not 1e-8: Adam in the reference PPO."""
    actor: NetConfig = NetConfig()
    critic: NetConfig = NetConfig(kind="mlp")
    penalty: PenaltyConfig | None = PenaltyConfig()
    """None: no penalty in the program at all; rho = 0 gives the same numbers with it."""
    deterministic: bool = True
    """On a GPU, choose kernels by rule, not by timing them: the same seed then gives the same bits in every process, as an
    exact resume needs. False makes updates about a quarter faster."""

    def __post_init__(self) -> None:
        samples = self.num_envs * self.rollout_steps
        if samples % self.batch_size:
            fitting = [b for b in range(1, samples + 1) if samples % b == 0]
            nearest = sorted(sorted(fitting, key=lambda b: abs(math.log(b / max(self.batch_size, 1))))[:6])
            raise ValueError(
                f"a rollout has num_envs*rollout_steps = {samples} samples, not a multiple of batch_size="
                f"{self.batch_size}; use one of {', '.join(map(str, nearest))}"
            )


class Hyper(NamedTuple):
    """Numbers of one run that do not change the program: in a fleet each has a run axis."""

    rho: Float[Array, "*fleet"]
    learning_rate: Float[Array, "*fleet"]
    final_learning_rate: Float[Array, "*fleet"]


class PPOState(eqx.Module):
    actor: GaussianActor | Any
    """The network; inside an update its packed form."""
    critic: Value | Any
    actor_moments: optax.ScaleByAdamState
    critic_moments: optax.ScaleByAdamState
    rate: Float[Array, "*fleet"]
    """The KL-adaptive learning rate."""


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


class Batch(NamedTuple):
    obs: Float[Array, "n obs"]
    action: Float[Array, "n act"]
    old_log_prob: Float[Array, " n"]
    advantage: Float[Array, " n"]
    returns: Float[Array, " n"]


class Metrics(NamedTuple):
    """Means over the minibatches of an update, unless said otherwise."""

    policy_loss: Float[Array, ""]
    value_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    kl: Float[Array, ""]
    clip_fraction: Float[Array, ""]
    penalty: Float[Array, ""]
    coefficient: Float[Array, ""]
    actor_grad_norm: Float[Array, ""]
    critic_grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    finite: Bool[Array, ""]
    """No loss, gradient or parameter is NaN or infinite; the minimum over minibatches."""


def init(config: PPOConfig, obs_size: int, action_size: int, seed: Integer[Array, ""]) -> PPOState:
    """Fresh networks; the numbers depend on the seed alone, not on the fleet."""
    key = jax.random.key(seed)
    nets = {"actor": config.actor, "critic": config.critic}
    if config.penalty is not None and config.penalty.variant in ALL_EXPERTS:  # they need every expert's features
        nets = {name: dataclasses.replace(net, compute="dense") for name, net in nets.items()}
    trunk = build(nets["actor"], obs_size, action_size, key=jax.random.fold_in(key, INIT_ACTOR))
    actor = GaussianActor(trunk, action_size)
    critic = Value(build(nets["critic"], obs_size, 1, key=jax.random.fold_in(key, INIT_CRITIC)))
    moments = optax.scale_by_adam().init
    # float32 by name: a weakly typed first state would compile the update a second time
    rate = jnp.asarray(config.learning_rate, jnp.float32)
    return PPOState(actor, critic, moments(actor), moments(critic), rate)


def noise(
    seed: Integer[Array, ""], iteration: Integer[Array, ""], shape: tuple[int, ...]
) -> Float[Array, "time env act"]:
    """The unit normal numbers of a whole rollout: an action is its mean plus exp(log_std) times these."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), ACT), iteration)
    return jax.random.normal(key, shape)


def log_prob(
    actor: GaussianActor, obs: Float[Array, "time env obs"], action: Float[Array, "time env act"]
) -> Float[Array, "time env"]:
    """Of a whole rollout's actions at once, after it: what acting need not fetch step by step. In parts of 128 steps."""
    return jax.lax.map(lambda xs: actor(xs[0])[0].log_prob(xs[1]), (obs, action), batch_size=128)


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

    def values(obs: Array) -> Array:
        return state.critic(obs.reshape(time * env, -1))[0].reshape(time, env)

    value, next_value = values(rollout.obs), values(rollout.next_obs)
    discount = config.gamma * (1 - rollout.terminated.astype(value.dtype))
    lam = config.gae_lambda * (1 - rollout.done.astype(value.dtype))
    advantage = jax.vmap(gae, in_axes=1, out_axes=1)(rollout.reward, discount, value, next_value, lam)
    flat = Batch(rollout.obs, rollout.action, rollout.log_prob, advantage, advantage + value)
    return jax.tree.map(lambda leaf: leaf.reshape(time * env, *leaf.shape[2:]), flat)


class ActorTerms(NamedTuple):
    policy_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    kl: Float[Array, ""]
    clip_fraction: Float[Array, ""]


def actor_loss(
    config: PPOConfig, actor: GaussianActor, batch: Batch
) -> tuple[Float[Array, ""], Float[Array, ""], ActorTerms]:
    """Clipped surrogate minus entropy bonus, and the penalty on the same forward pass."""
    policy, trace = actor(batch.obs)
    log_ratio = policy.log_prob(batch.action) - batch.old_log_prob
    ratio = jnp.exp(log_ratio)
    advantage = (batch.advantage - jnp.mean(batch.advantage)) / (jnp.std(batch.advantage) + 1e-8)
    clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
    policy_loss = -jnp.mean(jnp.minimum(advantage * ratio, advantage * clipped))
    entropy = policy.entropy()
    extra = jnp.zeros_like(policy_loss)
    if config.penalty is not None and config.penalty.placement != "critic":
        extra = penalty(config.penalty, actor.trunk, batch.obs, trace)
    terms = ActorTerms(
        policy_loss,
        entropy,
        jnp.mean((ratio - 1 + 1e-7) - jnp.log(ratio + 1e-7)),  # the released code's estimate
        jnp.mean(jnp.abs(ratio - 1) > config.clip, dtype=ratio.dtype),
    )
    return policy_loss - config.entropy_coefficient * entropy, extra, terms


def critic_loss(
    config: PPOConfig, critic: Value, batch: Batch
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Coefficient times mean squared error, the penalty if it is placed here, and the error itself."""
    value, trace = critic(batch.obs)
    error = jnp.mean(jnp.square(batch.returns - value))
    extra = jnp.zeros_like(error)
    if config.penalty is not None and config.penalty.placement != "actor":
        extra = penalty(config.penalty, critic.trunk, batch.obs, trace)
    return config.value_coefficient * error, extra, error


def _gradient(config: PPOConfig, place: str, function: Any, net: Any, rho: Array) -> tuple[Penalised, Any]:
    if config.penalty is None or config.penalty.placement not in (place, "both"):
        (loss, aux), grad = jax.value_and_grad(lambda net: function(net)[::2], has_aux=True)(net)
        values = Penalised(loss, jnp.zeros_like(loss), jnp.zeros_like(loss), aux)
    else:
        values, grad = penalised_value_and_grad(function, config.penalty.coefficient)(net, rho)
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
    unpack: tuple[Any, Any] = (lambda actor: actor, lambda critic: critic),
) -> tuple[PPOState, Metrics]:
    """One gradient step of the actor, then of the critic; `unpack` makes the networks of what the state holds for them."""
    rate = scheduled_rate if config.target_kl is None else state.rate
    actor_values, actor_grad = _gradient(
        config, "actor", lambda net: actor_loss(config, unpack[0](net), batch), state.actor, hyper.rho
    )
    critic_values, critic_grad = _gradient(
        config, "critic", lambda net: critic_loss(config, unpack[1](net), batch), state.critic, hyper.rho
    )
    adam = partial(clipped_adam, max_norm=config.max_grad_norm, eps=config.adam_eps)
    actor, actor_moments, actor_norm = adam(state.actor, state.actor_moments, actor_grad, rate)
    critic, critic_moments, critic_norm = adam(state.critic, state.critic_moments, critic_grad, rate)
    terms: ActorTerms = actor_values.aux
    adapted = state.rate if config.target_kl is None else adapt_rate(state.rate, terms.kl, config.target_kl)
    metrics = Metrics(
        terms.policy_loss,
        critic_values.aux,
        terms.entropy,
        terms.kl,
        terms.clip_fraction,
        actor_values.penalty + critic_values.penalty,
        actor_values.coefficient + critic_values.coefficient,
        actor_norm,
        critic_norm,
        rate,
        jnp.isfinite(actor_norm + critic_norm + actor_values.loss + critic_values.loss),
    )
    return PPOState(actor, critic, actor_moments, critic_moments, adapted), metrics


def scheduled(config: PPOConfig, hyper: Hyper, progress: Float[Array, ""]) -> Float[Array, ""]:
    """Linear from the first to the final rate over `anneal` of the task, then constant; progress runs from 0 to 1."""
    fraction = jnp.clip(progress / config.anneal, 0.0, 1.0)
    return hyper.learning_rate + fraction * (hyper.final_learning_rate - hyper.learning_rate)


def update(
    config: PPOConfig,
    state: PPOState,
    hyper: Hyper,
    rollout: Rollout,
    seed: Integer[Array, ""],
    iteration: Integer[Array, ""],
    progress: Float[Array, ""],
) -> tuple[PPOState, Metrics]:
    """All epochs over one rollout, as one scan over minibatches. `iteration` counts the run's updates from 0."""
    data = prepare(config, state, rollout)
    samples = data.returns.shape[0]
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), SHUFFLE), iteration)
    orders = jax.vmap(lambda k: jax.random.permutation(k, samples))(jax.random.split(key, config.epochs))
    rate = scheduled(config, hyper, progress)

    # one gather per minibatch instead of five: on a GPU small steps are bound by the number of launches
    columns = [leaf.reshape(samples, -1) for leaf in data]
    ends = np.cumsum([column.shape[1] for column in columns])[:-1].tolist()
    table = jnp.concatenate(columns, axis=1)

    def step(state: PPOState, rows: Integer[Array, " batch"]) -> tuple[PPOState, Metrics]:
        parts = jnp.split(table[rows], ends, axis=1)
        batch = Batch(*(part.reshape(-1, *leaf.shape[1:]) for part, leaf in zip(parts, data, strict=True)))
        return minibatch(config, state, hyper, rate, batch, (unpack_actor, unpack_critic))

    pack_actor, unpack_actor = packing(state.actor)
    pack_critic, unpack_critic = packing(state.critic)
    packed = _repacked(state, pack_actor, pack_critic)
    packed, metrics = jax.lax.scan(step, packed, orders.reshape(-1, config.batch_size))
    state = _repacked(packed, unpack_actor, unpack_critic)
    means = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0, dtype=jnp.float32), metrics)
    healthy = jnp.all(metrics.finite) & jnp.all(
        jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((state.actor, state.critic))])
    )
    return state, means._replace(finite=healthy)


def _repacked(state: PPOState, actor: Any, critic: Any) -> PPOState:
    """Networks and moments in another form; counters as they are."""

    def moments(adam: optax.ScaleByAdamState, change: Any) -> optax.ScaleByAdamState:
        return adam._replace(mu=change(adam.mu), nu=change(adam.nu))

    return PPOState(
        actor(state.actor),
        critic(state.critic),
        moments(state.actor_moments, actor),
        moments(state.critic_moments, critic),
        state.rate,
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def init_fleet(config: PPOConfig, obs_size: int, action_size: int, seeds: Integer[Numbers, " run"]) -> PPOState:
    return jax.vmap(lambda seed: init(config, obs_size, action_size, seed))(seeds)


EXACT = {"xla_gpu_deterministic_ops": True, "xla_gpu_enable_triton_gemm": False}
"""Compiler options for the same bits in every process: without, a GPU's kernels are those that happened to be fastest.
Without Triton's products, because some have no kernel at all unless they are timed (jax 0.11: "No supported config found")."""


@partial(jax.jit, static_argnums=2)
def noise_fleet(
    seeds: Integer[Numbers, " run"], iteration: Numbers, shape: tuple[int, ...]
) -> Float[Array, "run time env act"]:
    return jax.vmap(lambda seed: noise(seed, iteration, shape))(seeds)


@partial(jax.jit, compiler_options=EXACT)
def log_prob_fleet(
    actor: GaussianActor, obs: Float[Numbers, "run time env obs"], action: Float[Numbers, "run time env act"]
) -> Float[Array, "run time env"]:
    return jax.vmap(log_prob)(actor, obs, action)


@partial(jax.jit, compiler_options=EXACT)
def mean_fleet(actor: GaussianActor, obs: Float[Numbers, "run env obs"]) -> Float[Array, "run env act"]:
    """What is done in evaluation, and to which training adds noise."""
    return jax.vmap(lambda actor, obs: actor(obs)[0].mean)(actor, obs)


def update_fleet(
    config: PPOConfig,
    state: PPOState,
    hyper: Hyper,
    rollout: Rollout,
    seeds: Integer[Numbers, " run"],
    iteration: Numbers,
    progress: Numbers,
) -> tuple[PPOState, Metrics]:
    """`update` of every run; the state that goes in is gone afterwards (donated)."""
    compiled = _update_exactly if config.deterministic else _update_fast
    return compiled(config, state, hyper, rollout, seeds, iteration, progress)


def _update_fleet(config: PPOConfig, *arguments: Any) -> tuple[PPOState, Metrics]:
    return jax.vmap(partial(update, config), in_axes=(0, 0, 0, 0, None, None))(*arguments)


_update_fast = jax.jit(_update_fleet, static_argnums=0, donate_argnums=1)
_update_exactly = jax.jit(_update_fleet, static_argnums=0, donate_argnums=1, compiler_options=EXACT)
