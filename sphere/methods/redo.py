"""ReDo (Sokar 2023): from time to time, dormant hidden units are reset."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from sphere.errors import in_range
from sphere.methods.method import After, Method, Role, Step, Weights
from sphere.methods.units import Activity, activities, cut, mlps, reset_units, unit_shapes, with_mlps
from sphere.nets import MLP
from sphere.variants import Placement

WITHIN_TWO = 0.87962566103423978
"""Standard deviation of a normal variable cut at -2 and 2: a kernel is drawn as at the start, LeCun normal."""


def dormant(seen: Activity, layer: int, tau: float) -> Bool[Array, "experts width"]:
    """Score mean|h_i| / (layer mean of mean|h| + 1e-9) <= tau; never of an expert without samples."""
    mean = seen.mean[layer]  # by expert: what another one does says nothing about it
    score = mean / (jnp.mean(mean, axis=1, keepdims=True) + 1e-9)
    return (score <= tau) & seen.seen[:, None]


@dataclass(frozen=True)
class ReDo(Method):
    """Every `period` steps, units found dormant by the last minibatches are drawn again, their moments set to 0."""

    name: ClassVar[str] = "redo"
    label: ClassVar[str] = "ReDo"
    resets: ClassVar[bool] = True

    tau: float = 0.1
    """Largest score of a dormant unit: its activity against the mean of its layer."""
    period: int = 1000
    """Gradient steps from one time to the next."""
    window: int = 32
    """Minibatches up to that time by which activity is judged. In one alone an expert may have a sample or two, and of
    its units half are silent on any single sample."""
    placement: Placement = "both"

    def __post_init__(self) -> None:
        in_range(self, {}, "redo.")
        if self.period < 1 or self.window < 1:
            raise ValueError(f"redo: period={self.period}, window={self.window}; wanted 1 or more steps of each")

    def init(self, nets: dict[Role, Any], key: PRNGKeyArray) -> Any:
        def none(mlp: MLP) -> Activity:
            return Activity(tuple(map(jnp.zeros, unit_shapes(mlp))), jnp.zeros(mlp.head.kernel.shape[0]))

        return {role: {part: none(mlp) for part, mlp in mlps(nets[role]).items()} for role in self.placed(nets)}

    def after(self, own: Any, weights: dict[Role, Weights], step: Step) -> After:
        near = step.steps % self.period >= self.period - min(self.window, self.period)
        due = (step.steps + 1) % self.period == 0

        def reset(own: Any, weights: dict[Role, Weights]) -> tuple[Any, dict[Role, Weights], Float[Array, ""]]:
            changed, total = {}, jnp.zeros(())
            for i, role in enumerate(own):
                key = jax.random.fold_in(step.key, i)
                changed[role], count = self._reset(role, weights[role], own[role], step, key)
                total += count
            return jax.tree.map(jnp.zeros_like, own), changed, total

        def look(own: Any, weights: dict[Role, Weights]) -> tuple[Any, dict[Role, Weights], Float[Array, ""]]:
            now = {role: activities(step.trace[role], own[role]) for role in own}
            return jax.lax.cond(due, reset, nothing, jax.tree.map(jnp.add, own, now), weights)

        def nothing(own: Any, weights: dict[Role, Weights]) -> tuple[Any, dict[Role, Weights], Float[Array, ""]]:
            return own, weights, jnp.zeros(())

        mine = {role: weights[role] for role in own}
        own, changed, count = jax.lax.cond(near, look, nothing, own, mine)
        return After(own, {**weights, **changed}, count)

    def _reset(
        self, role: Role, weights: Weights, seen: dict[str, Activity], step: Step, key: PRNGKeyArray
    ) -> tuple[Weights, Float[Array, ""]]:
        nets = [step.unpack[role](tree) for tree in weights]
        params, *moments = (mlps(net) for net in nets)
        shapes = [layer.kernel.shape for mlp in params.values() for layer in mlp.hidden]
        drawn = cut(jax.random.truncated_normal(key, -2, 2, (sum(map(math.prod, shapes)),)), shapes)
        count = jnp.zeros(())
        for part in params:
            normals = [next(drawn) for _ in params[part].hidden]
            # from the last layer back: outgoing weights become 0 after the next layer's were drawn
            for i in reversed(range(len(normals))):
                units, normal = dormant(seen[part], i, self.tau), normals[i]
                params[part] = reset_units(params[part], i, units, normal / (WITHIN_TWO * math.sqrt(normal.shape[-2])))
                for moment in moments:
                    moment[part] = reset_units(moment[part], i, units, jnp.zeros_like(normal), scale=0.0)
                count += jnp.sum(units, dtype=count.dtype)
        changed = [with_mlps(net, found) for net, found in zip(nets, (params, *moments), strict=True)]
        return Weights(*(step.pack[role](net) for net in changed)), count
