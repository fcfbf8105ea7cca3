"""How far GPU physics is from the benchmark's: `python -m benchmarks.gpu_physics [--tasks stand walk]`.

From every recorded state of H1 one action, that is ten physics steps, by MuJoCo Warp, by this version's MuJoCo on the
CPU, and as it was recorded under MuJoCo 3.3.0. Quantiles over states of the largest deviation of a state's positions
(qpos) and velocities (qvel). The last column is the floor: what the CPU of this version makes of the same start. Needs
`pip install 'sphere-rl[warp]'`; without an NVIDIA GPU Warp runs on the CPU, after minutes of compiling.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import kept
from benchmarks.timing import count
from sphere.cli.verify import GOLDEN
from sphere.envs import humanoidbench_mjx as h1_mjx
from sphere.envs.humanoidbench import FRAME_SKIP, TASKS, control_range, model_of, simulator
from sphere.envs.humanoidbench_verify import load
from sphere.errors import UserError

QUANTILES = (0.5, 0.9, 0.99, 1.0)
APART = {f"{name} {q:.0%}": ".1e" for name in ("qpos", "qvel") for q in QUANTILES}
COMPARED = {"task": "", "steps": ",d", "between": ""} | APART
TWICE = {"task": "", "states": ",d", "actions": "d", "equal": ".1%", "largest difference": ".1e", "seconds": ".1f"}


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


def started(task: str, most: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """The model, recorded states, the controls given there, and the states after them; `most`: spread over all."""
    model = h1_mjx.prepared(model_of(task))
    found = recorded(task)
    rows = np.linspace(0, len(found[0]) - 1, min(most, len(found[0]))).astype(int)
    states, actions, after = (one[rows] for one in found)
    low, size = control_range(model)
    return model, states, (actions.astype(np.float32) + 1) / 2 * size + low, after


def compared(table: kept.Table, task: str, device: str, most: int) -> None:
    model, states, control, after = started(task, most)
    cpu, gpu = on_cpu(model, states, control), by_warp(model, states, control, device)
    pairs = (("Warp, this CPU", gpu, cpu), ("Warp, 3.3.0", gpu, after), ("this CPU, 3.3.0", cpu, after))
    for name, one, other in pairs:
        apart = np.abs(one - other)
        parts = (apart[:, : model.nq], apart[:, model.nq :])
        table.add(task, len(states), name, *(float(q) for p in parts for q in np.quantile(p.max(axis=1), QUANTILES)))


def twice(table: kept.Table, task: str, device: str, most: int, actions: int) -> None:
    """Several actions from the same states, in two goes: equal bits, or how far apart. Seconds are of the second."""
    model, states, control, _ = started(task, most)
    one = by_warp(model, states, control, device, actions)
    start = time.perf_counter()
    apart = np.abs(one - by_warp(model, states, control, device, actions))
    same = float((apart == 0).all(axis=1).mean())
    table.add(task, len(states), actions, same, float(apart.max()), time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--states", type=count, default=10**9, help="at most so many of a task; default: all")
    parser.add_argument("--device", help="Warp's name of it; default: cuda:0, without one cpu")
    parser.add_argument("--twice", action="store_true", help="instead: are several actions the same bits every time?")
    parser.add_argument("--actions", type=count, default=20, help="with --twice: so many one after the other")
    kept.add_option(parser)
    options = parser.parse_args(arguments)
    try:
        h1_mjx.check_installed()
    except UserError as error:
        parser.error(str(error))
    import warp

    device = options.device or ("cuda:0" if warp.is_cuda_available() else "cpu")
    where = f"mujoco {simulator().__version__}, warp {warp.__version__} on {warp.get_device(device).name}"
    print(where)
    table = kept.Table(TWICE if options.twice else COMPARED)
    for task in options.tasks:
        if options.twice:
            twice(table, task, device, options.states, options.actions)
        else:
            compared(table, task, device, options.states)
        kept.keep(table, options.keep, where)


if __name__ == "__main__":
    main()
