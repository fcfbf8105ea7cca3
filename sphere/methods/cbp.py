"""CBP, continual backpropagation (Dohare 2024): after every step, the least useful hidden units may be reset."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, PRNGKeyArray

from sphere.errors import in_range
from sphere.methods.method import After, Method, Role, Step, Weights
from sphere.methods.units import Activity, activities, cut, mlps, reset_units, unit_shapes, with_mlps
from sphere.nets import MLP
from sphere.variants import Placement


class Units(NamedTuple):
    """Of the units of one hidden layer."""

    utility: Float[Array, "experts width"]
    """Running mean, before it is corrected for its start at 0."""
    age: Integer[Array, "experts width"]
    """Steps with evidence since the unit began."""


@dataclass(frozen=True)
class CBP(Method):
    """The least useful mature units of every hidden layer get new incoming weights, a few at a time."""

    name: ClassVar[str] = "cbp"
    label: ClassVar[str] = "CBP"
    resets: ClassVar[bool] = True

    replacement_rate: float = 1e-4
    """Share of a layer's mature units that is replaced per step; below one unit, one is with that probability."""
    maturity: int = 10_000
    """Steps for which a new unit is safe."""
    decay: float = 0.99
    """Of the running mean of a unit's utility."""
    placement: Placement = "both"

    def __post_init__(self) -> None:
        in_range(self, {}, "cbp.")
        if not (0 <= self.replacement_rate <= 1 and 0 <= self.decay < 1 and self.maturity >= 0):
            raise ValueError(
                f"cbp: replacement_rate={self.replacement_rate}, decay={self.decay}, maturity={self.maturity}; wanted "
                "a rate from 0 to 1, a decay from 0 to below 1, and no negative maturity"
            )

    def init(self, nets: dict[Role, Any], key: PRNGKeyArray) -> Any:
        def units(mlp: MLP) -> list[Units]:
            return [Units(jnp.zeros(shape), jnp.zeros(shape, jnp.int32)) for shape in unit_shapes(mlp)]

        return {role: {part: units(mlp) for part, mlp in mlps(nets[role]).items()} for role in self.placed(nets)}

    def after(self, own: Any, weights: dict[Role, Weights], step: Step) -> After:
        nets = {role: step.unpack[role](weights[role].params) for role in own}
        found = {role: mlps(net) for role, net in nets.items()}
        shapes = [shape for parts in found.values() for mlp in parts.values() for shape in self._draws(mlp)]
        # all random numbers of the step at once: on a GPU each draw is several kernels
        drawn = cut(jax.random.uniform(step.key, (sum(map(math.prod, shapes)),)), shapes)
        new: dict[Role, Any] = {role: {} for role in own}
        weights, replaced = dict(weights), jnp.zeros(())
        for role, parts in found.items():
            for part in parts:
                seen = activities(step.trace[role], [part])[part]
                parts[part], new[role][part], count = self._tested(parts[part], own[role][part], seen, drawn)
                replaced += count
            weights[role] = weights[role]._replace(params=step.pack[role](with_mlps(nets[role], parts)))
        return After(new, weights, replaced)

    def _most(self, width: int) -> int:
        """Units of a layer that one step may replace."""
        return max(1, math.ceil(self.replacement_rate * width))

    def _draws(self, mlp: MLP) -> list[tuple[int, ...]]:
        """Shapes of a step's random numbers: for every layer, whether to replace, and new incoming weights."""
        shapes: list[tuple[int, ...]] = []
        for layer in mlp.hidden:
            experts, inner, width = layer.kernel.shape
            shapes += [(experts,), (experts, inner, self._most(width))]
        return shapes

    def _tested(
        self, mlp: MLP, units: list[Units], seen: Activity, drawn: Iterator[Array]
    ) -> tuple[MLP, list[Units], Float[Array, ""]]:
        """All layers are judged by the weights as they are, then units are replaced, layer by layer."""
        after, chosen, fresh = [], [], []
        for i, layer in enumerate((*mlp.hidden, mlp.head)[1:]):
            judged, keep = self._judged(units[i], layer.kernel, seen.mean[i], seen.seen, next(drawn))
            bound = math.sqrt(3 / mlp.hidden[i].kernel.shape[-2])
            incoming = bound * (2 * next(drawn) - 1)  # [experts, inner, most]
            after.append(judged)
            chosen.append(jnp.any(keep, axis=1))
            fresh.append(jnp.einsum("eir,erw->eiw", incoming, keep.astype(incoming.dtype), precision="highest"))
        for i, (new, kernel) in enumerate(zip(chosen, fresh, strict=True)):
            mlp = reset_units(mlp, i, new, kernel)
        return mlp, after, sum((jnp.sum(new, dtype=jnp.float32) for new in chosen), start=jnp.zeros(()))

    def _judged(
        self,
        units: Units,
        outgoing: Float[Array, "experts width outer"],
        mean: Float[Array, "experts width"],
        seen: Bool[Array, " experts"],
        chance: Float[Array, " experts"],
    ) -> tuple[Units, Bool[Array, "experts most width"]]:
        """Utilities and ages after this step, and the units to replace: [experts, at most so many, width], one-hot.

        Each expert is a network of its own. For one without samples in the minibatch nothing is known, and its clock
        stands still: no utility, no age, no replacement.
        """
        width = units.age.shape[1]
        seen = seen[:, None]
        age = units.age + seen
        contribution = mean * jnp.mean(jnp.abs(outgoing), axis=-1)
        utility = jnp.where(seen, self.decay * units.utility + (1 - self.decay) * contribution, units.utility)
        corrected = utility / (1 - self.decay ** jnp.maximum(age, 1).astype(utility.dtype))
        eligible = (age > self.maturity) & seen
        expected = self.replacement_rate * jnp.sum(eligible, axis=1)
        number = jnp.where(expected < 1, (chance < expected).astype(jnp.int32), expected.astype(jnp.int32))
        most = self._most(width)
        worst = jax.lax.top_k(jnp.where(eligible, -corrected, -jnp.inf), most)[1]
        keep = jnp.arange(most)[None, :] < number[:, None]
        chosen = jax.nn.one_hot(worst, width, dtype=bool) & keep[:, :, None]
        new = jnp.any(chosen, axis=1)
        return Units(jnp.where(new, 0.0, utility), jnp.where(new, 0, age)), chosen
