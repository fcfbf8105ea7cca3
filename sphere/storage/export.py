"""What a reader needs to check a run, small enough to publish: settings, versions, all evaluations, thinned metrics.

Only runs that the reader accepts are copied, as the bytes that it read. A copy has its checksums beside it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from sphere.storage import checksums
from sphere.storage.files import atomic_write
from sphere.storage.reader import find_runs, parse_run, read_contents
from sphere.storage.run_directory import METRICS
from sphere.storage.validate import Unreadable

TRAINING = b'"train/'
"""What tells a line of a training iteration from one of an evaluation."""


def runs(paths: Iterable[Path], out: Path, notes: list[str]) -> Iterator[tuple[Path, Path]]:
    """Every run at or below the paths but not in `out`, and its path relative to the parent of the path named."""
    for path in paths:
        place, target = path.resolve(), out.resolve()
        if target in (place, place.parent):
            raise ValueError(f"{out} is where the runs are; choose another directory")
        found = find_runs([path], notes)
        if target.is_relative_to(place):  # what was exported before is not exported again
            found = [run for run in found if not run.resolve().is_relative_to(target)]
        if not found:
            raise ValueError(f"no run in {path}; name a directory that sphere train wrote, or one above it")
        for run in found:
            yield run, Path(path.resolve().name) / run.relative_to(path)


def thinned(lines: Iterable[bytes], every: int) -> Iterator[bytes]:
    """All evaluations, one of every `every` training iterations, and nothing of a line that a kill cut off."""
    group: list[bytes] = []
    for line in lines:
        if not line.endswith(b"\n"):
            break
        group.append(line)
        if sum(TRAINING in one for one in group) == every:
            yield from _one_iteration(group)
            group = []
    yield from _one_iteration(group)


def _one_iteration(group: list[bytes]) -> list[bytes]:
    """With the first of the iterations that have most numbers: an iteration may be shorter than an episode, and have
    no return where none ended."""
    training = [i for i, line in enumerate(group) if TRAINING in line]
    kept = min(training, key=lambda i: group[i].count(b'"nan"'), default=None)
    return [line for i, line in enumerate(group) if i == kept or i not in training]


def _targets(paths: Iterable[Path], out: Path, notes: list[str]) -> dict[Path, Path]:
    """Where each run goes, and which one that is."""
    found: dict[Path, Path] = {}
    for run, name in runs(paths, out, notes):
        target = out / name
        if target in found:
            raise ValueError(f"{found[target]} and {run} would both become {target}; export them to different places")
        if (target / "lock").exists() or target.with_name("fleet.json").exists():
            raise ValueError(f"{target} is a run in training, not a copy; export to another place")
        for part in (target, *target.parents)[: len(name.parts)]:
            if part.is_symlink():
                raise ValueError(f"{part} is a link, and nothing is written through one; export to another place")
        found[target] = run
    return found


def _accepted(run: Path, notes: list[str]) -> dict[str, bytes]:
    """The files of a run that the reader takes as they are. One that was changed would get new checksums: not that
    one."""
    contents = read_contents(run, notes)
    parse_run(run, contents, notes)
    if changed := checksums.changed(run, contents.files, contents.sums):
        raise Unreadable("; ".join(changed))
    return dict(contents.files)


def export(paths: Iterable[Path], out: Path, every: int = 10, notes: list[str] | None = None) -> list[Path]:
    """Copy runs to `out`, without checkpoints; a report can be made of the copies as of the runs. Notes say which
    runs were left out and why."""
    if every < 1:
        raise ValueError(f"every={every}; want 1 (all training iterations) or more")
    said: list[str] = []
    written = []
    for target, run in _targets(paths, out, said).items():
        try:
            contents = _accepted(run, said)
        except (OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            said.append(f"{run} was left out: {error}")
            continue
        contents[METRICS] = b"".join(thinned(contents[METRICS].splitlines(keepends=True), every))
        target.mkdir(parents=True, exist_ok=True)
        for name, data in [*contents.items(), (checksums.SUMS, checksums.write(contents))]:
            with atomic_write(target / name) as copy:
                copy.write(data)
        written.append(target)
    if not written:
        raise ValueError(f"nothing was exported: {'; '.join(said)}")
    if notes is not None:
        notes += said
    return written
