"""Every file of examples/torch with the real library: it runs, the penalty is felt as rho says, and features gain rank.

The gain is a direction seen on toy problems, not a claim: rho 0.1, the paper's, against 0, mean over three seeds, on
states that were not trained on. Not so for any rho: at 1.0 features may shrink to nothing (numbers: docs/pytorch.md).
"""

import importlib
import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long

import sphere
import sphere.torch as st
from sphere.torch import coefficient as strengths

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "torch"
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the libraries' own
    pytest.mark.usefixtures("new_garbage_alone"),  # accelerate collects garbage at every step of its life
]


@pytest.fixture
def example(monkeypatch):
    """The module of an example, as one that is found by its name; skipped where its library is not installed."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(strengths, "_warned", False)

    def load(name, library):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip(library, reason=f"needs {library}")
            return importlib.import_module(name)

    return load


RHO, SEEDS = 0.1, (0, 1, 2)


def gains(rank):
    """Whether rank(rho, seed) is higher with the penalty than without, on average."""
    means = [np.mean([rank(rho, seed) for seed in SEEDS]) for rho in (0.0, RHO)]
    return means[1] > means[0]


def held_out(*shape):
    return torch.randn(512, *shape, generator=torch.Generator().manual_seed(999))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_has_at_most_sixty_lines(path):
    assert len(path.read_text().splitlines()) <= 60


def test_stable_baselines3(example, tmp_path):
    module = example("sb3_ppo", "stable_baselines3")
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import configure

    def rank(rho, seed):
        folder = tmp_path / f"{rho}-{seed}"
        with sphere.envs.sb3(sphere.envs.make(PROBE, num_envs=4, seed=seed, workers=0)) as envs:
            mixture = {"experts": 4, "width": 16, "depth": 2}
            settings = {"n_steps": 32, "batch_size": 32, "learning_rate": 1e-3, "seed": seed, "device": "cpu"}
            model = PPO(module.TopKPolicy, envs, policy_kwargs={"mixture": mixture}, **settings)
            model.set_logger(configure(str(folder), ["json"]))
            model.learn(5 * 128, callback=module.SphereCallback(rho, floor=1e-12))
            states = held_out(*envs.observation_space.shape)
        last = json.loads((folder / "progress.json").read_text().splitlines()[-1])
        assert {"train/loss", "sphere/routing_entropy", "sphere/feature_rank"} <= last.keys()
        if rho:
            assert last["sphere/felt_ratio"] == pytest.approx(rho, rel=1e-3)
        with torch.no_grad():
            model.policy.get_distribution(states)
        mixture = model.policy.mlp_extractor.policy_net.mixture
        model.save(tmp_path / "model")  # its policy can be copied and saved
        PPO.load(tmp_path / "model")
        return st.routing_health(*mixture).feature_rank

    assert gains(rank)


PROBE = f"probe/{sphere.envs.tasks('probe')[-1]}"


def test_stable_baselines3_example_runs(example, capsys):
    module = example("sb3_ppo", "stable_baselines3")
    module.main(PROBE, 128, n_steps=16, batch_size=32, policy_kwargs={"mixture": {"experts": 4, "width": 8}})
    assert "feature_rank" in capsys.readouterr().out


def rsl_rl_environment(seed):
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    class Reach(VecEnv):
        """The action is to be the observation."""

        num_envs, num_actions, max_episode_length, device, cfg = 16, 2, 8, "cpu", {}

        def __init__(self):
            self.episode_length_buf = torch.zeros(16, dtype=torch.long)
            self.generator = torch.Generator().manual_seed(seed)
            self.state = torch.randn(16, 6, generator=self.generator)

        def get_observations(self):
            return TensorDict({"policy": self.state}, batch_size=[16])

        def step(self, actions):
            reward = -(actions - self.state[:, :2]).square().sum(dim=1)
            self.state = torch.randn(16, 6, generator=self.generator)
            self.episode_length_buf = (self.episode_length_buf + 1) % 8
            done = self.episode_length_buf == 0
            return self.get_observations(), reward, done, {"time_outs": done}

    return Reach()


def test_rsl_rl(example):
    example("rsl_rl_ppo", "rsl_rl")
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    def rank(rho, seed):
        torch.manual_seed(seed)
        gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0}
        mixture = {"experts": 4, "width": 16, "depth": 2, "distribution_cfg": gaussian}
        settings = {
            "num_steps_per_env": 8,
            "save_interval": 100,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "actor": {"class_name": "rsl_rl_ppo:TopKModel", **mixture},
            "critic": {"class_name": "MLPModel", "hidden_dims": [16]},
            "algorithm": {"class_name": "rsl_rl_ppo:SpherePPO", "rho": rho, "floor": 1e-12},
        }
        runner = OnPolicyRunner(rsl_rl_environment(seed), settings, device="cpu")
        runner.learn(4)
        if rho:
            assert runner.alg.attached.felt == pytest.approx(rho, rel=1e-3)
        with torch.no_grad():
            runner.alg.actor(TensorDict({"policy": held_out(6)}, batch_size=[512]))
        return st.routing_health(*runner.alg.actor.mlp.mixture).feature_rank

    assert gains(rank)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning(example, accumulate):
    module = example("lightning_callback", "lightning")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    settings = {**quiet, "enable_model_summary": False, "accelerator": "cpu", "accumulate_grad_batches": accumulate}

    def rank(rho, seed):
        model, trainer, _ = module.main(rho, 5, seed, **settings)
        assert "sphere/routing_entropy" in trainer.callback_metrics
        if rho:
            assert float(trainer.callback_metrics["sphere/felt_ratio"]) == pytest.approx(rho, rel=1e-3)
        with torch.no_grad():
            model.mixture(held_out(4))
        return st.routing_health(*model.mixture.mixture).feature_rank

    assert gains(rank)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_transformers_trainer(example, accumulate):
    module = example("trainer_mixin", "transformers")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    tokens = torch.randint(0, 64, (16, 16), generator=torch.Generator().manual_seed(999))

    def rank(rho, seed):
        trainer = module.main(rho, 12, seed, gradient_accumulation_steps=accumulate)
        if rho:
            assert trainer.state.log_history[-1]["sphere/felt_ratio"] == pytest.approx(rho, rel=1e-3)
        with torch.no_grad():
            trainer.model(input_ids=tokens)
        return np.mean([st.routing_health(*mixture).feature_rank for mixture in trainer.captured.mixtures.values()])

    assert gains(rank)
