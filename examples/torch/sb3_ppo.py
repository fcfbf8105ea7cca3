"""Stable-Baselines3's PPO, unchanged, with a Top-K actor and the SPHERE penalty: python examples/torch/sb3_ppo.py"""

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy

import sphere
from sphere.torch import TopK, attach, routing_health


class TopKPolicy(ActorCriticPolicy):
    """The usual policy, its actor a mixture; `policy_kwargs={"mixture": {"experts": 10, "top_k": 2}}` sets it."""

    def __init__(self, *args, mixture=None, **kwargs):
        self.mixture = mixture or {}
        super().__init__(*args, **kwargs)

    def _build_mlp_extractor(self):
        super()._build_mlp_extractor()
        self.mlp_extractor.policy_net = TopK(self.features_dim, self.mlp_extractor.latent_dim_pi, **self.mixture)


class SphereCallback(BaseCallback):
    """Adds the penalty while `learn` runs and logs sphere/* beside SB3's own numbers."""

    def __init__(self, rho=0.1, floor=None):
        super().__init__()
        self.rho, self.floor = rho, floor

    def _on_training_start(self):
        self.net = self.model.policy.mlp_extractor.policy_net
        self.attached = attach(self.net, self.rho, floor=self.floor)

    def _on_rollout_end(self):
        states = torch.as_tensor(self.model.rollout_buffer.observations, device=self.model.device).flatten(0, 1)
        with torch.no_grad():
            self.model.policy.get_distribution(states[:2048])
        for name, value in routing_health(*self.net.mixture).numbers("sphere/").items():
            self.logger.record(name, value)
        self.logger.record("sphere/penalty", self.attached.penalty)
        self.logger.record("sphere/felt_ratio", self.attached.felt)

    def _on_step(self):
        return True

    def _on_training_end(self):
        self.attached.remove()


def main(task="metaworld/faucet-close", steps=100_000, rho=0.1, **settings):
    with sphere.envs.sb3(sphere.envs.make(task, num_envs=8, seed=0)) as envs:
        model = PPO(TopKPolicy, envs, seed=0, device="cpu", verbose=1, **settings)
        return model.learn(steps, callback=SphereCallback(rho))


if __name__ == "__main__":
    main(*sys.argv[1:2])
