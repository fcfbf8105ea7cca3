"""The command line: `sphere train`, `resume`, `eval`, `show` and others (see USAGE), also as `python -m sphere`."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

import sphere
from sphere.errors import UserError, unknown
from sphere.training.sentences import DEBUG, in_a_sentence

USAGE = """usage: sphere COMMAND ...

  train       train a group of runs:      sphere train --preset probe-crl --seeds 0 1 2 --rho 0 0.1 --out runs/first
  resume      continue training:          sphere resume runs/first
  eval        evaluate policies:          sphere eval runs/first --episodes 20
  show        settings, latest numbers:   sphere show runs/first
  report      tables, figures, a page:    sphere report runs/first runs/second -o report
  export      copy records to publish:    sphere export runs/first -o results
  watch       live report page:           sphere watch runs
  experiment  the paper's experiments:    sphere experiment list, sphere experiment run metaworld-crl --scale smoke
  demo        four agents, minutes:       sphere demo
  render      record a video:             sphere render runs/first --task metaworld/push --out push.gif
  assets      download a suite's files:   sphere assets humanoidbench
  data        labelled or recorded data:  sphere data get cifar100, sphere data record metaworld
  heldout     held-out states for r_e(K): sphere heldout humanoidbench
  verify      compare with references:    sphere verify update, sphere verify metaworld
  bench       measure this machine:       sphere bench update

sphere COMMAND --help shows the options of a command, sphere --version the version."""

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
CLOSED = 141  # and of one whose reader left


def _lazily(module: str, name: str) -> Callable[[list[str]], Any]:
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
        raise unknown("check", arguments[0], list(CHECKS))
    if not CHECKS[arguments[0]](arguments[1:]):
        sys.exit(1)


@dataclass(frozen=True)
class Assets:
    """Download the files that a suite needs and that the package may not include; each is checked by its checksum."""

    suite: tyro.conf.Positional[str]
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """An archive instead of a download."""


def assets(arguments: list[str]) -> None:
    from sphere.envs import assets as files

    options = tyro.cli(Assets, prog="sphere assets", args=arguments)
    if options.suite not in files.COLLECTIONS:
        raise unknown("suite with files to get", options.suite, list(files.COLLECTIONS))
    print(f"installed in {files.install(options.suite, options.source, say=print)}")


def bench(arguments: list[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    known = sorted(p.stem for p in (root / "benchmarks").glob("*.py") if p.stem not in ("__init__", "kept", "timing"))
    if not known:
        raise UserError("the benchmarks are part of the source checkout; clone it and run sphere bench there")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: sphere bench NAME ...; there are {', '.join(known)}")
        return
    if arguments[0] not in known:
        raise unknown("benchmark", arguments[0], known)
    sys.path.insert(0, str(root))
    sys.argv = [f"sphere bench {arguments[0]}", *arguments[1:]]
    # imported, not run as __main__: worker processes look its functions up by name
    importlib.import_module(f"benchmarks.{arguments[0]}").main()


COMMANDS: dict[str, Callable[[list[str]], Any]] = {
    "train": _lazily("sphere.cli.train", "train"),
    "resume": _lazily("sphere.cli.resume", "resume"),
    "eval": _lazily("sphere.cli.resume", "evaluate"),
    "show": _lazily("sphere.cli.resume", "show"),
    "report": _lazily("sphere.cli.report", "report"),
    "export": _lazily("sphere.cli.report", "export"),
    "watch": _lazily("sphere.cli.report", "watch"),
    "experiment": _lazily("sphere.cli.experiment", "experiment"),
    "demo": _lazily("sphere.cli.demo", "demo"),
    "render": _lazily("sphere.cli.render", "render"),
    "assets": assets,
    "heldout": _lazily("sphere.cli.heldout", "heldout"),
    "data": _lazily("sphere.cli.data", "data"),
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
            raise unknown("command", arguments[0], list(COMMANDS))
        COMMANDS[arguments[0]](arguments[1:])
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        print(f"sphere: {in_a_sentence(error)}", file=sys.stderr)
        return INTERRUPTED if _stopped(error) else 1
    except KeyboardInterrupt:
        print("sphere: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


class NamedOutput:
    """Standard output whose errors say that they are its own. What its encoding lacks is shown escaped."""

    def __init__(self, stream: Any):
        self.stream = stream
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        return self._named(self.stream.write, text)

    def flush(self) -> None:
        self._named(self.stream.flush)

    def _named(self, act: Callable[..., Any], *words: str) -> Any:
        try:
            return act(*words)
        except OSError as error:
            error.filename = "standard output"
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def run() -> None:
    code = 0
    output = None if sys.stdout is None else NamedOutput(sys.stdout)  # None: closed by `>&-`
    sys.stdout = output
    try:
        try:
            code = main()
        finally:  # also where --help leaves by SystemExit
            if output is not None:
                output.flush()
    except OSError as error:  # `| head` has seen enough, or the disk is full; what is left to print goes nowhere
        if output is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"sphere: {in_a_sentence(error)}", file=sys.stderr)
        sys.exit(CLOSED if isinstance(error, BrokenPipeError) else 1)
    if code == INTERRUPTED:  # a thread may still be compiling, and an interpreter that ends under it crashes
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
