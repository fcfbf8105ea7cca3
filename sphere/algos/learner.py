"""What a learner is: frozen settings, and the functions that turn data into a better state.

A learner is written for one run. `sphere.algos.rows` makes a fleet of it: all runs side by side on a GPU, one after
the other on a CPU, compiled once. So a learner's functions are pure: arrays in, arrays out, random numbers from the
run's seed alone. The training loop, records and reports know a learner only by what stands here.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Integer

from sphere.algos.frames import Frames
from sphere.errors import UserError
from sphere.methods.method import Method
from sphere.nets import NetConfig

Numbers = Mapping[str, Float[Array, "*fleet"]]
"""The numbers of a run that do not change the program, by name (rho, learning rates, gate temperature)."""
Data = Mapping[str, Any]
"""Arrays by name: what a source gives for one iteration. Environments give obs, action, reward, next_obs, terminated
and done, each [time, env, ...], and under a policy that draws its actions the unit normal `noise` of each."""


class DataSpec(NamedTuple):
    """Shapes of what a source gives."""

    observation: tuple[int, ...]
    action: int
    """Numbers of an action, or classes of a label."""
    low: tuple[float, ...] = ()
    """The lowest action; empty where data have no actions."""
    high: tuple[float, ...] = ()
    vocabulary: int = 0
    """Observations are ids below this, 0 for padding; 0: they are numbers."""
    frames: int = 0
    """Observations are bytes, a stack of so many images along its last axis; 0: they are numbers."""
    numbers: int = 0
    """Numbers beside every image, in a row of bytes below it."""

    def size(self, reader: str) -> int:
        """Numbers of an observation, for a reader of vectors."""
        if len(self.observation) != 1:
            raise UserError(f"{reader} reads vectors, not images of shape {self.observation}; use the learner ppo")
        return self.observation[0]


class Clock(NamedTuple):
    iteration: Integer[Any, ""]
    """The run's updates before this one."""
    progress: Float[Any, ""]
    """Of the task, from 0 to 1, when this iteration is done."""


@runtime_checkable
class Keep(Protocol):
    """What a run keeps when its task changes."""

    @property
    def parameters(self) -> bool: ...
    @property
    def optimiser(self) -> bool: ...
    @property
    def learning_rate(self) -> bool: ...
    @property
    def methods(self) -> bool: ...
    @property
    def replay(self) -> bool: ...


