"""MetaWorld from pixels: `python -m benchmarks.pixels [--sheet PNG] [--renderer warp] [--envs 8]`.

Images per second of a pool with random actions, beside `gymnasium.vector.AsyncVectorEnv` over the package's own
environments and pictures of the same size, a process each, in one run. `--alone` leaves the latter out, which need
OpenGL. Drawing alone: the same poses again and again, as often as there are steps. `--sheet` writes what the policy
sees at the start of each of the ten tasks, and measures nothing.
"""

import argparse
import os
import time
from functools import partial
from typing import Any

import numpy as np

from benchmarks import kept
from benchmarks.timing import count

SIZE, SEED = 84, 3
COLUMNS = {"task": "", "renderer": "", "environments": "d", "images/s": ",.0f", "drawing alone, images/s": ",.0f"}
COLUMNS |= {"AsyncVectorEnv, images/s": ",.0f", "before the clock, s": ".0f"}
"""Before the clock: starting, compiling kernels, and a step."""


def package_env(task: str) -> Any:
    """The package's environment, whose observation is its own picture."""
    import gymnasium

    os.environ.setdefault("MUJOCO_GL", "egl")
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    env = ALL_V3_ENVIRONMENTS[f"{task}-v3"](render_mode="rgb_array", camera_name="corner4", height=SIZE, width=SIZE)
    env._freeze_rand_vec, env._set_task_called = False, True
    limited = gymnasium.wrappers.TimeLimit(env, 500)
    return gymnasium.wrappers.AddRenderObservation(limited, render_only=True)


def rate(pool: Any, steps: int) -> tuple[float, float]:
    """Images per second, after one step that is not counted; and when the clock started."""
    pool.reset()
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (steps + 1, pool.num_envs, 4)).astype(np.float32)
    pool.step(actions[0])
    start = time.perf_counter()
    for action in actions[1:]:
        pool.step(action)
    return steps * pool.num_envs / (time.perf_counter() - start), start


def drawing(pool: Any, steps: int) -> float | None:
    """Images per second of a renderer for all environments, from poses to an array here; None: workers draw."""
    renderer = getattr(pool, "_renderer", None)
    if renderer is None:
        return None
    poses = renderer.poses.copy()
    start = time.perf_counter()
    for _ in range(steps):
        renderer.draw(poses)
    return steps * pool.num_envs / (time.perf_counter() - start)


def compare(task: str, renderer: str, envs: int, steps: int, alone: bool) -> tuple[list[Any], str]:
    """A row of the table, and what draws."""
    import gymnasium

    import sphere
    from sphere.envs import offscreen

    begun = time.perf_counter()
    with sphere.envs.make(f"metaworld-pixels/{task}", envs, renderer=renderer) as pool:
        ours, start = rate(pool, steps)
        drawn = drawing(pool, steps)
        device = getattr(pool, "device", "") or offscreen.platform().device
    row = [task, renderer, envs, ours, drawn, None, start - begun]
    if not alone:
        theirs = gymnasium.vector.AsyncVectorEnv([partial(package_env, task)] * envs, context="forkserver")
        try:
            row[5] = rate(theirs, steps)[0]
        finally:
            theirs.close()
    return row, device


def sheet(path: str, renderer: str) -> None:
    """Two rows of five tasks, in the order of Continual World."""
    import imageio.v3 as imageio

    import sphere

    pictures = []
    for task in sphere.envs.tasks("metaworld-pixels"):
        with sphere.envs.make(f"metaworld-pixels/{task}", seed=SEED, workers=0, renderer=renderer) as pool:
            seen, _ = pool.reset()
        pictures.append(seen[0, ..., -3:].repeat(3, axis=0).repeat(3, axis=1))
    rows = [np.concatenate(pictures[first : first + 5], axis=1) for first in (0, 5)]
    imageio.imwrite(path, np.concatenate(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["hammer", "push"])
    parser.add_argument("--renderer", default="mujoco", choices=("mujoco", "warp"))
    parser.add_argument("--envs", type=count, default=8)
    parser.add_argument("--steps", type=count, default=50)
    parser.add_argument("--alone", action="store_true", help="without AsyncVectorEnv, which needs OpenGL")
    parser.add_argument("--sheet", help="write a contact sheet to this file instead")
    kept.add_option(parser)
    options = parser.parse_args()
    if options.sheet:
        sheet(options.sheet, options.renderer)
        return
    table = kept.Table(COLUMNS)
    for task in options.tasks:
        row, device = compare(task, options.renderer, options.envs, options.steps, options.alone)
        table.add(*row)
        kept.keep(table, options.keep, device)


if __name__ == "__main__":
    main()
