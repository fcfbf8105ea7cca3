"""How far GPU physics is from the benchmark's: `python -m benchmarks.gpu_physics [--tasks stand walk]`.

From every recorded state of H1 one action, that is ten physics steps, by MuJoCo Warp, by this version's MuJoCo on the
CPU, and as it was recorded under MuJoCo 3.3.0. Quantiles over states of the largest deviation of a state's positions
(qpos) and velocities (qvel). The last column is the floor: what the CPU of this version makes of the same start. Needs
`pip install 'sphere-rl[warp]'`; without an NVIDIA GPU Warp runs on the CPU, after minutes of compiling.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from sphere.cli.verify import GOLDEN
from sphere.envs import humanoidbench_mjx as h1_mjx
from sphere.envs.humanoidbench import FRAME_SKIP, TASKS, control_range, model_of, simulator
from sphere.envs.humanoidbench_verify import load
from sphere.errors import UserError

QUANTILES = (0.5, 0.9, 0.99, 1.0)


def recorded(task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """State, action and the state after it, of every recorded step."""
    arrays = load(GOLDEN / "h1_traces.npz")
    episodes = sorted({name.split("/")[1] for name in arrays if name.startswith(f"{task}/") and name.count("/") == 2})
    obs = [arrays[f"{task}/{episode}/obs"].astype(np.float64) for episode in episodes]
    actions = np.concatenate([arrays[f"{task}/{episode}/actions"] for episode in episodes])
    return np.concatenate([one[:-1] for one in obs]), actions, np.concatenate([one[1:] for one in obs])


def on_cpu(model: Any, states: np.ndarray, control: np.ndarray) -> np.ndarray:
    mujoco = simulator()
    data, found = mujoco.MjData(model), []
    for state, own in zip(states, control, strict=True):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = state[: model.nq], state[model.nq :], own
        mujoco.mj_step(model, data, FRAME_SKIP)
        found.append(np.concatenate([data.qpos, data.qvel]))
    return np.stack(found)


def by_warp(model: Any, states: np.ndarray, control: np.ndarray, device: str, actions: int = 1) -> np.ndarray:
    import warp
    from mujoco.mjx.third_party import mujoco_warp

    mujoco = simulator()
    with warp.ScopedDevice(device):
        there = mujoco_warp.put_model(model)
        count = len(states)
        data = mujoco_warp.put_data(
            model, mujoco.MjData(model), nworld=count, nconmax=h1_mjx.CONTACTS, njmax=h1_mjx.CONSTRAINTS
        )
        parts = {"qpos": states[:, : model.nq], "qvel": states[:, model.nq :], "ctrl": control}
        for name, values in parts.items():
            getattr(data, name).assign(np.ascontiguousarray(values, np.float32))
        for _ in range(actions * FRAME_SKIP):
            mujoco_warp.step(there, data)
        return np.concatenate([data.qpos.numpy(), data.qvel.numpy()], axis=1).astype(np.float64)


def compared(task: str, device: str, most: int) -> None:
    model = h1_mjx.prepared(model_of(task))
    states, actions, after = (rows[:most] for rows in recorded(task))
    low, size = control_range(model)
    control = (actions.astype(np.float32) + 1) / 2 * size + low
    cpu, gpu = on_cpu(model, states, control), by_warp(model, states, control, device)
    pairs = (("Warp, this CPU", gpu, cpu), ("Warp, 3.3.0", gpu, after), ("this CPU, 3.3.0", cpu, after))
    for name, one, other in pairs:
        apart = np.abs(one - other)
        columns = [
            *np.quantile(apart[:, : model.nq].max(axis=1), QUANTILES),
            *np.quantile(apart[:, model.nq :].max(axis=1), QUANTILES),
        ]
        print(f"{task:<6} {len(states):>5} {name:<16}" + "".join(f" {value:>8.1e}" for value in columns), flush=True)


def twice(task: str, device: str, most: int, actions: int = 20) -> None:
    """Several actions from the same states, in two goes: equal bits, or how far apart."""
    model = h1_mjx.prepared(model_of(task))
    states, given, _ = (rows[:most] for rows in recorded(task))
    low, size = control_range(model)
    control = (given.astype(np.float32) + 1) / 2 * size + low
    one, two = (by_warp(model, states, control, device, actions) for _ in range(2))
    apart = np.abs(one - two)
    same = (apart == 0).all(axis=1).mean()
    print(
        f"{task:<6} {len(states):>5} {actions} actions twice: {same:.1%} equal, largest {apart.max():.1e}", flush=True
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--states", type=int, default=10**9, help="at most so many of a task; default: all")
    parser.add_argument("--device", help="Warp's name of it; default: cuda:0, without one cpu")
    parser.add_argument("--twice", action="store_true", help="instead: are twenty actions the same bits every time?")
    options = parser.parse_args(arguments)
    try:
        h1_mjx.check_installed()
    except UserError as error:
        parser.error(str(error))
    import warp

    device = options.device or ("cuda:0" if warp.is_cuda_available() else "cpu")
    where = warp.get_device(device).name
    print(f"mujoco {simulator().__version__}, warp {warp.__version__} on {where}")
    if options.twice:
        for task in options.tasks:
            twice(task, device, options.states)
        return
    head = "".join(f" {f'{name} {q:.0%}':>8}" for name in ("qpos", "qvel") for q in QUANTILES)
    print(f"{'task':<6} {'steps':>5} {'between':<16}{head}")
    for task in options.tasks:
        compared(task, device, options.states)


if __name__ == "__main__":
    main()
