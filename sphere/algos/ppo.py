"""Proximal policy optimisation as the released SPHERE code runs it (SB3/SBX semantics), for a run or a fleet of runs.

Settings and state are in `state.py`, advantages in `advantages.py`, losses and the minibatch step in `losses.py`; here are
acting, the whole update, and fleets. Functions are written for one run; `mean_fleet`, `update_fleet` and others do the same
for every row of a leading run axis, compiled once per program.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Integer

from sphere.algos.advantages import gae, prepare
from sphere.algos.losses import ActorTerms, Scene, actor_loss, adapt_rate, critic_loss, minibatch
from sphere.algos.packing import packing
from sphere.algos.state import (
    ACT,
    METHODS,
    SHUFFLE,
    SHUFFLE_OTHER,
    Batch,
    Hyper,
    Metrics,
    Numbers,
    PPOConfig,
    PPOState,
    Rollout,
    acting,
    begin_task,
    effective,
    init,
)
from sphere.methods.method import Role, overrides
from sphere.nets import GaussianActor

__all__ = [
    "ACT",
    "ActorTerms",
    "Batch",
    "GaussianActor",
    "Hyper",
    "Metrics",
    "PPOConfig",
    "PPOState",
    "Rollout",
    "Scene",
    "acting",
    "actor_loss",
    "adapt_rate",
    "begin_task",
    "critic_loss",
    "gae",
    "init",
    "minibatch",
    "prepare",
]


def log_prob(
    actor: GaussianActor, obs: Float[Array, "time env obs"], action: Float[Array, "time env act"]
) -> Float[Array, "time env"]:
    """Of a whole rollout's actions at once, after it: what acting need not fetch step by step. In parts of 128 steps."""
    return jax.lax.map(lambda xs: actor(xs[0])[0].log_prob(xs[1]), (obs, action), batch_size=128)


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

    def orders(purpose: int) -> Integer[Array, "minibatch batch"]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), iteration)
        rows = jax.vmap(lambda k: jax.random.permutation(k, samples))(jax.random.split(key, config.epochs))
        return rows.reshape(-1, config.batch_size)

    rate = scheduled(config, hyper, progress)
    own = {
        m.name: m.begin_iteration(state.mitigation[m.name], progress)
        for m in config.methods
        if m.name in state.mitigation
    }
    state = PPOState(state.actor, state.critic, state.actor_moments, state.critic_moments, state.rate, own)

    # one gather per minibatch instead of five: on a GPU small steps are bound by the number of launches
    columns = [leaf.reshape(samples, -1) for leaf in data]
    ends = np.cumsum([column.shape[1] for column in columns])[:-1].tolist()
    table = jnp.concatenate(columns, axis=1)

    def step(state: PPOState, xs: tuple[Any, Any, Any]) -> tuple[PPOState, Float[Array, " metric"]]:
        rows, other, index = xs
        parts = jnp.split(table[rows], ends, axis=1)
        batch = Batch(*(part.reshape(-1, *leaf.shape[1:]) for part, leaf in zip(parts, data, strict=True)))
        scene = Scene(unpack, pack)
        if other is not None:
            scene = scene._replace(other_obs=data.obs[other])
        if index is not None:
            scene = scene._replace(steps=iteration * len(order) + index, key=jax.random.fold_in(method_key, index))
        state, metrics = minibatch(config, state, hyper, rate, batch, scene)
        # side by side for the same reason: each by itself would be a kernel that writes one number
        return state, jnp.stack([jnp.asarray(metric, jnp.float32) for metric in metrics])

    order = orders(SHUFFLE)
    # what no method asks for is not in the program
    other = orders(SHUFFLE_OTHER) if any(method.other_batch for method in config.methods) else None
    after = any(overrides(method, "after") for method in config.methods)
    index = jnp.arange(len(order), dtype=jnp.int32) if after else None
    method_key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), METHODS), iteration)
    pack: dict[Role, Callable[[Any], Any]] = {}
    unpack: dict[Role, Callable[[Any], Any]] = {}
    pack["actor"], unpack["actor"] = packing(state.actor)
    pack["critic"], unpack["critic"] = packing(state.critic)
    packed, written = jax.lax.scan(step, _repacked(config, state, pack), (order, other, index))
    state = _repacked(config, packed, unpack)
    means = Metrics(*jnp.mean(written, axis=0))
    healthy = jnp.all(written[:, Metrics._fields.index("finite")] > 0) & jnp.all(
        jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((state.actor, state.critic))])
    )
    return state, means._replace(finite=healthy, replaced=means.replaced * len(order))


