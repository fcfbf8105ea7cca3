"""Replays recorded updates of TD3 and TD3+BC: `sphere verify td3`, `sphere verify td3-bc`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sphere.algos.state import init_moments
from sphere.algos.td3 import TD3
from sphere.algos.td3_bc import TD3BC
from sphere.algos.td3_equations import Transition
from sphere.algos.td3_step import TD3State, minibatch
from sphere.cli.verify_update import Deviation, largest, read_arrays
from sphere.nets import MLP, DeterministicActor, NetConfig, TwinQ, build

TARGET, LOSS_TARGET = 2e-6, 1e-5
"""Of golden/README.md: parameters absolute; losses, which it gives none for, relative as PPO's value loss."""
SBX_CASES = ("plain", "layernorm")
CRITIC = "params/VmapContinuousCritic_0"

Names = dict[str, Any]
"""From the recording's names to the leaves of our networks."""


def _flax(mlp: MLP, prefix: str) -> Names:
    """Leaves of a network under flax's names."""
    named: Names = {}
    for i, layer in enumerate((*mlp.hidden, mlp.head)):
        named |= {f"{prefix}/Dense_{i}/kernel": layer.kernel, f"{prefix}/Dense_{i}/bias": layer.bias}
    norms = mlp.norms if isinstance(mlp.norms, tuple) else ()  # tree_at has a leaf in the place of an empty tuple
    for i, norm in enumerate(norms):
        named |= {f"{prefix}/LayerNorm_{i}/scale": norm.scale, f"{prefix}/LayerNorm_{i}/bias": norm.bias}
    return named


def sbx_names(net: Any) -> Names:
    if isinstance(net, DeterministicActor):
        return _flax(net.trunk, "params")  # type: ignore[arg-type]
    pairs = [_flax(trunk, CRITIC) for trunk in net.trunks.values()]
    return {name: [pair[name] for pair in pairs] for name in pairs[0]}


def torch_names(net: Any) -> Names:
    named: Names = {}
    layers = [layer for trunk in net.trunks.values() for layer in (*trunk.hidden, trunk.head)]
    for i, layer in enumerate(layers, 1):
        named |= {f"l{i}.weight": layer.kernel, f"l{i}.bias": layer.bias}
    return named


def _ours(name: str, array: np.ndarray, twins: bool) -> list[np.ndarray]:
    """A recorded array as ours: torch's kernels are [out, in], flax's twins are rows of one array."""
    if name.endswith(".weight"):
        return [array.T]
    return list(array) if twins else [array]


