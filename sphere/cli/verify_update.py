"""Replays recorded references through this program and prints how far it is from them: `sphere verify update`."""

import dataclasses
import zipfile
import zlib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sphere.algos.ppo import PPO, PPOState, minibatch
from sphere.algos.ppo_equations import Minibatch
from sphere.algos.state import init_moments
from sphere.methods import Sphere
from sphere.nets import MLP, GaussianActor, NetConfig, Value, build
from sphere.storage.files import MOST_RECORD, open_regular

MODES: dict[str, Any] = {"grad": "gradient-norm", "loss": "loss-ratio", "none": None}
# Targets of golden/README.md: parameters absolute, value and SPHERE losses relative, policy losses absolute.
TARGETS = {"parameters": 2e-6, "value_loss": 1e-5, "sphere_loss": 1e-5, "policy_loss": 1e-6}


@dataclasses.dataclass(frozen=True)
class Deviation:
    case: str
    name: str
    found: float
    target: float

    @property
    def passed(self) -> bool:
        return bool(self.found <= self.target)  # NaN does not pass


def _layers(mlp: MLP) -> list:
    return [*mlp.hidden, mlp.head]


def _fill(mlp: MLP, arrays: dict[str, np.ndarray], prefix: str) -> MLP:
    def where(m: MLP) -> list:
        return [leaf for layer in _layers(m) for leaf in (layer.kernel, layer.bias)]

    names = [f"{prefix}/layer{i}/{leaf}" for i in range(len(_layers(mlp))) for leaf in ("kernel", "bias")]
    return eqx.tree_at(where, mlp, [jnp.asarray(arrays[name]) for name in names])


def _named(state: PPOState) -> dict[str, np.ndarray]:
    """The state's parameters under the file's names."""
    actor, critic = state.nets["actor"], state.nets["critic"]
    trunk: Any = actor.trunk
    parts = {"actor_after/experts": trunk.experts, "actor_after/gate": trunk.router.gate}
    named = {"actor_after/log_std": np.asarray(actor.log_std)}
    for prefix, mlp in (*parts.items(), ("critic_after", critic.trunk)):
        for index, layer in enumerate(_layers(mlp)):
            named[f"{prefix}/layer{index}/kernel"] = np.asarray(layer.kernel)
            named[f"{prefix}/layer{index}/bias"] = np.asarray(layer.bias)
    return named


def replay(arrays: dict[str, np.ndarray], case: str) -> list[Deviation]:
    """One case of a file in the format of golden/README.md. Products in full float32: the references are."""
    arrays = {key.removeprefix(case + "/"): value for key, value in arrays.items() if key.startswith(case + "/")}
    experts, top_k, width, obs, act, n, rho, _, updates = arrays["config"][:9]
    if "critic_before/layer0/kernel" not in arrays:
        raise KeyError(f"{case}/critic_before/layer0/kernel")
    mode = MODES[case]
    depth = sum(key.startswith("critic_before/layer") and key.endswith("kernel") for key in arrays) - 1
    config = PPO(
        num_envs=1,
        rollout_steps=int(n),
        batch_size=int(n),
        actor=NetConfig(kind="top-k", experts=int(experts), top_k=int(top_k), width=int(width), depth=depth),
        critic=NetConfig(kind="mlp", width=int(width), depth=depth),
        methods=() if mode is None else (Sphere(coefficient=mode),),
    )
    key = jax.random.key(0)
    trunk: Any = build(config.actor, int(obs), int(act), key=key)
    trunk = eqx.tree_at(lambda m: m.experts, trunk, _fill(trunk.experts, arrays, "actor_before/experts"))
    trunk = eqx.tree_at(lambda m: m.router.gate, trunk, _fill(trunk.router.gate, arrays, "actor_before/gate"))
    actor = eqx.tree_at(
        lambda a: a.log_std, GaussianActor(trunk, int(act)), jnp.asarray(arrays["actor_before/log_std"])
    )
    value: Any = build(config.critic, int(obs), 1, key=key)
    critic = Value(_fill(value, arrays, "critic_before"))
    nets = {"actor": actor, "critic": critic}
    rate = jnp.asarray(3e-4)
    state = PPOState(nets=nets, moments=init_moments(nets), methods={}, rate=rate)
    numbers = {"rho": jnp.asarray(rho, jnp.float32), "learning_rate": rate, "final_learning_rate": rate}
    with jax.default_matmul_precision("highest"):
        step = jax.jit(lambda state, batch: minibatch(config, state, numbers, rate, batch))
        mean = np.asarray(jax.jit(lambda a, x: a(x)[0].mean)(actor, jnp.asarray(arrays["batch0/observations"])))
        found = [Deviation(case, "mean_before", largest(mean, arrays["mean_before"]), TARGETS["parameters"])]
        for i in range(int(updates)):
            names = ("observations", "actions", "old_log_prob", "advantages", "returns")
            state, metrics = step(state, Minibatch(*(jnp.asarray(arrays[f"batch{i}/{name}"]) for name in names)))
            losses = {"policy_loss": metrics.policy_loss, "value_loss": config.value_coefficient * metrics.value_loss}
            if mode is not None:
                losses["sphere_loss"] = metrics.penalty
            for name, value in losses.items():
                want = float(arrays[f"batch{i}/{name}"])
                scale = 1.0 if name == "policy_loss" else max(abs(want), 1e-30)
                found.append(Deviation(case, f"batch{i}/{name}", abs(float(value) - want) / scale, TARGETS[name]))
    for name, value in _named(state).items():
        found.append(Deviation(case, name, largest(value, arrays[name]), TARGETS["parameters"]))
    return found


def largest(found: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs(found - want))) if found.shape == want.shape else float("inf")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Of an .npz; nothing in it is ever unpickled."""
    try:
        with open_regular(path, MOST_RECORD) as stream, zipfile.ZipFile(stream) as archive:
            return {
                name.removesuffix(".npy"): np.lib.format.read_array(archive.open(name), allow_pickle=False)
                for name in archive.namelist()
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .npz of recorded updates: {error}") from error


def verify_update(path: Path) -> list[Deviation]:
    """Every case of a file of recorded PPO updates."""
    arrays = read_arrays(path)
    cases = sorted({key.split("/")[0] for key in arrays if key.endswith("/config")})
    strange = [case for case in cases if case not in MODES]
    if not cases or strange:
        raise ValueError(f"{path} holds the cases {cases or 'none'}, wanted some of {', '.join(MODES)}")
    try:
        return [deviation for case in cases for deviation in replay(arrays, case)]
    except KeyError as error:
        raise ValueError(f"{path} lacks the array {error}; the format is that of golden/README.md") from error
