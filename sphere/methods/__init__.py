"""Methods that keep a network plastic, one file each, and the registry that gives each its name.

SPHERE's settings are `PPOConfig.penalty`; all others stand here. A method is added by its file and one line of
`Mitigations` (docs/extending.md).
"""

import dataclasses
from dataclasses import dataclass

from sphere.methods.c_chain import CChain
from sphere.methods.cbp import CBP
from sphere.methods.layernorm import LayerNorm
from sphere.methods.load_balance import LoadBalance
from sphere.methods.method import Method
from sphere.methods.parseval import Parseval
from sphere.methods.redo import ReDo
from sphere.methods.spectral_norm import SpectralNorm
from sphere.methods.spectral_reg import SpectralReg
from sphere.methods.sphere import Sphere

__all__ = [
    "CBP",
    "CChain",
    "LayerNorm",
    "LoadBalance",
    "Method",
    "Mitigations",
    "Parseval",
    "ReDo",
    "SpectralNorm",
    "SpectralReg",
    "Sphere",
]


@dataclass(frozen=True)
class Mitigations:
    """The methods of a program beside SPHERE, each with its settings; None: not used."""

    layernorm: LayerNorm | None = None
    spectral_norm: SpectralNorm | None = None
    c_chain: CChain | None = None
    cbp: CBP | None = None
    parseval: Parseval | None = None
    redo: ReDo | None = None
    spectral_reg: SpectralReg | None = None
    load_balance: LoadBalance | None = None

    def chosen(self) -> tuple[Method, ...]:
        every = (getattr(self, field.name) for field in dataclasses.fields(self))
        return tuple(method for method in every if method is not None)