def fill(net: Any, names: Any, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
    """The network with the recording's numbers."""
    found: Names = names(net)

    def leaves(net: Any) -> list[Any]:
        return [leaf for value in names(net).values() for leaf in (value if isinstance(value, list) else [value])]

    new = [
        jnp.asarray(one)
        for name, value in found.items()
        for one in _ours(name, arrays[f"{prefix}/{name}"], isinstance(value, list))
    ]
    return eqx.tree_at(leaves, net, new)


def deviations(case: str, net: Any, names: Any, arrays: Mapping[str, np.ndarray], prefix: str) -> list[Deviation]:
    found = []
    for name, value in names(net).items():
        twins = isinstance(value, list)
        want = _ours(name, arrays[f"{prefix}/{name}"], twins)
        far = max(largest(np.asarray(a), b) for a, b in zip(value if twins else [value], want, strict=True))
        found.append(Deviation(case, f"{prefix}/{name}", far, TARGET))
    return found


def _start(config: TD3, obs: int, act: int, names: Any, arrays: Mapping[str, np.ndarray]) -> TD3State:
    key = jax.random.key(0)
    actor = DeterministicActor(build(config.actor, obs, act, key=key), (-1.0,) * act, (1.0,) * act)
    critic = TwinQ(lambda key: build(config.critic, obs + act, 1, key=key), key=key)
    nets = {"actor": actor, "critic": critic}
    before = {role: fill(net, names, arrays, f"{role}_before") for role, net in nets.items()}
    targets = {role: fill(net, names, arrays, f"{role}_target_before") for role, net in nets.items()}
    zero = jnp.zeros(())
    return TD3State(before, init_moments(before), {}, targets, zero, zero > 0)


def replay(arrays: Mapping[str, np.ndarray], case: str) -> list[Deviation]:
    """One case. Products in full float32: the references are."""
    bc = case == TD3BC.name
    names = torch_names if bc else sbx_names
    numbers = [float(number) for number in arrays["config"]]
    obs, act, width, n, updates = (int(number) for number in numbers[:5])
    norm = False if bc else bool(numbers[5])
    rate, gamma, tau, _, _, delay = numbers[5 + (not bc) : 11 + (not bc)]
    net = NetConfig(kind="mlp", width=width, depth=2)
    settings: dict[str, Any] = {
        "gamma": gamma,
        "tau": tau,
        "policy_delay": int(delay),
        "batch_size": n,
        "actor": net,
        "critic": NetConfig(kind="mlp", width=width, depth=2, layer_norm=norm),
        "methods": (),
    }
    config = TD3BC(**settings, alpha=numbers[11]) if bc else TD3(**settings)
    state = _start(config, obs, act, names, arrays)
    rates = {name: jnp.asarray(rate, jnp.float32) for name in ("learning_rate", "critic_learning_rate")}
    losses: dict[str, Any] = {}
    with jax.default_matmul_precision("highest"):
        step = jax.jit(lambda state, batch, noise, turn: minibatch(config, state, rates, batch, noise, turn))
        for i in range(updates):
            turn = (i + 1) % int(delay) == 0
            state, metrics = step(state, _batch(arrays, i, bc), jnp.asarray(arrays[f"batch{i}/noise"]), turn)
            losses |= {"critic_loss_last": metrics.critic_loss}
            losses |= {"critic_loss_first": metrics.critic_loss} if i == 0 else {}
            losses |= {"actor_loss_last": metrics.actor_loss} if turn else {}
    found = []
    for name, value in losses.items():
        if name in arrays:
            want = float(arrays[name])
            found.append(Deviation(case, name, abs(float(value) - want) / abs(want), LOSS_TARGET))
    for role in ("actor", "critic"):
        found += deviations(case, state.nets[role], names, arrays, f"{role}_after")
        found += deviations(case, state.targets[role], names, arrays, f"{role}_target_after")
    return found


def _batch(arrays: Mapping[str, np.ndarray], i: int, bc: bool) -> Transition:
    terminated = 1 - arrays[f"batch{i}/not_terminated"] if bc else arrays[f"batch{i}/terminated"]
    columns = {name: arrays[f"batch{i}/{name}"] for name in ("observations", "actions", "rewards", "next_observations")}
    obs, action, reward, following = (jnp.asarray(column) for column in columns.values())
    return Transition(obs, action, reward.reshape(-1), following, jnp.asarray(terminated).reshape(-1))


def is_td3(arrays: Mapping[str, np.ndarray]) -> bool:
    return any("critic_target_before/" in name for name in arrays)


def verify_td3(path: Path) -> list[Deviation]:
    """Every case of a file of recorded updates of TD3 or TD3+BC."""
    arrays = read_arrays(path)
    cases = {case: f"{case}/" for case in SBX_CASES if f"{case}/config" in arrays}
    cases |= {TD3BC.name: ""} if "config" in arrays else {}
    if not cases:
        raise ValueError(f"{path} holds no recorded updates of TD3 or TD3+BC; the format is that of golden/README.md")
    try:
        return [
            deviation
            for case, prefix in cases.items()
            for deviation in replay(
                {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}, case
            )
        ]
    except KeyError as error:
        raise ValueError(f"{path} lacks the array {error}; the format is that of golden/README.md") from error
