"""Twin delayed deterministic policy gradient (TD3) for fleets, with critics that may be mixtures of experts.

The equations are in `td3_equations.py`, the memory that it learns from in `replay.py`; a fleet of it is made by
`rows.py`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from sphere.algos import replay
from sphere.algos.learner import ActorCritic, Clock, Data, DataSpec, Keep, Numbers
from sphere.algos.state import (
    DRAW,
    INIT_ACTOR,
    INIT_CRITIC,
    METHODS,
    SMOOTH,
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
from sphere.algos.step import Surroundings
from sphere.algos.td3_equations import Transition, joint
from sphere.algos.td3_settings import check_critic_methods, check_sizes
from sphere.algos.td3_step import TD3Metrics, TD3State, minibatch, summary
from sphere.methods import Method, Sphere
from sphere.nets import DeterministicActor, Explorer, NetConfig, TwinQ, build, with_temperature


@dataclass(frozen=True)
class TD3(ActorCritic):
    """TD3 as SBX has it; `form` gives the authors'. Methods act on the critic."""

    name: ClassVar[str] = "td3"
    title: ClassVar[str] = "TD3"
    placement: ClassVar[str | None] = "critic"
    alpha: ClassVar[float | None] = None

    num_envs: int = 8
    """Environments per run."""
    rollout_steps: int = 50
    """Steps of each environment between two rounds of updates; the policy does not change meanwhile."""
    update_ratio: float = 1.0
    """Updates for each environment step."""
    batch_size: int = 256
    buffer_size: int = 1_000_000
    """Transitions that a run remembers; the oldest go first."""
    learning_starts: int = 10_000
    """Actions are uniform, and nothing is learned, until the memory holds so many transitions: in every task, unless
    boundary.replay keeps them."""
    exploration: float = 0.1
    """Deviation of the noise on actions, where actions are in [-1, 1]."""
    gamma: float = 0.99
    tau: float = 0.005
    """How far targets move towards the networks."""
    target_noise: float = 0.2
    """Deviation of the noise on the target's action."""
    target_noise_clip: float = 0.5
    policy_delay: int = 2
    """Updates of the critics for each of the actor."""
    form: Literal["sbx", "authors"] = "sbx"
    """sbx: the actor climbs the smaller of both critics, targets move in every update, the critics' loss is halved.
    authors: the first critic, targets move when the actor does, after it, and the loss is the plain sum."""
    learning_rate: float = 3e-4
    """Of the actor."""
    critic_learning_rate: float = 3e-4
    adam_eps: float = 1e-8
    actor: NetConfig = NetConfig(kind="mlp", depth=2)
    critic: NetConfig = NetConfig(kind="top-k", depth=2)
    """Each of the twins. Experts and gate read the observation and the action."""
    methods: tuple[Method, ...] = (Sphere(placement="critic"),)
    """What keeps the critic plastic; on the command line --method NAME. With rho 0 SPHERE leaves no trace."""
    deterministic: bool = True
    """On a GPU, choose kernels by rule, not by timing them: the same seed then gives the same bits in every process,
    as an exact resume needs."""

    def __post_init__(self) -> None:
        check_sizes(self)
        check_critic_methods(self.name, self.methods, self.nets)

    @property
    def updates(self) -> int:
        """Of one iteration."""
        return max(1, round(self.update_ratio * self.iteration_steps))

    @property
    def learned(self) -> int:
        return self.updates * self.batch_size

    @property
    def numbers(self) -> dict[str, float]:
        names = ("learning_rate", "critic_learning_rate", "exploration")
        gate = {} if self.critic.kind == "mlp" else {"temperature": self.critic.temperature}
        return {name: getattr(self, name) for name in names} | gate

    @property
    def memory(self) -> int:
        return self.buffer_size

    def init(self, spec: DataSpec, seed: Integer[Array, ""], numbers: Numbers) -> TD3State:
        key = jax.random.key(seed)
        nets = planned(self.methods, self.nets)
        inner = spec.size(self.title)

        def trunk(key: Any) -> Any:
            made = build(nets["critic"], inner + spec.action, 1, key=key)
            return with_temperature(made, numbers["temperature"]) if "temperature" in numbers else made

        actor = build(nets["actor"], inner, spec.action, key=jax.random.fold_in(key, INIT_ACTOR))
        made: dict[str, Any] = {
            "actor": DeterministicActor(actor, spec.low, spec.high),
            "critic": TwinQ(trunk, key=jax.random.fold_in(key, INIT_CRITIC)),
        }
        return TD3State(
            nets=made,
            moments=init_moments(made),
            methods=init_methods(self.methods, made, seed),
            targets=jax.tree.map(jnp.copy, made),
            deviation=jnp.asarray(numbers["exploration"], jnp.float32),
            warm=jnp.asarray(self.learning_starts > 0),
        )

    def policy(self, state: TD3State) -> Explorer:
        actor = effective(self.methods, state.methods, "actor", state.nets["actor"])
        return Explorer(actor, state.deviation, state.warm)

    def probes(self, state: TD3State) -> dict[str, Any]:
        """The critics at the actions of the actor: the first is the one that tables speak of."""
        critic = effective(self.methods, state.methods, "critic", state.nets["critic"])
        actor = state.nets["actor"]
        return {"critic": AtActions(critic.first, actor), "second": AtActions(critic.second, actor), "actor": actor}

    def remember(self, spec: DataSpec, data: Data) -> Float[Array, "n width"]:
        """Transitions as rows of the memory; actions as the simulator has cut them, in [-1, 1]."""
        low, high = np.array(spec.low, np.float32)[None, None], np.array(spec.high, np.float32)[None, None]
        action = jnp.clip((data["action"] - (high + low) / 2) / ((high - low) / 2), -1, 1)
        return replay.as_rows(Transition(data["obs"], action, data["reward"], data["next_obs"], data["terminated"]))

    def update(
        self, state: TD3State, numbers: Numbers, data: Data, seed: Integer[Array, ""], clock: Clock
    ) -> tuple[TD3State, dict[str, Array]]:
        """All updates of an iteration, as one scan, from the `filled` rows of the `place`-th of the memory's tables.

        Rows are gathered from `table` [run, capacity, width] as it is: on a CPU, one run's part of it would be a copy.
        """
        table, place, filled = data["table"], data["place"], data["filled"]
        if (capacity := table.shape[1]) < self.batch_size:
            raise ValueError(
                f"the data set has {capacity} transitions, fewer than a minibatch of {self.name}.batch_size="
                f"{self.batch_size}; use a smaller batch or more data"
            )
        count, action = self.updates, len(state.nets["actor"].low)
        draw, smooth, own = (key_of(seed, purpose, clock.iteration) for purpose in (DRAW, SMOOTH, METHODS))

        def learn(state: TD3State) -> tuple[TD3State, TD3Metrics]:
            rows = jax.random.randint(draw, (count, self.batch_size), 0, filled)
            noise = self.target_noise * jax.random.normal(smooth, (count, self.batch_size, action))
            noise = jnp.clip(noise, -self.target_noise_clip, self.target_noise_clip)
            pack, unpack = forms(state.nets)

            def step(state: TD3State, xs: tuple[Any, Any, Any]) -> tuple[TD3State, Float[Array, " metric"]]:
                rows, noise, index = xs
                steps = clock.iteration * count + index
                around = Surroundings(unpack, pack, steps=steps, key=jax.random.fold_in(own, index))
                batch = Transition(*replay.columns(table[place, rows], action))
                turn = (steps + 1) % self.policy_delay == 0
                state, metrics = minibatch(self, state, numbers, batch, noise, turn, around)
                return state, jnp.stack([jnp.asarray(metric, jnp.float32) for metric in metrics])

            state = of_methods(self.methods, state, lambda method, own: method.begin_iteration(own, clock.progress))
            xs = (rows, noise, jnp.arange(count, dtype=jnp.int32))
            packed, written = jax.lax.scan(step, _packed(self, state, pack), xs)
            return _packed(self, packed, unpack), summary(written, self.policy_delay)

        def wait(state: TD3State) -> tuple[TD3State, TD3Metrics]:
            zero = jnp.zeros((), jnp.float32)
            return state, TD3Metrics(*[zero] * len(TD3Metrics._fields))._replace(finite=jnp.asarray(True))

        state, metrics = jax.lax.cond(filled >= max(self.learning_starts, self.batch_size), learn, wait, state)
        state = dataclasses.replace(state, warm=filled < self.learning_starts)
        return state, metrics._replace(finite=metrics.finite & all_finite(state.nets))._asdict()

    def cross(self, old: TD3State, fresh: TD3State, keep: Keep, seed: Integer[Array, ""]) -> TD3State:
        state = crossed(self.methods, old, fresh, keep, seed)
        targets = old.targets if keep.parameters else fresh.targets
        return dataclasses.replace(state, targets=targets, warm=old.warm if keep.replay else fresh.warm)

    def trial(self, spec: DataSpec, runs: int) -> tuple["TD3", dict[str, Any], float]:
        """A few updates from a small memory."""
        size = max(self.batch_size, 64)
        less: dict[str, Any] = {
            "num_envs": 1,
            "rollout_steps": 8,
            "update_ratio": 1.0,
            "buffer_size": size,
            "learning_starts": 0,
        }
        own = {one.name for one in dataclasses.fields(self)}
        few: TD3 = dataclasses.replace(self, **{name: value for name, value in less.items() if name in own})
        width = replay.width(spec)
        # evenly spread numbers: a router that sees equal states would send all of them to the same experts
        table = np.sin(np.arange(runs * size * width, dtype=np.float32)).reshape(runs, size, width)
        return few, replay.data(table, np.arange(runs), size), self.updates / few.updates


class AtActions(eqx.Module):
    """A critic as a function of the state, at the actions of an actor: what is diagnosed."""

    critic: Any
    actor: DeterministicActor

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.actor.input_shape

    def __call__(self, x: Float[Array, "n obs"], taps: tuple[Array, ...] | None = None) -> tuple[Array, Any]:
        return self.critic(joint(x, self.actor(x)[0]), taps)


def _packed(config: TD3, state: TD3State, change: Mapping[str, Any]) -> TD3State:
    """Networks, moments and targets in another form."""
    changed = in_form(config.methods, state, dict(change))
    return dataclasses.replace(changed, targets={role: change[role](net) for role, net in state.targets.items()})
