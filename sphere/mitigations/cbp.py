"""CBP, continual backpropagation (Dohare 2024): after every step, hidden units of least use may begin anew."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, PRNGKeyArray

from sphere.mitigations.method import After, Method, Role, Step, Weights, placed
from sphere.mitigations.units import Activity, activity, mlps, replanted, with_mlps
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

    replacement_rate: float = 1e-4
    """Share of a layer's mature units that is replaced per step; below one unit, one is with that probability."""
    maturity: int = 10_000
    """Steps for which a new unit is safe."""
    decay: float = 0.99
    """Of the running mean of a unit's utility."""
    placement: Placement = "both"

    def __post_init__(self) -> None:
        if not (0 <= self.replacement_rate <= 1 and 0 <= self.decay < 1 and self.maturity >= 0):
            raise ValueError(
                f"cbp: replacement_rate={self.replacement_rate}, decay={self.decay}, maturity={self.maturity}; wanted "
                "a rate from 0 to 1, a decay from 0 to below 1, and no negative maturity"
            )

    def init(self, nets: dict[Role, Any], key: PRNGKeyArray) -> Any:
        def units(mlp: MLP) -> list[Units]:
            shapes = [layer.bias.shape for layer in mlp.hidden if layer.bias is not None]
            return [Units(jnp.zeros(shape), jnp.zeros(shape, jnp.int32)) for shape in shapes]

        return {role: {part: units(mlp) for part, mlp in mlps(nets[role]).items()} for role in placed(self.placement)}

    def after(self, own: Any, weights: dict[Role, Weights], step: Step) -> After:
        new: dict[str, Any] = {}
        weights = dict(weights)
        replaced = jnp.zeros(())
        for i, role in enumerate(own):
            net = step.unpack[role](weights[role].params)
            found, new[role] = mlps(net), {}
            for j, part in enumerate(own[role]):
                key = jax.random.fold_in(jax.random.fold_in(step.key, i), j)
                seen = activity(step.trace[role], part)
                found[part], new[role][part], count = self._tested(found[part], own[role][part], seen, key)
                replaced += count
            weights[role] = weights[role]._replace(params=step.pack[role](with_mlps(net, found)))
        return After(new, weights, replaced)

    def _tested(
        self, mlp: MLP, units: list[Units], seen: Activity, key: PRNGKeyArray
    ) -> tuple[MLP, list[Units], Float[Array, ""]]:
        """All layers are judged by the weights as they are, then units are replaced, layer by layer."""
        after, chosen = [], []
        for i, layer in enumerate((*mlp.hidden, mlp.head)[1:]):
            judged, keep = self._judged(units[i], layer.kernel, seen.mean[i], seen.seen, jax.random.fold_in(key, 2 * i))
            after.append(judged)
            chosen.append(keep)
        count = jnp.zeros(())
        for i, keep in enumerate(chosen):
            inner = mlp.hidden[i].kernel.shape[-2]
            bound = math.sqrt(3 / inner)
            shape = (keep.shape[0], inner, keep.shape[1])
            drawn = jax.random.uniform(jax.random.fold_in(key, 2 * i + 1), shape, minval=-bound, maxval=bound)
            fresh = jnp.einsum("eir,erw->eiw", drawn, keep.astype(drawn.dtype), precision="highest")
            mlp = replanted(mlp, i, jnp.any(keep, axis=1), fresh)
            count += jnp.sum(keep, dtype=count.dtype)
        return mlp, after, count

    def _judged(
        self,
        units: Units,
        outgoing: Float[Array, "experts width outer"],
        mean: Float[Array, "experts width"],
        seen: Bool[Array, " experts"],
        key: PRNGKeyArray,
    ) -> tuple[Units, Bool[Array, "experts most width"]]:
        """Utilities and ages after this step, and the units to replace: [experts, at most so many, width], one-hot.

        Each expert is a network of its own. For one without samples in the minibatch nothing is known, and its clock
        stands still: no utility, no age, no replacement.
        """
        experts, width = units.age.shape
        seen = seen[:, None]
        age = units.age + seen
        contribution = mean * jnp.mean(jnp.abs(outgoing), axis=-1)
        utility = jnp.where(seen, self.decay * units.utility + (1 - self.decay) * contribution, units.utility)
        corrected = utility / (1 - self.decay ** jnp.maximum(age, 1).astype(utility.dtype))
        eligible = (age > self.maturity) & seen
        expected = self.replacement_rate * jnp.sum(eligible, axis=1)
        lucky = jax.random.uniform(key, (experts,)) <= expected
        number = jnp.where(expected < 1, (lucky & (expected > 0)).astype(jnp.int32), expected.astype(jnp.int32))
        most = max(1, math.ceil(self.replacement_rate * width))
        worst = jax.lax.top_k(jnp.where(eligible, -corrected, -jnp.inf), most)[1]
        keep = jnp.arange(most)[None, :] < number[:, None]
        chosen = jax.nn.one_hot(worst, width, dtype=bool) & keep[:, :, None]
        new = jnp.any(chosen, axis=1)
        return Units(jnp.where(new, 0.0, utility), jnp.where(new, 0, age)), chosen
