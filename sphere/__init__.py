"""SPHERE: Mixture-of-Experts policies that stay plastic.

The names that others build on:

- `effective_rank(matrix)`: spectral-entropy effective rank
- `sphere_penalty(phi)`, `routed_penalty(features, experts, num_experts)`: the penalty on gate-weighted features
- `penalised_value_and_grad(losses)`: task gradient plus penalty gradient, weighted by rho
- `ntk.gram(net, x)`, `ntk.effective_rank(net, x)`, `ntk.slq_effective_rank(fn, params, x, key)`: spectral plasticity
- `nets`: MLPs and five kinds of MoE, as values
- `spectrum`: the paper's identities and bounds
- `envs.make("metaworld/hammer", num_envs=8, seed=0)`: the benchmarks' environments, as a gymnasium vector environment
- `torch`: penalty, coefficient, routing health and effective rank for PyTorch models
- `load("runs/first/rho0.1-seed0")`: a trained policy, without a simulator
- `register_method`, `register_suite`, `register_learner`, `register_preset`: your own, without a fork

They are imported when they are used: `import sphere` takes no time, and `sphere.torch` does not bring jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_MODULES = ("bounds", "diagnostics", "envs", "nets", "ntk", "penalty", "spectrum", "torch", "variants")
_NAMES = {
    "effective_rank": "sphere.spectrum",
    "penalised_value_and_grad": "sphere.coefficient",
    "routed_penalty": "sphere.penalty",
    "sphere_penalty": "sphere.penalty",
    "load": "sphere.saved",
    "register_learner": "sphere.registry",
    "register_method": "sphere.registry",
    "register_preset": "sphere.registry",
    "register_source": "sphere.registry",
    "register_suite": "sphere.registry",
}

__all__ = [
    "bounds",
    "diagnostics",
    "effective_rank",
    "envs",
    "load",
    "nets",
    "ntk",
    "penalised_value_and_grad",
    "penalty",
    "register_learner",
    "register_method",
    "register_preset",
    "register_source",
    "register_suite",
    "routed_penalty",
    "spectrum",
    "sphere_penalty",
    "variants",
]

if TYPE_CHECKING:
    from sphere import bounds, diagnostics, envs, nets, ntk, penalty, spectrum, variants
    from sphere.coefficient import penalised_value_and_grad
    from sphere.penalty import routed_penalty, sphere_penalty
    from sphere.registry import register_learner, register_method, register_preset, register_source, register_suite
    from sphere.saved import load
    from sphere.spectrum import effective_rank


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"sphere.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'sphere' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
