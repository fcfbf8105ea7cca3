"""What a method is: a frozen value that keeps (or fails to keep) a network plastic, and says where it acts.

Every hook does nothing unless a method overrides it, and what does nothing is not in the compiled program. A method's
own state is any tree of arrays (None: it has none); it is part of the training state and of every checkpoint. Hooks
are written for one run; fleets `vmap` them. In the order in which a run meets them:

    check, network   settings: refuse what makes no sense; change the networks before they are built
    init             the method's own state, from fresh networks
    begin_task       the task has changed
    begin_iteration  a new rollout has come
    effective        the network as it acts, made of its parameters
    term             added to the loss and differentiated with it
    gradient         how loss and gradient are taken, where a term's weight depends on gradients
    after            parameters, Adam's moments and own state after a step

Networks go by their *role*, a name that the learner gives them ("actor", "critic"): what is known of several networks
is a dict by role, in the learner's order.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, Float, Integer, Num, PRNGKeyArray

from sphere.errors import in_range
from sphere.nets import NetConfig, Trace

Role = str


class Look(NamedTuple):
    """A forward pass on a minibatch, as a loss term sees it."""

    role: Role
    net: Any
    """The network as it acts."""
    raw: Any
    """The network with its parameters as they are learned; the same unless a method changes how it acts."""
    obs: Num[Array, "n *input"]
    """What its trunks read."""
    trace: Trace | dict[str, Trace]
    """As the network gave it: of a head with several trunks, by their names (`sphere.nets.traces_of`)."""
    other_obs: Num[Array, "n *input"] | None
    """Of a second, independently shuffled minibatch, if the method asks for one (`other_batch`)."""
    build: Callable[[Any], Any]
    """From parameters, in the form in which they are carried, to the network as it acts."""


class Term(NamedTuple):
    """weight * value is added to the loss."""

    value: Float[Array, ""]
    weight: Any


class Weights(NamedTuple):
    """Parameters and Adam's moments of one network, in the form in which an update carries them."""

    params: Any
    mu: Any
    nu: Any


class Step(NamedTuple):
    """What one gradient step of all networks was."""

    before: dict[Role, Any]
    """Parameters before it, as they are carried."""
    trace: dict[Role, Trace | dict[str, Trace]]
    """Of its minibatch, at the parameters before it."""
    loss: dict[Role, Float[Array, ""]]
    """What the task alone asks of each network, without what methods add: of PPO's actor the policy loss, without
    entropy."""
    terms: dict[Role, dict[str, Term]]
    """By method."""
    rate_fraction: Float[Array, ""]
    """The learning rate against that at the start of the task; 1 where it follows the KL divergence."""
    steps: Integer[Array, ""]
    """Steps that the run has taken before, the same for all runs of a fleet: a `lax.cond` by it stays one under
    `vmap`."""
    key: PRNGKeyArray
    """Of this method and this step."""
    unpack: dict[Role, Callable[[Any], Any]]
    """From the carried form to the network."""
    pack: dict[Role, Callable[[Any], Any]]


class After(NamedTuple):
    own: Any
    weights: dict[Role, Weights]
    replaced: Float[Array, ""] | float = 0.0
    """Units that got new weights, for the records."""


class Method:
    """The hooks, each doing nothing."""

    name: ClassVar[str]
    """On the command line and in records."""
    label: ClassVar[str]
    """In tables and figures: the paper's name where it has one."""
    strength: ClassVar[str | None] = None
    """The number of a run that scales the method. Where it is 0 in all runs, the method is left out of the program."""
    resets: ClassVar[bool] = False
    """Whether it gives units new weights and counts them: a run in which it has reset none says so."""
    other_batch: ClassVar[bool] = False
    """Whether `term` needs a second minibatch."""

    def choices(self, usual: Mapping[str, Any]) -> dict[str, Any]:
        """The settings by which it is another method than its label says, as {"variant": "fixed-scale", "target_scale":
        0.0}: those that differ from their defaults, if a word is among them. Numbers alone say how strong it is.
        `usual` has what the learner makes the default, as the placement of TD3."""
        settings = dataclasses.fields(self)  # type: ignore[arg-type]
        found = {one.name: getattr(self, one.name) for one in settings}
        changed = {
            one.name: found[one.name] for one in settings if found[one.name] not in (one.default, usual.get(one.name))
        }
        return changed if any(isinstance(value, str) for value in changed.values()) else {}

    def acts_on(self, role: Role) -> bool:
        """By the setting `placement`, where a method has it: a role, or "both" for all."""
        return getattr(self, "placement", "both") in (role, "both")

    def placed(self, roles: Iterable[Role]) -> list[Role]:
        """Those that it acts on."""
        return [role for role in roles if self.acts_on(role)]

    def check(self, nets: Mapping[Role, NetConfig]) -> None:
        """Raise a ValueError, in a sentence, where the method could have no effect on these networks."""
        if not self.placed(nets):
            raise ValueError(
                f"{self.name} acts on the network {getattr(self, 'placement', None)!r}, and this learner has only "
                f"{', '.join(map(repr, nets))}; choose another placement or another method"
            )

    def network(self, role: Role, config: NetConfig) -> NetConfig:
        return config

    def init(self, nets: dict[Role, Any], key: PRNGKeyArray) -> Any:
        return None

    def begin_task(self, own: Any) -> Any:
        return own

    def begin_iteration(self, own: Any, progress: Float[Array, ""]) -> Any:
        """`progress` is that of the task at the end of this iteration, up to 1."""
        return own

    def carried(self, own: Any, change: dict[Role, Callable[[Any], Any]]) -> Any:
        """Networks that are part of the state, in another form: an update carries parameters packed."""
        return own

    def effective(self, own: Any, role: Role, net: Any) -> Any:
        return net

    def term(self, own: Any, look: Look) -> Term | None:
        return None

    def gradient(self, role: Role, function: Callable) -> Callable | None:
        """`function(params)` gives (loss, Look, aux). The result is called as (params, rho), with the run's number that
        `strength` names, and gives (Penalised, gradient), as `sphere.penalised_value_and_grad` does."""
        return None

    def after(self, own: Any, weights: dict[Role, Weights], step: Step) -> After:
        return After(own, weights)


def overrides(method: Method, hook: str) -> bool:
    return getattr(type(method), hook) is not getattr(Method, hook)


def check_together(methods: tuple[Method, ...]) -> None:
    """Refuse settings that are no numbers where numbers are wanted, and methods that exclude each other."""
    for method in methods:
        if dataclasses.is_dataclass(method):
            in_range(method, {}, f"{method.name}.")
    balancing = [method.name for method in methods if overrides(method, "gradient")]
    if len(balancing) > 1:
        raise ValueError(f"{' and '.join(balancing)} both weigh their loss by gradients; choose one")


def check_methods(methods: tuple[Method, ...], nets: Mapping[Role, NetConfig]) -> None:
    """Refuse methods that exclude each other or could have no effect on these networks."""
    check_together(methods)
    for method in methods:
        method.check(nets)
