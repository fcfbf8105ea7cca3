"""Methods that keep a network plastic, one file each; `sphere.registry` has them by name.

A method is a frozen value with its settings (`method.py` lists its hooks); docs/extending.md adds one.
"""

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
    "Parseval",
    "ReDo",
    "SpectralNorm",
    "SpectralReg",
    "Sphere",
]
