"""LayerNorm after each hidden linear layer and before the activation, in experts and gate (of the actor in the paper)."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from sphere.methods.method import Method, Role, placed
from sphere.nets import NetConfig
from sphere.variants import Placement


@dataclass(frozen=True)
class LayerNorm(Method):
    """LayerNorm in the hidden layers."""

    name: ClassVar[str] = "layernorm"

    placement: Placement = "actor"

    def network(self, role: Role, config: NetConfig) -> NetConfig:
        return dataclasses.replace(config, layer_norm=True) if role in placed(self.placement) else config
