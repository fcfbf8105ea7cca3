"""An actor as worker processes know it: plain arrays by name, and what they do not say (`sphere.envs.policy`)."""

from typing import Any

import jax
import numpy as np

from sphere.envs.policy import Spec
from sphere.nets import EncoderTrunk, Explorer, GaussianActor
from sphere.nets.mlp import MLP, Linear
from sphere.nets.moe import MoE
from sphere.nets.routers import DeepSeek, Soft, TopK


def spec(actor: GaussianActor | Explorer) -> Spec | None:
    """None: workers cannot act by themselves, because an action depends on more than its own state (expert choice), or
    the network reads images, for which a CPU is too slow."""
    found = _spec(actor.trunk)
    return found if found is None else found._replace(squash=isinstance(actor, Explorer))


def _spec(trunk: Any) -> Spec | None:
    if isinstance(trunk, EncoderTrunk):
        return None
    if isinstance(trunk, MLP):
        return Spec("none", trunk.activation)
    router, activation = trunk.router, trunk.experts.activation
    if isinstance(router, TopK):
        return Spec("top-k", activation, top_k=router.top_k)
    if isinstance(router, DeepSeek):
        return Spec("deepseek", activation, top_k=router.top_k, shared=router.shared)
    if isinstance(router, Soft):
        return Spec("soft", activation, tokens=router.tokens)
    return None


def arrays(actor: GaussianActor | Explorer) -> dict[str, np.ndarray]:
    """The parameters of a fleet's actors, all with a leading run axis, on the host."""
    trunk: Any = actor.trunk
    if isinstance(trunk, MLP):  # a single network is a mixture of one
        named = {name: array[:, None] for name, array in _mlp("experts", trunk).items()}
    else:
        named = _mlp("experts", trunk.experts) | _router(trunk)
    if isinstance(actor, Explorer):
        runs = len(actor.deviation)
        named |= {name: np.tile(getattr(actor.actor, name), (runs, 1)) for name in ("centre", "half")}
    return {name: np.asarray(array) for name, array in jax.device_get(named).items()}


def _router(trunk: MoE) -> dict[str, Any]:
    router = trunk.router
    named = {"temperature": router.temperature}
    if isinstance(router, Soft):
        return named | _linear("gate/0", router.tokenise) | {"slots": router.slots.kernel}
    return named | _mlp("gate", router.gate)


def _mlp(name: str, mlp: Any) -> dict[str, Any]:
    named = _linear(f"{name}/{len(mlp.hidden)}", mlp.head)
    for i, layer in enumerate(mlp.hidden):
        named |= _linear(f"{name}/{i}", layer)
    for i, norm in enumerate(mlp.norms):
        named |= {f"{name}/{i}/scale": norm.scale, f"{name}/{i}/shift": norm.bias}
    return named


def _linear(name: str, layer: Linear) -> dict[str, Any]:
    return {f"{name}/kernel": layer.kernel} | ({} if layer.bias is None else {f"{name}/bias": layer.bias})
