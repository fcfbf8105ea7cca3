"""`sphere report`, `export` and `watch`: what is made of run directories."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sphere.errors import UserError
from sphere.training.progress import plural


@dataclass(frozen=True)
class Report:
    """Make one page (open index.html from disk), tables and figures from run directories."""

    directories: tyro.conf.Positional[tuple[Path, ...]]
    """Runs, fleets, or directories above them."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report")
    score: str | None = None
    """A column of the outcomes, such as success_once or return; default: the primary score that the records name."""
    figures: bool = True
    """Also SVG, PDF and PNG files; they take most of the time."""


def report(arguments: list[str]) -> None:
    from sphere.report.page import write_report
    from sphere.storage.reader import find_runs

    options = tyro.cli(Report, prog="sphere report", args=arguments)
    if not options.directories:
        raise UserError("no runs were named; name directories that sphere train wrote: sphere report runs/first")
    find_runs(options.directories, [])  # a name that does not exist is answered before anything else is said
    if options.figures:
        print("writing tables, figures and the page: seconds, a minute for many runs", file=sys.stderr)
    loaded = write_report(options.directories, options.out, options.score, options.figures)
    for note in loaded.notes:
        print(f"sphere: {note}", file=sys.stderr)
    print(f"{plural(len(loaded.runs), 'run')}: open {options.out / 'index.html'} in a browser")


@dataclass(frozen=True)
class Export:
    """Copy what others need to check runs: settings, versions, all evaluations, thinned metrics; no checkpoints."""

    directories: tyro.conf.Positional[tuple[Path, ...]]
    """Runs, fleets, or directories above them."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("results")
    every: int = 10
    """Keep the metrics of every n-th training iteration; all evaluations are kept."""


def export(arguments: list[str]) -> None:
    from sphere.storage.export import export as copy

    options = tyro.cli(Export, prog="sphere export", args=arguments)
    if not options.directories:
        raise UserError("no runs were named; name directories that sphere train wrote: sphere export runs/first")
    notes: list[str] = []
    written = copy(options.directories, options.out, options.every, notes)
    for note in notes:
        print(f"sphere: {note}", file=sys.stderr)
    print(f"{plural(len(written), 'run')}: {options.out}")


@dataclass(frozen=True)
class Watch:
    """Serve the report page on this machine; it updates itself during training."""

    directories: tyro.conf.Positional[tuple[Path, ...]]
    """Runs, fleets, or directories above them."""
    port: int = 8000
    """0: any free port."""
    host: str = "127.0.0.1"
    """Address to listen on. For other machines also pass --public."""
    public: bool = False
    """Show the runs to everybody who can reach the address."""
    score: str | None = None
    """A column of the outcomes, such as success_once or return; default: the primary score that the records name."""


def watch(arguments: list[str]) -> None:
    from sphere.report.watch import watch as serve

    options = tyro.cli(Watch, prog="sphere watch", args=arguments)
    if not options.directories:
        raise UserError("no runs were named; name directories that sphere train writes to: sphere watch runs")
    serve(options.directories, options.host, options.port, options.score, public=options.public)
