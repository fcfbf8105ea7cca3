"""ReDo (Sokar 2023): from time to time, dormant hidden units begin anew."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from sphere.mitigations.method import After, Method, Role, Step, Weights, placed
from sphere.mitigations.units import Activity, activity, cut, mlps, replanted, with_mlps
from sphere.variants import Placement

WITHIN_TWO = 0.87962566103423978
"""Standard deviation of a normal variable cut at -2 and 2: a kernel is drawn as at the start, LeCun normal."""


def dormant(seen: Activity, layer: int, tau: float) -> Bool[Array, "experts width"]:
    """Score mean|h_i| / (layer mean of mean|h| + 1e-9) <= tau; never of an expert without samples."""
    mean = seen.mean[layer]
    score = mean / (jnp.mean(mean, axis=1, keepdims=True) + 1e-9)
    return (score <= tau) & seen.seen[:, None]


@dataclass(frozen=True)
class ReDo(Method):
    """Every `period` steps, units that a minibatch found dormant are drawn anew and their moments forgotten."""

    name: ClassVar[str] = "redo"

    tau: float = 0.1
    """Largest score of a dormant unit: its activity against the mean of its layer."""
    period: int = 1000
    """Gradient steps from one time to the next."""
    placement: Placement = "both"

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"redo: period={self.period}; wanted 1 or more steps")

    def after(self, own: Any, weights: dict[Role, Weights], step: Step) -> After:
        roles = placed(self.placement)
        due = (step.steps + 1) % self.period == 0

        def renew(weights: dict[Role, Weights]) -> tuple[dict[Role, Weights], Float[Array, ""]]:
            changed, total = {}, jnp.zeros(())
            for i, role in enumerate(roles):
                changed[role], count = self._renewed(role, weights[role], step, jax.random.fold_in(step.key, i))
                total += count
            return changed, total

        mine = {role: weights[role] for role in roles}
        changed, count = jax.lax.cond(due, renew, lambda weights: (weights, jnp.zeros(())), mine)
        return After(own, {**weights, **changed}, count)

    def _renewed(self, role: Role, weights: Weights, step: Step, key: PRNGKeyArray) -> tuple[Weights, Float[Array, ""]]:
        nets = [step.unpack[role](tree) for tree in weights]
        params, *moments = (mlps(net) for net in nets)
        shapes = [layer.kernel.shape for mlp in params.values() for layer in mlp.hidden]
        drawn = cut(jax.random.truncated_normal(key, -2, 2, (sum(map(math.prod, shapes)),)), shapes)
        count = jnp.zeros(())
        for part in params:
            seen = activity(step.trace[role], part)
            for i in range(len(params[part].hidden)):
                units, normal = dormant(seen, i, self.tau), next(drawn)
                params[part] = replanted(params[part], i, units, normal / (WITHIN_TWO * math.sqrt(normal.shape[-2])))
                for moment in moments:
                    moment[part] = replanted(moment[part], i, units, jnp.zeros_like(normal), scale=0.0)
                count += jnp.sum(units, dtype=count.dtype)
        changed = [with_mlps(net, found) for net, found in zip(nets, (params, *moments), strict=True)]
        return Weights(*(step.pack[role](net) for net in changed)), count
