"""The command line: `sphere train`, `resume`, `eval`, `show` and others (see USAGE), also as `python -m sphere`."""

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

import sphere
from sphere.errors import UserError, nearest
from sphere.training.settings import FleetConfig

USAGE = """usage: sphere COMMAND ...

  train    train a fleet of runs:     sphere train --preset probe-crl --seeds 0 1 2 --rho 0 0.1 --out runs/first
  resume   go on with a fleet:        sphere resume runs/first
  eval     evaluate its policies:     sphere eval runs/first --episodes 20
  show     settings, latest numbers:  sphere show runs/first
  report   tables, figures, a page:   sphere report runs/first runs/second -o report
  export   what to publish of runs:   sphere export runs/first -o results
  watch    the page while runs go:    sphere watch runs
  experiment  the paper's, by name:   sphere experiment list, sphere experiment run metaworld-crl --scale smoke
  render   film a policy:             sphere render runs/first --task metaworld/push --out push.gif
  assets   get a suite's files:       sphere assets humanoidbench
  heldout  states to compare r_e(K):  sphere heldout humanoidbench
  verify   compare with references:   sphere verify update, sphere verify metaworld
  bench    measure this machine:      sphere bench update

sphere COMMAND --help tells more, sphere --version which one this is."""

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
CLOSED = 141  # and of one whose reader left


def _fleet(directory: Path) -> FleetConfig:
    from sphere.training.settings import rebuild

    path = directory / "fleet.json"
    if not path.exists():
        if (directory / "config.json").exists():
            raise UserError(f"{directory} is one run of a fleet; name the directory above it")
        if (directory / "lock").exists():
            raise UserError(
                f"{directory} holds no fleet yet: training there is starting, or was left before anything was written; "
                "then train into it again"
            )
        if any(directory.glob("*/config.json")):
            raise UserError(
                f"{directory} holds records without a fleet.json, so nothing to go on with; see: sphere report"
            )
        raise UserError(f"{directory} holds no fleet (no fleet.json); name the directory that sphere train wrote")
    try:
        written = json.loads(path.read_text())
        if not isinstance(written, dict) or not written.get("tasks"):
            raise ValueError("these are not the settings of a fleet")
        return rebuild(FleetConfig, written)
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


@dataclass(frozen=True)
class Resume:
    """Go on from the newest good checkpoint; the numbers are those of a run that was never stopped."""

    directory: tyro.conf.Positional[Path]
    workers: int | None = None
    """Simulator processes of a group of runs, if others than before; results do not depend on it."""
    sharing: int | None = None
    """Fleets that are trained on this machine at the same time, if others than before; results do not depend on it."""
    quiet: bool = False


def resume(arguments: list[str]) -> None:
    from sphere.training.loop import train as run

    options = tyro.cli(Resume, prog="sphere resume", args=arguments)
    asked = {"workers": options.workers, "sharing": options.sharing}
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    config = dataclasses.replace(_fleet(options.directory), **changes)
    run(config, options.directory, resume=True, quiet=options.quiet)


@dataclass(frozen=True)
class Eval:
    """Deterministic episodes of every run's current policy on the tasks of its list."""

    directory: tyro.conf.Positional[Path]
    episodes: int = 10
    tasks: tuple[str, ...] = ()
    """Default: all tasks of the fleet; under rl, where every task has a policy of its own, the one that it is at."""


def evaluate(arguments: list[str]) -> None:
    from sphere.cli.show import evaluate_table

    options = tyro.cli(Eval, prog="sphere eval", args=arguments)
    print(evaluate_table(_fleet(options.directory), options.directory, options.episodes, options.tasks))


@dataclass(frozen=True)
class Show:
    """Settings that differ from the defaults, and the latest numbers of every run."""

    directory: tyro.conf.Positional[Path]


def show(arguments: list[str]) -> None:
    from sphere.cli.show import show_text

    options = tyro.cli(Show, prog="sphere show", args=arguments)
    print(show_text(_fleet(options.directory), options.directory))


def _elsewhere(module: str, name: str) -> Callable[[list[str]], Any]:
    """A command of another module, which is imported when it is called: a command waits for its own imports only."""

    def act(arguments: list[str]) -> None:
        getattr(importlib.import_module(module), name)(arguments)

    return act


def verify(arguments: list[str]) -> None:
    from sphere.cli.verify import CHECKS
    from sphere.cli.verify import USAGE as checks_usage

    if not arguments or arguments[0] in ("-h", "--help"):
        print(checks_usage)
        return
    if arguments[0] not in CHECKS:
        raise nearest("check", arguments[0], list(CHECKS))
    if not CHECKS[arguments[0]](arguments[1:]):
        sys.exit(1)


@dataclass(frozen=True)
class Heldout:
    """Train the policy whose states r_e(K) is compared on, and store a batch of them. Interrupted, it can be called again."""

    suite: tyro.conf.Positional[str]
    states: int = 512
    work: Path | None = None
    """Where the policy is trained; default: runs/heldout- and the suite's name."""
    out: Path | None = None
    """Default: the suite's name and .npz, here; the package's own are in sphere/heldout/."""


