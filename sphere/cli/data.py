"""`sphere data`: get a labelled data set from its official place, or from a local copy, checked."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sphere.errors import unknown

SETS = {"cifar100": "sphere.data.cifar100", "newsgroups": "sphere.data.newsgroups"}
"""Modules with the ADDRESS of an archive and `install`, which checks it."""


@dataclass(frozen=True)
class Get:
    """Get a labelled data set, checked against its published sums."""

    name: tyro.conf.Positional[str]
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """An archive instead of a download."""


def data(arguments: list[str]) -> None:
    from sphere.data.labelled import download

    options = tyro.cli(Get, prog="sphere data", args=arguments)
    if options.name not in SETS:
        raise unknown("data set to get", options.name, SETS)
    module = importlib.import_module(SETS[options.name])
    if options.source is not None:
        place = module.install(options.source)
    else:
        place = download(module.ADDRESS, module.file().parent, module.install, print)
    print(f"installed in {place}")
