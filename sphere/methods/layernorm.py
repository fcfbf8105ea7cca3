"""LayerNorm after each hidden linear layer and before the activation, in experts and gate."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from sphere.methods.method import Method, Role
from sphere.nets import NetConfig
from sphere.variants import Placement


@dataclass(frozen=True)
class LayerNorm(Method):
    """LayerNorm in the hidden layers, of the actor in the paper."""

    name: ClassVar[str] = "layernorm"
    label: ClassVar[str] = "LN"

    placement: Placement = "actor"

    def network(self, role: Role, config: NetConfig) -> NetConfig:
        return dataclasses.replace(config, layer_norm=True) if self.acts_on(role) else config