def heldout(arguments: list[str]) -> None:
    from sphere.cli.heldout import RECIPES, make
    from sphere.training.loop import Interrupted
    from sphere.training.loop import train as run

    options = tyro.cli(Heldout, prog="sphere heldout", args=arguments)
    if options.suite not in RECIPES:
        raise nearest("recipe for held-out states of", options.suite, list(RECIPES))
    if options.states < 1:  # before hours of training
        raise UserError(f"--states {options.states}; want at least 1, the shipped batches have 512")
    work = options.work or Path("runs") / f"heldout-{options.suite}"
    out = options.out or Path(f"{options.suite}.npz")
    try:
        run(RECIPES[options.suite], work, resume=(work / "fleet.json").exists())
    except Interrupted as stopped:
        raise Interrupted(f"{stopped.at}; go on with the same command") from None
    batch = make(RECIPES[options.suite], work, options.states, out)
    print(
        f"{out}: {batch.states.shape[0]} states of {batch.states.shape[1]} numbers, sha256 {batch.provenance['sha256'][:12]}…"
    )
    for task, mean in batch.provenance["mean_return"].items():
        print(f"  {task:<32} mean return {mean:.1f}")


@dataclass(frozen=True)
class Assets:
    """Get the files that a suite needs and that are not ours to ship, each checked against its recorded sum."""

    suite: tyro.conf.Positional[str]
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """An archive instead of a download."""


def assets(arguments: list[str]) -> None:
    from sphere.envs import assets as files

    options = tyro.cli(Assets, prog="sphere assets", args=arguments)
    if options.suite not in files.COLLECTIONS:
        raise nearest("suite with files to get", options.suite, list(files.COLLECTIONS))
    print(f"installed in {files.install(options.suite, options.source, say=print)}")


@dataclass(frozen=True)
class Render:
    """Film one deterministic episode of a run's current policy, off-screen."""

    directory: tyro.conf.Positional[Path]
    task: str = ""
    """Default: the task that the run is at."""
    run: str = ""
    """Name of the run, as in sphere show; default: the first."""
    out: Path = Path("episode.gif")
    """A .gif or an .mp4 (the latter needs imageio-ffmpeg)."""
    seed: int = 0
    """Of the episode."""


def render(arguments: list[str]) -> None:
    from sphere.cli.render import film

    options = tyro.cli(Render, prog="sphere render", args=arguments)
    config = _fleet(options.directory)
    print(film(config, options.directory, options.run, options.task, options.seed, options.out))


def bench(arguments: list[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    known = sorted(p.stem for p in (root / "benchmarks").glob("*.py") if p.stem not in ("__init__", "timing"))
    if not known:
        raise UserError("the benchmarks are part of the source checkout; clone it and run sphere bench there")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: sphere bench NAME ...; there are {', '.join(known)}")
        return
    if arguments[0] not in known:
        raise nearest("benchmark", arguments[0], known)
    sys.path.insert(0, str(root))
    sys.argv = [f"sphere bench {arguments[0]}", *arguments[1:]]
    # imported, not run as __main__: worker processes look its functions up by name
    importlib.import_module(f"benchmarks.{arguments[0]}").main()


COMMANDS: dict[str, Callable[[list[str]], Any]] = {
    "train": _elsewhere("sphere.cli.train", "train"),
    "resume": resume,
    "eval": evaluate,
    "show": show,
    "report": _elsewhere("sphere.cli.report", "report"),
    "export": _elsewhere("sphere.cli.report", "export"),
    "watch": _elsewhere("sphere.cli.report", "watch"),
    "experiment": _elsewhere("sphere.cli.experiment", "experiment"),
    "render": render,
    "assets": assets,
    "heldout": heldout,
    "verify": verify,
    "bench": bench,
}


def _stopped(error: Exception) -> bool:
    """Whether training was asked to end, saved, and left."""
    if not isinstance(error, RuntimeError):
        return False
    from sphere.training.loop import Interrupted

    return isinstance(error, Interrupted)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    # jax would take three quarters of a GPU for the first of several fleets, which needs a hundredth
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if arguments[0] == "--version":
        print(f"sphere {sphere.__version__}")
        return 0
    try:
        if arguments[0] not in COMMANDS:
            raise nearest("command", arguments[0], list(COMMANDS))
        COMMANDS[arguments[0]](arguments[1:])
    except BrokenPipeError:
        raise
    except (UserError, ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"sphere: {error}", file=sys.stderr)
        return INTERRUPTED if _stopped(error) else 1
    except KeyboardInterrupt:
        print("sphere: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def run() -> None:
    try:
        try:
            code = main()
        finally:  # also where --help leaves by SystemExit
            sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; what is left to print goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED)
    if code == INTERRUPTED:  # a thread may still be compiling, and an interpreter that ends under it crashes
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
