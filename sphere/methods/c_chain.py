"""C-CHAIN (Tang 2025): a step may not move the policy's means far on states that it did not see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sphere.errors import in_range
from sphere.methods.method import After, Look, Method, Role, Step, Term, Weights
from sphere.variants import Placement


@dataclass(frozen=True)
class CChain(Method):
    """A loss on what a step changes elsewhere (churn), of the policy only."""

    name: ClassVar[str] = "c-chain"
    label: ClassVar[str] = "C-CHAIN"
    other_batch: ClassVar[bool] = True
    placement: ClassVar[Placement] = "actor"

    target: float = 0.05
    """The loss is weighted to this fraction of the policy loss, both averaged over `window`."""
    initial: float = 100.0
    """The weight until the end of the warm-up."""
    warm_up: float = 0.1
    """Fraction of a task before the weight follows the losses."""
    warm_up_iterations: int | None = None
    """The warm-up counted in iterations instead, as in the published code: 50."""
    window: int = 100
    """Iterations over which the losses are averaged."""

    def __post_init__(self) -> None:
        in_range(self, {}, "c-chain.")
        if self.window < 1:
            raise ValueError(f"c-chain: window={self.window} holds no iteration; use 1 or more")

    def init(self, nets: dict[Role, Any], key: PRNGKeyArray) -> Any:
        return {
            "previous": jax.tree.map(jnp.copy, nets["actor"]),
            "steps": jnp.zeros((), jnp.int32),
            "iterations": jnp.zeros((), jnp.int32),
            "weight": jnp.asarray(self.initial, jnp.float32),
            "policy_losses": jnp.zeros(self.window, jnp.float32),
            "churn": jnp.zeros(self.window, jnp.float32),
            "rate_fraction": jnp.ones((), jnp.float32),
        }

    def begin_task(self, own: Any) -> Any:
        """All but `previous` as at the start, and that is not looked at before the third step."""
        fresh = {name: jnp.zeros_like(value) for name, value in own.items() if name != "previous"}
        return own | fresh | {"weight": jnp.full_like(own["weight"], self.initial)}

    def carried(self, own: Any, change: dict[Role, Callable[[Any], Any]]) -> Any:
        return own | {"previous": change["actor"](own["previous"])}

    def begin_iteration(self, own: Any, progress: Float[Array, ""]) -> Any:
        """The weight of this iteration, from the last minibatches of those before."""
        done = own["iterations"]
        if self.warm_up_iterations is not None:
            warm = done < self.warm_up_iterations
        else:
            warm = progress * done / (done + 1) < self.warm_up  # progress counts this iteration too
        known = jnp.maximum(jnp.minimum(done, self.window), 1)
        policy, churn = (jnp.sum(own[name]) / known for name in ("policy_losses", "churn"))
        follows = self.target * policy / (churn + 1e-8) * own["rate_fraction"]
        weight = jnp.where(warm | (done == 0), self.initial, follows)
        return own | {"weight": weight.astype(jnp.float32), "iterations": done + 1}

    def term(self, own: Any, look: Look) -> Term | None:
        if not self.acts_on(look.role):
            return None
        means = [net.act(look.other_obs) for net in (look.net, look.build(own["previous"]))]
        churn = jnp.mean(jnp.square(means[0] - jax.lax.stop_gradient(means[1])))
        # Nothing to compare with in the first step; the published code waits for one more.
        return Term(jnp.where(own["steps"] < 2, 0.0, churn), own["weight"])

    def after(self, own: Any, weights: dict[Role, Weights], step: Step) -> After:
        """What the last minibatch of an iteration writes here is what stays of it."""
        place = (own["iterations"] - 1) % self.window
        new = {
            "previous": step.before["actor"],
            "steps": own["steps"] + 1,
            "policy_losses": own["policy_losses"].at[place].set(jnp.abs(step.loss["actor"])),
            "churn": own["churn"].at[place].set(step.terms["actor"][self.name].value),
            "rate_fraction": step.rate_fraction.astype(jnp.float32),
        }
        return After(own | new, weights)
