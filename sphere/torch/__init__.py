"""SPHERE for PyTorch: the penalty, its strength, routing health and spectral plasticity for models that people train.

Nothing here imports jax. Values and gradients are those of the JAX functions of the same name.

- `sphere_penalty(phi)`, `routed_penalty(features, experts, num_experts)`: the penalty on gate-weighted features;
  `gram`, `routed_gram`, `anisotropy`, `scale_free`: what it is made of
- `penalised_backward(loss, penalty, params, rho)`: `loss.backward()` with the penalty's gradient added
- `attach(module_or_params, rho)`: the same in a training loop that one does not own
- `capture(model)`: expert features of Hugging Face mixtures
- `effective_rank(matrix)`, `ntk_effective_rank(module, x)`, `ntk_gram`
- `routing_health(features, experts, num_experts)`
- `TopK`: a mixture for policies
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("sphere.torch needs PyTorch: pip install 'sphere-rl[torch]'", name="torch") from error

from sphere.torch.backward import Penalised, penalised_backward
from sphere.torch.health import RoutingHealth, routing_health
from sphere.torch.hooks import Attached, attach
from sphere.torch.huggingface import Captured, capture
from sphere.torch.moe import TopK
from sphere.torch.ntk import Estimate, ntk_effective_rank, ntk_gram
from sphere.torch.penalty import (
    Gram,
    Mixture,
    anisotropy,
    gram,
    routed_gram,
    routed_penalty,
    scale_free,
    sphere_penalty,
)
from sphere.torch.spectrum import effective_rank, effective_rank_spsd

__all__ = [
    "Attached",
    "Captured",
    "Estimate",
    "Gram",
    "Mixture",
    "Penalised",
    "RoutingHealth",
    "TopK",
    "anisotropy",
    "attach",
    "capture",
    "effective_rank",
    "effective_rank_spsd",
    "gram",
    "ntk_effective_rank",
    "ntk_gram",
    "penalised_backward",
    "routed_gram",
    "routed_penalty",
    "routing_health",
    "scale_free",
    "sphere_penalty",
]
