"""`sphere render`: one deterministic episode of a policy as a film."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tyro

FRAMES_PER_SECOND = 25
EVERY = 2  # steps per frame: a MetaWorld step is 12.5 ms, so films run a little faster than life


@dataclass(frozen=True)
class Render:
    """Record a video of one deterministic episode of a run's current policy, off-screen."""

    directory: tyro.conf.Positional[Path]
    """A run's, or its fleet's."""
    task: str = ""
    """Default: the task that the run is at."""
    run: str = ""
    """Name of the run, as in sphere show; default: the first."""
    out: Path = Path("episode.gif")
    """A .gif or an .mp4 (the latter needs imageio-ffmpeg)."""
    seed: int = 0
    """Of the episode."""


def render(arguments: list[str]) -> None:
    options = tyro.cli(Render, prog="sphere render", args=arguments)
    print(film(options.directory, options.run, options.task, options.seed, options.out))


def film(directory: Path, run: str, task: str, seed: int, out: Path) -> str:
    """Write the film; a sentence on what it shows."""
    from sphere import envs
    from sphere.cli.resume import settings_of
    from sphere.saved import load
    from sphere.training.progress import Progress

    if out.suffix not in (".gif", ".mp4"):
        raise ValueError(f"cannot film to {out.name!r}; name a .gif or an .mp4")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"cannot film to {out}: there is no directory {out.parent}; make it first")
    try:
        import imageio.v3  # noqa: F401 - before the episode, not after it
    except ImportError as error:
        raise RuntimeError("rendering needs imageio: pip install 'sphere-rl[metaworld]'") from error
    if not (directory / "config.json").is_file():
        run = run or settings_of(directory).runs[0].name
    policy = load(directory, run or None)
    config = policy.fleet.config
    wanted = config.full_name(task or policy.fleet.task)
    # The world is drawn in this process: a picture is larger than all else that a worker sends.
    with envs.make(wanted, num_envs=1, seed=seed, workers=0, **config.source.of_suite()) as pool:
        progress = Progress(pool.horizon)
        progress.say(f"filming {policy.name} on {wanted}, at most {pool.horizon} steps")
        try:
            frames, facts = _episode(policy, pool, partial(progress.advance, wanted))
        finally:
            progress.close()
    write(frames, out)
    return (
        f"{out}: {policy.name} on {wanted}, {int(facts['l'][0])} steps, return {facts['r'][0]:.1f}, "
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
            f"an .mp4 needs imageio-ffmpeg: pip install imageio-ffmpeg; or name a .gif ({error})"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _episode(policy: Any, pool: Any, tell: Callable[[int], None]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    raw, _ = pool.reset()
    frames = [pool.render(0)[0]]
    step = 0
    while True:
        raw, _, _, _, infos = pool.step(policy.act(raw))
        step += 1
        if "episode" in infos:  # the next episode has begun already: its picture is not part of this one
            return frames, infos["episode"]
        if step % EVERY == 0:
            frames.append(pool.render(0)[0])
            tell(step)