class Learner:
    """The base of all learners. Subclasses are frozen dataclasses; the docstring under a field is its help text."""

    name: ClassVar[str]
    """On the command line and in records."""
    title: ClassVar[str]
    """In tables, where its network is a plain dense one."""

    methods: tuple[Method, ...]
    """All that keeps its networks plastic."""
    placement: ClassVar[str | None] = None
    """The network that methods act on unless they are told otherwise; None: each has its own."""
    shared: ClassVar[tuple[str, ...]] = ("table",)
    """Names of data that all runs of a fleet get alike, whole; of all others each gets its own row. `table`: memories
    and recorded data."""
    deterministic: bool
    """On a GPU, choose kernels by rule and not by timing them, so that every process computes the same bits."""

    @property
    def rollout(self) -> tuple[int, int]:
        """Environments of a run, and steps of each, that one iteration takes."""
        raise NotImplementedError

    @property
    def iteration_steps(self) -> int:
        envs, steps = self.rollout
        return envs * steps

    @property
    def learned(self) -> int:
        """Samples that the updates of one iteration look at, each as often as they do."""
        return self.iteration_steps

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that may differ between runs of one program, with their values by these settings."""
        return {}

    @property
    def nets(self) -> dict[str, NetConfig]:
        """Settings of its networks, by role."""
        raise NotImplementedError

    @property
    def actor(self) -> NetConfig:
        """Settings of the network that records and tables name: the policy's, or the classifier's."""
        return next(iter(self.nets.values()))

    @property
    def memory(self) -> int:
        """Transitions of a run that it remembers beyond an iteration; 0: none. With a memory, `update` gets as data the
        `table` of all runs, its own `place` in it and how many rows are `filled` (`sphere.algos.replay.data`)."""
        return 0

    def remember(self, spec: DataSpec, data: Data) -> Float[Array, "n width"]:
        """The rows that its memory keeps of one iteration's data."""
        raise NotImplementedError

    def init(self, spec: DataSpec, seed: Integer[Array, ""], numbers: Numbers) -> Any:
        """A fresh state. It depends on the seed and the run's numbers alone, not on the fleet."""
        raise NotImplementedError

    def policy(self, state: Any) -> Any:
        """What acts: a network with `act` and `spread`; None where the source needs none.

        Unless a method changes how networks act, this only selects: it is then called for a whole fleet at once.
        """
        raise NotImplementedError

    def annotate(self, policy: Any, data: Data) -> dict[str, Array]:
        """Columns to be added to the data by the policy that gave them, such as log-probabilities of its actions."""
        return {}

    def update(
        self, state: Any, numbers: Numbers, data: Data, seed: Integer[Array, ""], clock: Clock
    ) -> tuple[Any, dict[str, Array]]:
        """One iteration's learning, and its metrics by name; `finite` says whether all numbers still are."""
        raise NotImplementedError

    def cross(self, old: Any, fresh: Any, keep: Keep, seed: Integer[Array, ""]) -> Any:
        """The state with which the next task begins, of the one before and a fresh one."""
        raise NotImplementedError

    def networks(self, state: Any) -> dict[str, Any]:
        """All that it trains, by role."""
        return state.nets

    def trial(self, spec: DataSpec, runs: int) -> tuple["Learner", dict[str, Any], float]:
        """For an estimate of its speed: the same learner with less to do, made-up data for so many runs, each array
        [run, time, env, ...], and how many times longer a whole iteration takes. By default a whole iteration."""
        return self, made_up(spec, runs, self.rollout), 1.0

    def probes(self, state: Any) -> dict[str, Any]:
        """The networks that are diagnosed, by role, as they act; the first is the one that tables speak of."""
        return {"actor": self.policy(state)}


class ActorCritic(Learner):
    """The base of learners with a policy and what judges it, from the experience of environments."""

    num_envs: int
    rollout_steps: int
    critic: NetConfig

    @property
    def rollout(self) -> tuple[int, int]:
        return self.num_envs, self.rollout_steps

    @property
    def nets(self) -> dict[str, NetConfig]:
        return {"actor": self.actor, "critic": self.critic}


def divisors_near(total: int, wanted: int, most: int) -> str:
    """At most so many divisors of a number, those nearest to the wanted one, for a sentence. Of a huge number not all
    are looked for."""
    fitting = [one for one in range(1, min(total, 10**6) + 1) if total % one == 0]
    nearest = sorted(fitting, key=lambda one: abs(math.log(one) - math.log(max(wanted, 1))))[:most]
    return ", ".join(map(str, sorted(nearest)))


def made_up(spec: DataSpec, runs: int, rollout: tuple[int, int]) -> dict[str, Any]:
    """Data as environments give them, for so many runs, environments and steps."""
    envs, steps = rollout
    shape = (runs, steps, envs)
    zeros, none = np.zeros(shape, np.float32), np.zeros(shape, bool)
    # evenly spread numbers: a router that sees equal states would send all of them to the same experts
    size = (*shape, *spec.observation)
    action = np.zeros((*shape, spec.action), np.float32)
    found: dict[str, Any]
    if spec.frames:
        found = {"obs": _made_up_frames(spec, shape), "next_obs": None}
    else:
        obs = np.sin(np.arange(math.prod(size), dtype=np.float32)).reshape(size)
        found = {"obs": obs, "next_obs": obs}
    return {"reward": zeros, "terminated": none, "done": none, **found, "action": action}


def _made_up_frames(spec: DataSpec, shape: tuple[int, int, int]) -> Frames:
    runs, steps, envs = shape
    height, width, channels = spec.observation
    one = (envs, height, width, channels // spec.frames)
    image = np.arange(math.prod(one), dtype=np.uint8).reshape(one)
    places = np.broadcast_to(image, (runs, spec.frames + steps, *one))
    first = np.zeros((runs, steps + 1, envs), np.int32)
    return Frames(places, first, places[:, :1], np.full((runs, 1, envs), steps, np.int32))
