"""Proximal policy optimisation as the released SPHERE code runs it (SB3/SBX semantics).

The equations are in `ppo_equations.py`; a fleet of it is made by `rows.py`.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from sphere.algos import shared_encoder
from sphere.algos.frames import Frames
from sphere.algos.learner import ActorCritic, Clock, Data, DataSpec, Keep, Numbers, divisors_near, made_up
from sphere.algos.ppo_equations import (
    Minibatch,
    PPOMetrics,
    Rollout,
    actor_loss,
    adapt_rate,
    by_time,
    critic_loss,
    drawn_log_prob,
    prepare,
    scheduled,
    shuffled,
    table_of,
)
from sphere.algos.state import (
    INIT_ACTOR,
    INIT_CRITIC,
    METHODS,
    SHUFFLE,
    SHUFFLE_OTHER,
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
from sphere.algos.step import Loss, Surroundings, added, descend
from sphere.errors import in_range
from sphere.methods import Method, Sphere
from sphere.methods.method import check_methods, overrides
from sphere.nets import GaussianActor, NetConfig, Value, build, with_temperature

BOUNDS = {
    **dict.fromkeys(("num_envs", "rollout_steps", "batch_size", "epochs"), (1, None)),
    **dict.fromkeys(("gamma", "gae_lambda", "anneal"), (0, 1)),
    **dict.fromkeys(("clip", "learning_rate", "final_learning_rate", "target_kl", "adam_eps"), (0, None)),
}


class PPOState(TrainState):
    rate: Float[Array, "*fleet"]
    """The KL-adaptive learning rate."""


@dataclass(frozen=True)
class PPO(ActorCritic):
    """Proximal policy optimisation. What a sweep may vary is in `numbers`; it does not change the program."""

    name: ClassVar[str] = "ppo"
    title: ClassVar[str] = "PPO"

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
    """Reached linearly, then kept; the schedule restarts with every task."""
    anneal: float = 1.0
    """Fraction of a task over which the rate falls: 1 on MetaWorld, 0.5 on HumanoidBench in the paper."""
    target_kl: float | None = None
    """Set: the rate follows the KL divergence instead of the schedule (released HumanoidBench setting: 0.03)."""
    acted_log_prob: bool = False
    """Take the log-probabilities of actions from the noise with which they were drawn, not from the network that
    learns. Where both choose other experts for a state, a ratio by the latter can be beyond all bounds."""
    adam_eps: float = 1e-5
    """1e-5, not 1e-8: Adam in the reference PPO."""
    actor: NetConfig = NetConfig()
    critic: NetConfig = NetConfig(kind="mlp")
    methods: tuple[Method, ...] = (Sphere(),)
    """What keeps the networks plastic; on the command line --method NAME. With rho 0 SPHERE leaves no trace."""
    deterministic: bool = True
    """On a GPU, choose kernels by rule, not by timing them: the same seed then gives the same bits in every process, as
    an exact resume needs. Without it updates may be faster: python -m benchmarks.update --fast measures it."""

    def __post_init__(self) -> None:
        in_range(self, BOUNDS, "ppo.")
        if not 0 < self.max_grad_norm < math.inf:
            raise ValueError(
                f"ppo.max_grad_norm={self.max_grad_norm}; want a number above 0: with 0 every gradient would "
                "be 0 and nothing learned; a large one, as 1e9, clips nothing"
            )
        samples = self.num_envs * self.rollout_steps
        if samples % self.batch_size:
            raise ValueError(
                f"a rollout has num_envs*rollout_steps = {samples} samples, not a multiple of batch_size="
                f"{self.batch_size}; use one of {divisors_near(samples, self.batch_size, 6)}"
            )
        check_methods(self.methods, self.nets)
        if self.critic.encoder == "shared":
            shared_encoder.check(self.methods)

    @property
    def learned(self) -> int:
        return self.epochs * self.iteration_steps

    @property
    def numbers(self) -> dict[str, float]:
        rates = {"learning_rate": self.learning_rate, "final_learning_rate": self.final_learning_rate}
        gate = {} if self.actor.kind == "mlp" else {"temperature": self.actor.temperature}
        return rates | gate

    def init(self, spec: DataSpec, seed: Integer[Array, ""], numbers: Numbers) -> PPOState:
        key = jax.random.key(seed)
        nets = planned(self.methods, self.nets)
        sees: dict[str, Any] = {"inner": spec.observation, "numbers": spec.numbers}
        trunk = build(nets["actor"], outer=spec.action, key=jax.random.fold_in(key, INIT_ACTOR), **sees)
        if "temperature" in numbers:
            trunk = with_temperature(trunk, numbers["temperature"])
        if nets["critic"].encoder == "shared":
            value = shared_encoder.on_features(nets["critic"], trunk, key=jax.random.fold_in(key, INIT_CRITIC))
        else:
            value = build(nets["critic"], outer=1, key=jax.random.fold_in(key, INIT_CRITIC), **sees)
        made = {"actor": GaussianActor(trunk, spec.action), "critic": Value(value)}
        # float32 by name: a weakly typed first state would compile the update a second time
        rate = jnp.asarray(numbers["learning_rate"], jnp.float32)
        own = init_methods(self.methods, made, seed)
        return PPOState(nets=made, moments=init_moments(made), methods=own, rate=rate)

    def policy(self, state: PPOState) -> GaussianActor:
        """The actor as it acts; the same network unless a method changes how its parameters are used."""
        return effective(self.methods, state.methods, "actor", state.nets["actor"])

    def annotate(self, policy: GaussianActor, data: Data) -> dict[str, Array]:
        """Log-probabilities of a whole rollout's actions at once: acting need not fetch them step by step. By the
        network that learns, so that the ratio of the first minibatch is one. In parts of 128 steps."""
        if self.acted_log_prob:
            return {"log_prob": drawn_log_prob(data["noise"], policy.log_std)}
        if isinstance(data["obs"], Frames):
            return {"log_prob": by_time(data["obs"], lambda obs, a: policy(obs)[0].log_prob(a), data["action"])}
        columns = (data["obs"], data["action"])
        return {"log_prob": jax.lax.map(lambda xs: policy(xs[0])[0].log_prob(xs[1]), columns, batch_size=128)}

    def update(
        self, state: PPOState, numbers: Numbers, data: Data, seed: Integer[Array, ""], clock: Clock
    ) -> tuple[PPOState, dict[str, Array]]:
        """All epochs over one rollout, as one scan over minibatches."""
        critic = effective(self.methods, state.methods, "critic", state.nets["critic"])
        if self.critic.encoder == "shared":
            critic = shared_encoder.whole(critic, self.policy(state))
        rollout = Rollout.of(data)
        flat = prepare(critic, rollout, self.gamma, self.gae_lambda)
        envs, shape = rollout.reward.shape[1], (len(flat.returns), self.epochs, self.batch_size)

        def inputs(rows: Integer[Array, " batch"], obs: Any = rollout.obs) -> Array:
            return obs.observations(rows // envs, rows % envs) if isinstance(obs, Frames) else flat.obs[rows]

        def orders(purpose: int) -> Integer[Array, "minibatch batch"]:
            return shuffled(key_of(seed, purpose, clock.iteration), *shape)

        rate = scheduled(self, numbers, clock.progress)
        state = of_methods(self.methods, state, lambda method, own: method.begin_iteration(own, clock.progress))
        taken = table_of(flat)

        def step(state: PPOState, xs: tuple[Any, Any, Any]) -> tuple[PPOState, Float[Array, " metric"]]:
            rows, other, index = xs
            batch = taken(rows)
            if isinstance(rollout.obs, Frames):  # images are not in the table: they stay bytes
                batch = batch._replace(obs=inputs(rows))
            around = Surroundings(unpack, pack)
            if other is not None:
                around = around._replace(other_inputs=inputs(other))
            if index is not None:
                steps = clock.iteration * len(order) + index
                around = around._replace(steps=steps, key=jax.random.fold_in(method_key, index))
            state, metrics = minibatch(self, state, numbers, rate, batch, around)
            # side by side: each by itself would be a kernel that writes one number
            return state, jnp.stack([jnp.asarray(metric, jnp.float32) for metric in metrics])

        order = orders(SHUFFLE)
        # what no method asks for is not in the program
        other = orders(SHUFFLE_OTHER) if any(method.other_batch for method in self.methods) else None
        after = any(overrides(method, "after") for method in self.methods)
        index = jnp.arange(len(order), dtype=jnp.int32) if after else None
        method_key = key_of(seed, METHODS, clock.iteration)
        pack, unpack = forms(state.nets)
        packed, written = jax.lax.scan(step, in_form(self.methods, state, pack), (order, other, index))
        state = in_form(self.methods, packed, unpack)
        means = PPOMetrics(*jnp.mean(written, axis=0))
        healthy = jnp.all(written[:, PPOMetrics._fields.index("finite")] > 0) & all_finite(state.nets)
        return state, means._replace(finite=healthy, replaced=means.replaced * len(order))._asdict()

    def cross(self, old: PPOState, fresh: PPOState, keep: Keep, seed: Integer[Array, ""]) -> PPOState:
        state = crossed(self.methods, old, fresh, keep, seed)
        return dataclasses.replace(state, rate=old.rate if keep.learning_rate else fresh.rate)

    def trial(self, spec: DataSpec, runs: int) -> tuple["PPO", dict[str, Any], float]:
        """A few minibatches: enough for the clock, few enough to wait for."""
        few = dataclasses.replace(self, num_envs=1, rollout_steps=8 * self.batch_size, epochs=1)
        data = made_up(spec, runs, few.rollout)
        data["log_prob"] = data["reward"]
        return few, data, self.epochs * self.iteration_steps / few.rollout_steps


def _losses(config: PPO, state: PPOState, batch: Minibatch, around: Surroundings) -> dict[str, Loss]:
    losses: dict[str, Loss] = {
        "actor": lambda net: actor_loss(net, batch, config.clip, config.entropy_coefficient),
        "critic": lambda net: critic_loss(net, batch, config.value_coefficient),
    }
    if config.critic.encoder != "shared":
        return losses
    nets = {role: around.unpacked(role)(packed) for role, packed in state.nets.items()}
    acting = {role: effective(config.methods, state.methods, role, net) for role, net in nets.items()}
    return shared_encoder.jointly(losses, acting)


def minibatch(
    config: PPO,
    state: PPOState,
    numbers: Numbers,
    scheduled_rate: Float[Array, ""],
    batch: Minibatch,
    around: Surroundings = Surroundings(),  # noqa: B008 - a value
) -> tuple[PPOState, PPOMetrics]:
    """One gradient step of the actor, then of the critic, then what methods do after a step."""
    rate = scheduled_rate if config.target_kl is None else state.rate
    fraction = scheduled_rate / numbers["learning_rate"] if config.target_kl is None else jnp.ones_like(rate)
    stepped, found = descend(
        config.methods,
        state,
        numbers,
        _losses(config, state, batch, around),
        batch.obs,
        rate,
        around,
        max_norm=config.max_grad_norm,
        eps=config.adam_eps,
        rate_fraction=fraction,
        # without the entropy bonus and the value coefficient
        task_losses=lambda side: {"actor": side["actor"].facts.policy_loss, "critic": side["critic"].facts},
    )
    values, norms = found.values, found.norms
    terms, error = values["actor"].aux.facts, values["critic"].aux.facts
    penalty, coefficient, felt = added(values)
    if config.target_kl is not None:
        stepped = dataclasses.replace(stepped, rate=adapt_rate(state.rate, terms.kl, config.target_kl))
    metrics = PPOMetrics(
        terms.policy_loss,
        error,
        terms.entropy,
        terms.kl,
        terms.clip_fraction,
        penalty,
        coefficient,
        felt,
        norms["actor"],
        norms["critic"],
        rate,
        jnp.isfinite(norms["actor"] + norms["critic"] + values["actor"].loss + values["critic"].loss),
        found.replaced,
    )
    return stepped, metrics
