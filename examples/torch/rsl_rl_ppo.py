"""rsl_rl with a Top-K actor and the SPHERE penalty, by class names in its configuration:

actor:     class_name: rsl_rl_ppo:TopKModel, experts: 10, top_k: 2, distribution_cfg: {class_name: GaussianDistribution}
algorithm: class_name: rsl_rl_ppo:SpherePPO, rho: 0.1

with this file's folder on PYTHONPATH. Everything else stays as in `MLPModel` and `PPO`.
"""

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel

from sphere.torch import TopK, attach, routing_health


class TopKModel(MLPModel):
    """An actor whose network is a Top-K mixture."""

    def __init__(self, *args, experts=10, top_k=2, width=256, depth=3, **kwargs):
        super().__init__(*args, **kwargs)
        outputs = self.distribution.input_dim if self.distribution is not None else args[3]
        self.mlp = TopK(self._get_latent_dim(), outputs, experts, top_k, width, depth)


class SpherePPO(PPO):
    """PPO whose update adds the penalty before it clips, and reports it with its losses."""

    def __init__(self, actor, *args, rho=0.1, floor=None, **kwargs):
        super().__init__(actor, *args, **kwargs)
        # several GPUs: rsl_rl averages gradients itself, after each has added its own penalty
        self.attached = attach(actor.mlp, rho, floor=floor, ddp=False)

    def update(self):
        states = self.storage.observations.flatten(0, 1)[:2048]
        losses = super().update()
        with torch.no_grad():
            self.actor(states)
        losses |= routing_health(*self.actor.mlp.mixture).numbers("sphere/")
        return losses | {"sphere/penalty": self.attached.penalty, "sphere/felt_ratio": self.attached.felt}
