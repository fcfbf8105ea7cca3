"""SPHERE: the penalty of `sphere/variants.py`, with a weight that follows rho, by default by gradient norms."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sphere.coefficient import Penalised, penalised_value_and_grad
from sphere.methods.method import Look, Method, Role
from sphere.nets import NetConfig
from sphere.variants import ALL_EXPERTS, PenaltyConfig, terms


@dataclass(frozen=True)
class Sphere(PenaltyConfig, Method):
    """SPHERE. How strong it is, rho, is a number of each run of a fleet."""

    name: ClassVar[str] = "sphere"
    label: ClassVar[str] = "SPHERE"
    strength: ClassVar[str | None] = "rho"

    def check(self, nets: Mapping[Role, NetConfig]) -> None:
        super().check(nets)
        if self.floor is not None and not 0 < self.floor < 1:
            raise ValueError(
                f"sphere.floor={self.floor}; want a small number above 0 such as 1e-12, or None for the released one"
            )
        if self.variant == "layer-entropy" and self.coefficient == "loss-ratio":
            raise ValueError(
                "penalty variant 'layer-entropy' may be negative or zero, and the coefficient loss-ratio divides by "
                "it; use the coefficient gradient-norm or fixed"
            )
        if self.variant == "gate":
            for role in self.placed(nets):
                if nets[role].kind == "mlp":
                    raise ValueError(
                        f"penalty variant 'gate' needs a gate, and the {role} is a dense network, which has none; "
                        "use a mixture or another variant"
                    )

    def network(self, role: Role, config: NetConfig) -> NetConfig:
        if self.variant in ALL_EXPERTS:  # they need every expert's features
            return dataclasses.replace(config, compute="dense")
        return config

    def gradient(self, role: Role, function: Callable) -> Callable | None:
        if not self.acts_on(role):
            return None

        def both(params: Any) -> tuple[Any, Any, Any]:
            look: Look
            loss, look, aux = function(params)
            return loss, terms(self, look.net, look.obs, look.trace), aux

        felt = self.coefficient == "gradient-norm"
        balanced = penalised_value_and_grad(both, self.coefficient, self.floor, felt)
        strengths = self.strengths
        if strengths is None:
            return balanced

        def each(params: Any, rho: Any) -> tuple[Penalised, Any]:
            values, grad = balanced(params, tuple(rho * strength for strength in strengths))
            sums = {name: sum(getattr(values, name)) for name in ("penalty", "coefficient")}
            return values._replace(**sums, felt=sum(values.felt) if felt else None), grad

        return each
