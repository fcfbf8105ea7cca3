"""`sphere data`: get labelled data sets, checked; record the scripted policies' episodes, for learning offline."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sphere.errors import UserError, in_range, unknown

USAGE = """usage: sphere data get NAME             a labelled data set, checked: cifar100 or newsgroups
       sphere data record metaworld    a data set of the scripted policies' episodes; --help for more"""

STEP = 160
"""Bytes of an observation of 39 numbers, and one more."""
SETS = {"cifar100": "sphere.data.cifar100", "newsgroups": "sphere.data.newsgroups"}
"""Modules with the ADDRESS of an archive and `install`, which checks it."""


@dataclass(frozen=True)
class Get:
    """Get a labelled data set, checked against its published sums."""

    name: tyro.conf.Positional[str]
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """An archive instead of a download."""


def get(arguments: list[str]) -> None:
    from sphere.data.labelled import download

    options = tyro.cli(Get, prog="sphere data get", args=arguments)
    if options.name not in SETS:
        raise unknown("data set to get", options.name, SETS)
    module = importlib.import_module(SETS[options.name])
    if options.source is not None:
        place = module.install(options.source)
    else:
        place = download(module.ADDRESS, module.file().parent, module.install, print)
    print(f"installed in {place}")


@dataclass(frozen=True)
class RecordOptions:
    """Record episodes of the scripted policies with noise, all tasks in one data set; prints the behaviour's own
    success."""

    name: str = "metaworld/scripted-v0"
    """Of the data set, as Minari wants it: namespace/name-v0. It goes where MINARI_DATASETS_PATH says."""
    tasks: tuple[str, ...] = ()
    """Default: Continual World's ten."""
    episodes: int = 200
    """Of each task."""
    noise: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5)
    """Deviations of the noise on actions, one for each episode in turn."""
    uniform: float = 0.1
    """Share of actions that are drawn evenly instead."""
    horizon: int | None = None
    """Steps of an episode; default: the suite's, 500."""
    seed: int = 0
    processes: int | None = None
    """Tasks that are recorded at the same time; default: as many as there are cores. The data do not depend on it."""

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float | None, float | None]] = {"uniform": (0, 1), "seed": (0, None)}
        in_range(self, bounds | dict.fromkeys(("episodes", "horizon", "processes"), (1, None)))
        if not self.noise or min(self.noise) < 0:
            raise UserError(f"noise is {self.noise}; want at least one deviation, each 0 or more")


def data(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
    elif arguments[0] == "get":
        get(arguments[1:])
    elif arguments[0] == "record" and arguments[1:2] in ([], ["-h"], ["--help"]):
        print(USAGE)
    elif arguments[:2] == ["record", "metaworld"]:
        record_metaworld(arguments[2:])
    else:
        raise UserError(
            f"sphere data {' '.join(arguments[:2])} is not known; use sphere data get NAME "
            "or sphere data record metaworld"
        )


def _check_room(steps: int) -> None:
    """Refuse, before hours of recording, what the machine cannot hold: all is written in the end."""
    from sphere.training.limits import host_memory

    if (size := steps * STEP) > (memory := host_memory()):
        raise UserError(
            f"{min(steps, 10**30):,} steps of all episodes take {size >> 30:,} GiB or more, and this machine has "
            f"{memory >> 30:,} GiB; record fewer or shorter episodes"
        )


def record_metaworld(arguments: list[str]) -> None:
    options = tyro.cli(RecordOptions, prog="sphere data record metaworld", args=arguments)
    from sphere import envs
    from sphere.data.scripted import record_all, write
    from sphere.data.transitions import minari
    from sphere.envs.handles import cores
    from sphere.presets import CW10

    minari()  # before hours of recording
    known = envs.tasks("metaworld")
    tasks = [task.removeprefix("metaworld/") for task in options.tasks] or list(CW10)
    _check_room(options.episodes * len(tasks) * (options.horizon or 500))
    for task in tasks:
        if task not in known:
            raise unknown("task", task, known)
    episodes, rows = [], []
    print(f"{'task':<20} {'episodes':>9} {'success once':>13} {'at the end':>11} {'return':>9}")
    settings = options.episodes, options.seed, options.noise, options.uniform, options.horizon
    for found, row in record_all(tasks, options.processes or cores(), *settings):
        episodes += found
        rows.append(row)
        print(
            f"{row.task:<20} {row.episodes:>9} {row.success_once:>13.2f} {row.success_at_end:>11.2f} "
            f"{row.mean_return:>9.0f}",
            flush=True,
        )
    write(options.name, episodes, rows)
    steps = sum(len(one.rewards) for one in episodes)
    mean = sum(row.success_at_end for row in rows) / len(rows)
    print(f"\n{steps:,} transitions in {options.name}; the behaviour's success at the end of its episodes: {mean:.2f}")
