"""SPHERE: Mixture-of-Experts policies that stay plastic.

The names that others build on:

- `effective_rank(matrix)`: spectral-entropy effective rank
- `sphere_penalty(phi)`, `routed_penalty(features, experts, num_experts)`: the penalty on gate-weighted features
- `penalised_value_and_grad(function)`: task gradient plus penalty gradient, weighted by rho
- `ntk.gram(net, x)`, `ntk.effective_rank(net, x)`, `ntk.slq_effective_rank(fn, params, x, key)`: spectral plasticity
- `nets`: MLPs and five kinds of MoE, as values
- `spectrum`: the paper's identities and bounds
- `envs`: environments by name, `envs.make("metaworld/hammer", num_envs=8)`
- `torch`: the same for PyTorch

A name is imported when it is first used: environments and `sphere.torch` need no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphere import nets, ntk, spectrum
    from sphere.penalty import penalised_value_and_grad, routed_penalty, sphere_penalty
    from sphere.spectrum import effective_rank

__version__ = "0.1.0"

__all__ = [
    "effective_rank",
    "nets",
    "ntk",
    "penalised_value_and_grad",
    "routed_penalty",
    "spectrum",
    "sphere_penalty",
]

_MODULES = ("envs", "nets", "ntk", "spectrum", "torch")
_FUNCTIONS = {
    "effective_rank": "sphere.spectrum",
    "penalised_value_and_grad": "sphere.penalty",
    "routed_penalty": "sphere.penalty",
    "sphere_penalty": "sphere.penalty",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"sphere.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'sphere' has no attribute {name!r}")
