"""SPHERE: Mixture-of-Experts policies that stay plastic.

The names that others build on:

- `effective_rank(matrix)`: spectral-entropy effective rank
- `sphere_penalty(phi)`, `routed_penalty(features, experts, num_experts)`: the penalty on gate-weighted features
- `penalised_value_and_grad(losses)`: task gradient plus penalty gradient, weighted by rho
- `ntk.gram(net, x)`, `ntk.effective_rank(net, x)`, `ntk.slq_effective_rank(fn, params, x, key)`: spectral plasticity
- `nets`: MLPs and five kinds of MoE, as values
- `spectrum`: the paper's identities and bounds
"""

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
