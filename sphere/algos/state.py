"""PPO's settings and state, and fresh ones: what a run is made of before it learns."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Integer

from sphere.errors import in_range
from sphere.methods import (
    CBP,
    CChain,
    LayerNorm,
    LoadBalance,
    Method,
    Parseval,
    ReDo,
    SpectralNorm,
    SpectralReg,
    Sphere,
)
from sphere.methods.method import Role, overrides
from sphere.nets import GaussianActor, NetConfig, Value, build
from sphere.variants import PenaltyConfig

Numbers = Any  # arrays of jax, or of numpy where they come from the host

# Purposes of random keys: a key is used once, and a new consumer gets a new number.
INIT_ACTOR, INIT_CRITIC, ACT, SHUFFLE, INIT_METHODS, METHODS, SHUFFLE_OTHER = range(7)


BOUNDS = {
    **dict.fromkeys(("num_envs", "rollout_steps", "batch_size", "epochs"), (1, None)),
    **dict.fromkeys(("gamma", "gae_lambda", "anneal"), (0, 1)),
    **dict.fromkeys(("clip", "learning_rate", "final_learning_rate", "target_kl", "adam_eps"), (0, None)),
}


@dataclass(frozen=True)
class Mitigations:
    """The methods of a program beside SPHERE, each with its settings; None: not used."""

    layernorm: LayerNorm | None = None
    spectral_norm: SpectralNorm | None = None
    c_chain: CChain | None = None
    cbp: CBP | None = None
    parseval: Parseval | None = None
    redo: ReDo | None = None
    spectral_reg: SpectralReg | None = None
    load_balance: LoadBalance | None = None

    def chosen(self) -> tuple[Method, ...]:
        every = (getattr(self, field.name) for field in dataclasses.fields(self))
        return tuple(method for method in every if method is not None)


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
    """SPHERE. None: no penalty in the program at all; rho = 0 gives the same numbers with it."""
    mitigations: Mitigations = Mitigations()
    """Other methods, alone or beside SPHERE; on the command line --method NAME."""
    deterministic: bool = True
    """On a GPU, choose kernels by rule, not by timing them: the same seed then gives the same bits in every process, as an
    exact resume needs. False makes updates about a quarter faster."""

    def __post_init__(self) -> None:
        in_range(self, BOUNDS, "ppo.")
        if not 0 < self.max_grad_norm < math.inf:
            raise ValueError(
                f"ppo.max_grad_norm={self.max_grad_norm}; want a number above 0: 0 would make every gradient 0, and nothing "
                "would be learned; a large one, as 1e9, clips nothing"
            )
        samples = self.num_envs * self.rollout_steps
        if samples % self.batch_size:
            fitting = [b for b in range(1, samples + 1) if samples % b == 0]
            nearest = sorted(sorted(fitting, key=lambda b: abs(math.log(b / max(self.batch_size, 1))))[:6])
            raise ValueError(
                f"a rollout has num_envs*rollout_steps = {samples} samples, not a multiple of batch_size="
                f"{self.batch_size}; use one of {', '.join(map(str, nearest))}"
            )
        balancing = [method.name for method in self.methods if overrides(method, "gradient")]
        if len(balancing) > 1:
            raise ValueError(f"{' and '.join(balancing)} both weigh their loss by gradients; choose one")
        for method in self.methods:
            method.check({"actor": self.actor, "critic": self.critic})

    @property
    def methods(self) -> tuple[Method, ...]:
        """All that keeps this program's networks plastic, SPHERE first."""
        return (*([] if self.penalty is None else [Sphere(**vars(self.penalty))]), *self.mitigations.chosen())


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
    mitigation: dict[str, Any] = eqx.field(default_factory=dict)
    """The state of every method that has one, by its name."""


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
    """Of all methods that add to a loss, before it is weighted; of several, their sum."""
    coefficient: Float[Array, ""]
    """Its weight; of several, their sum."""
    actor_grad_norm: Float[Array, ""]
    critic_grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    finite: Bool[Array, ""]
    """No loss, gradient or parameter is NaN or infinite; the minimum over minibatches."""
    replaced: Float[Array, ""] = np.float32(0)  # type: ignore[assignment]
    """Units that began anew (CBP, ReDo); the sum over minibatches."""


def init(config: PPOConfig, obs_size: int, action_size: int, seed: Integer[Array, ""]) -> PPOState:
    """Fresh networks; the numbers depend on the seed alone, not on the fleet."""
    key = jax.random.key(seed)
    nets: dict[Role, NetConfig] = {"actor": config.actor, "critic": config.critic}
    for method in config.methods:
        nets = {role: method.network(role, net) for role, net in nets.items()}
    trunk = build(nets["actor"], obs_size, action_size, key=jax.random.fold_in(key, INIT_ACTOR))
    actor = GaussianActor(trunk, action_size)
    critic = Value(build(nets["critic"], obs_size, 1, key=jax.random.fold_in(key, INIT_CRITIC)))
    moments = optax.scale_by_adam().init
    # float32 by name: a weakly typed first state would compile the update a second time
    rate = jnp.asarray(config.learning_rate, jnp.float32)
    own = init_methods(config, actor, critic, seed)
    return PPOState(actor, critic, moments(actor), moments(critic), rate, own)


def init_methods(config: PPOConfig, actor: Any, critic: Any, seed: Integer[Array, ""]) -> dict[str, Any]:
    """The methods' own state, for networks as they are now."""
    key = jax.random.fold_in(jax.random.key(seed), INIT_METHODS)
    nets: dict[Role, Any] = {"actor": actor, "critic": critic}
    states = {method.name: method.init(nets, jax.random.fold_in(key, i)) for i, method in enumerate(config.methods)}
    return {name: own for name, own in states.items() if own is not None}


def begin_task(config: PPOConfig, state: PPOState, seed: Integer[Array, ""], keep: bool) -> PPOState:
    """The task has changed: every method does what it does then (`keep`), or begins anew with the networks as they are."""
    if keep:
        own = {m.name: m.begin_task(state.mitigation[m.name]) for m in config.methods if m.name in state.mitigation}
    else:
        own = init_methods(config, state.actor, state.critic, seed)
    return dataclasses.replace(state, mitigation=own)


def effective(config: PPOConfig, mitigation: dict[str, Any], role: Role, net: Any) -> Any:
    """A network as it acts: its parameters, and what methods make of them."""
    for method in config.methods:
        net = method.effective(mitigation.get(method.name), role, net)
    return net


def acting(config: PPOConfig, state: PPOState) -> GaussianActor:
    """The actor as it acts; the same network unless a method changes how its parameters are used."""
    return effective(config, state.mitigation, "actor", state.actor)
