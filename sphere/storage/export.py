"""What a reader needs to check a run, small enough to publish: settings, versions, all evaluations, thinned metrics."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from sphere.storage.files import atomic_write
from sphere.storage.run_directory import EPISODES, METRICS

KEPT = ("config.json", "environment.json", EPISODES)
TRAINING = b'"train/policy_loss"'
"""What tells a line of a training iteration from one of an evaluation."""


def runs(paths: Iterable[Path], out: Path) -> Iterator[tuple[Path, Path]]:
    """Every run at or below the paths but not in `out`, and its path relative to the parent of the path named."""
    for path in paths:
        place, target = path.resolve(), out.resolve()
        if target in (place, place.parent):
            raise ValueError(f"{out} is where the runs are; choose another directory")
        found = sorted(file.parent for file in path.rglob("config.json") if (file.parent / METRICS).is_file())
        if target.is_relative_to(place):  # what was exported before is not exported again
            found = [run for run in found if not run.resolve().is_relative_to(target)]
        if not found:
            raise ValueError(f"no run in {path}; name a directory that sphere train wrote, or one above it")
        for run in found:
            yield run, Path(path.resolve().name) / run.relative_to(path)


def thinned(lines: Iterable[bytes], every: int) -> Iterator[bytes]:
    """All evaluations, the first of every `every` training iterations, and nothing of a line that a kill cut off."""
    count = 0
    for line in lines:
        if not line.endswith(b"\n"):
            break
        training = TRAINING in line
        if not training or count % every == 0:
            yield line
        count += training


def export(paths: Iterable[Path], out: Path, every: int = 10) -> list[Path]:
    """Copy runs to `out`, without checkpoints; a report can be made of the copies as of the runs."""
    if every < 1:
        raise ValueError(f"every={every}; want 1 (all training iterations) or more")
    found: dict[Path, Path] = {}
    for run, name in runs(paths, out):
        if out / name in found:
            raise ValueError(
                f"{found[out / name]} and {run} would both become {out / name}; export them to different places"
            )
        if (out / name / "lock").exists() or (out / name).with_name("fleet.json").exists():
            raise ValueError(f"{out / name} is a run in training, not a copy; export to another place")
        found[out / name] = run
    written = []
    for target, run in found.items():
        target.mkdir(parents=True, exist_ok=True)
        for file in KEPT:
            if (run / file).exists():
                with (run / file).open("rb") as source, atomic_write(target / file) as copy:
                    shutil.copyfileobj(source, copy)
        with (run / METRICS).open("rb") as source, atomic_write(target / METRICS) as copy:
            copy.writelines(thinned(source, every))
        written.append(target)
    return written
