"""`sphere render`: one deterministic episode of a policy as a film."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sphere import envs
from sphere.algos import ppo
from sphere.envs.source import Statistics
from sphere.training.fleet import Fleet
from sphere.training.progress import Progress
from sphere.training.settings import FleetConfig, run_name

FRAMES_PER_SECOND = 25
EVERY = 2  # steps per frame: a MetaWorld step is 12.5 ms, so films run a little faster than life


def film(config: FleetConfig, directory: Path, run: str, task: str, seed: int, out: Path) -> str:
    """Write the film; a sentence on what it shows."""
    if out.suffix not in (".gif", ".mp4"):
        raise ValueError(f"cannot film to {out.name!r}; name a .gif or an .mp4")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"cannot film to {out}: there is no directory {out.parent}; make it first")
    try:
        import imageio.v3  # noqa: F401 - before the episode, not after it
    except ImportError as error:
        raise RuntimeError("a film needs a package more: pip install imageio") from error
    names = [run_name(*one) for one in config.runs]
    if run and run not in names:
        raise unknown("run", run, names)
    row = names.index(run) if run else 0
    actor, statistics, current = _policy(config, directory, row)
    wanted = task or current
    if "/" not in wanted:
        wanted = f"{config.tasks[0].split('/')[0]}/{wanted}"
    # The world is drawn in this process: a picture is larger than all else that a worker sends.
    with envs.make(wanted, num_envs=1, seed=seed, workers=0, **config.simulator.given()) as pool:
        progress = Progress(pool.horizon)
        progress.say(f"filming {names[row]} on {wanted}, at most {pool.horizon} steps")
        try:
            frames, facts = _episode(actor, statistics, pool, partial(progress.advance, wanted))
        finally:
            progress.close()
    write(frames, out)
    return (
        f"{out}: {names[row]} on {wanted}, {int(facts['l'][0])} steps, return {facts['r'][0]:.1f}, "
        f"{'success' if facts['success_once'][0] else 'no success'}"
    )


def write(frames: list[np.ndarray], out: Path) -> None:
    """The film appears under its name whole, or not at all."""
    import imageio.v3 as imageio

    options: dict[str, Any] = {"fps": FRAMES_PER_SECOND} if out.suffix == ".mp4" else {"duration": 40, "loop": 0}
    unfinished = out.with_name(f"{out.stem}.partial{out.suffix}")  # the suffix says what is written
    try:
        imageio.imwrite(unfinished, np.stack(frames), **options)
        os.replace(unfinished, out)
    except ImportError as error:
        raise RuntimeError(
            f"an .mp4 needs a package more: pip install imageio-ffmpeg; or name a .gif ({error})"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _policy(config: FleetConfig, directory: Path, row: int) -> tuple[Any, Statistics | None, str]:
    """Actor and observation statistics of one run, from the newest checkpoint, and the task it was at."""
    fleet = Fleet(config, directory)
    try:
        fleet.resume()
        actor = jax.tree.map(lambda leaf: leaf[row : row + 1], fleet.actor)
        kept = fleet.statistics
        if kept is not None:
            mine = slice(row, row + 1)
            kept = Statistics(kept.mean[mine], kept.var[mine], kept.count[mine])
        return actor, kept, fleet.task
    finally:
        fleet.close()


def _episode(
    actor: Any, statistics: Statistics | None, pool: Any, tell: Callable[[int], None]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    scale = statistics.normalise if statistics is not None else partial(np.asarray, dtype=np.float32)
    raw, _ = pool.reset()
    frames = [pool.render(0)[0]]
    step = 0
    while True:
        action = np.asarray(ppo.mean_fleet(actor, scale(raw[None])))
        raw, _, _, _, infos = pool.step(action[0])
        step += 1
        if "episode" in infos:  # the next episode has begun already: its picture is not part of this one
            return frames, infos["episode"]
        if step % EVERY == 0:
            frames.append(pool.render(0)[0])
            tell(step)