def _repacked(config: PPOConfig, state: PPOState, change: dict[Any, Any]) -> PPOState:
    """Networks and moments in another form; counters as they are."""

    def moments(adam: optax.ScaleByAdamState, change: Any) -> optax.ScaleByAdamState:
        return adam._replace(mu=change(adam.mu), nu=change(adam.nu))

    own = {m.name: m.carried(state.mitigation[m.name], change) for m in config.methods if m.name in state.mitigation}
    return PPOState(
        change["actor"](state.actor),
        change["critic"](state.critic),
        moments(state.actor_moments, change["actor"]),
        moments(state.critic_moments, change["critic"]),
        state.rate,
        own,
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def init_fleet(config: PPOConfig, obs_size: int, action_size: int, seeds: Integer[Numbers, " run"]) -> PPOState:
    return jax.vmap(lambda seed: init(config, obs_size, action_size, seed))(seeds)


def acting_fleet(config: PPOConfig, state: PPOState) -> GaussianActor:
    """The actors as they act."""
    if not any(overrides(method, "effective") for method in config.methods):
        return state.actor
    return _acting_fleet(config, state.actor, state.mitigation)


def begin_task_fleet(config: PPOConfig, state: PPOState, seeds: Integer[Numbers, " run"], keep: bool) -> PPOState:
    """`begin_task` of every run."""
    return _begin_task_fleet(config, keep, state, seeds) if state.mitigation else state


EXACT = {
    "xla_gpu_deterministic_ops": True,
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_enable_dynamic_slice_fusion": False,
}
"""Compiler options for the same bits in every process: without, a GPU's kernels are those that happened to be fastest.
Without Triton's products, because some have no kernel at all unless they are timed (jax 0.11: "No supported config found").
Products do not write into slices of larger arrays either: cuBLAS then finds its first choice to be unsupported."""


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


def side_by_side(config: PPOConfig, *arguments: Any) -> tuple[PPOState, Metrics]:
    """All runs at once. A GPU waits for kernels to begin, not for them to end."""
    return jax.vmap(partial(update, config), in_axes=(0, 0, 0, 0, None, None))(*arguments)


def in_turns(config: PPOConfig, *arguments: Any) -> tuple[PPOState, Metrics]:
    """One run after the other, each as if alone. Cores have no room for more, and with a run axis the compiler copies
    parameters and gradients from order to order: an update takes 10 to 50% longer there (docs/log.md)."""
    *by_run, iteration, progress = arguments

    def one(own: tuple[PPOState, Hyper, Rollout, Array]) -> tuple[PPOState, Metrics]:
        return update(config, *own, iteration, progress)

    return jax.lax.map(one, tuple(by_run))


def _update_fleet(config: PPOConfig, *arguments: Any) -> tuple[PPOState, Metrics]:
    return (in_turns if jax.default_backend() == "cpu" else side_by_side)(config, *arguments)


_update_fast = jax.jit(_update_fleet, static_argnums=0, donate_argnums=1)
# Launched as graphs wherever possible, short ones too: the same bits, 7 to 17% faster (docs/log.md).
_update_exactly = jax.jit(
    _update_fleet, static_argnums=0, donate_argnums=1, compiler_options=EXACT | {"xla_gpu_graph_min_graph_size": 1}
)


@partial(jax.jit, static_argnums=0, compiler_options=EXACT)
def _acting_fleet(config: PPOConfig, actor: Any, mitigation: dict[str, Any]) -> GaussianActor:
    return jax.vmap(lambda net, own: effective(config, own, "actor", net))(actor, mitigation)


@partial(jax.jit, static_argnums=(0, 1))
def _begin_task_fleet(config: PPOConfig, keep: bool, state: PPOState, seeds: Integer[Numbers, " run"]) -> PPOState:
    return jax.vmap(lambda state, seed: begin_task(config, state, seed, keep))(state, seeds)
