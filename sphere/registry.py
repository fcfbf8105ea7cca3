"""What can be plugged in, by name: learners, sources, methods, suites and presets, also from outside the package.

A name stands for a class, or for "module:attribute" of one that is imported when it is asked for. A module from outside
adds its own when it is imported:

    import sphere

    sphere.register_method(MyMethod)
    sphere.register_suite("maze", Maze)
    sphere.register_learner(MyLearner)

It is named on the command line (`--plugin mymodule`), or found as an entry point of the group `sphere.plugins`. Runs
record the modules that they need, so that they are found again.
"""

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from sphere.errors import unknown

Found = Any

LEARNERS: dict[str, Found] = {
    "ppo": "sphere.algos.ppo:PPO",
    "td3": "sphere.algos.td3:TD3",
    "td3-bc": "sphere.algos.td3_bc:TD3BC",
    "classifier": "sphere.algos.classifier:Classifier",
}
SOURCES: dict[str, Found] = {
    "environments": "sphere.envs.environments:Environments",
    "offline": "sphere.data.offline:Offline",
    "stream": "sphere.data.streams:Stream",
}
METHODS: dict[str, Found] = {
    "sphere": "sphere.methods.sphere:Sphere",
    "layernorm": "sphere.methods.layernorm:LayerNorm",
    "spectral-norm": "sphere.methods.spectral_norm:SpectralNorm",
    "c-chain": "sphere.methods.c_chain:CChain",
    "cbp": "sphere.methods.cbp:CBP",
    "parseval": "sphere.methods.parseval:Parseval",
    "redo": "sphere.methods.redo:ReDo",
    "spectral-reg": "sphere.methods.spectral_reg:SpectralReg",
    "load-balance": "sphere.methods.load_balance:LoadBalance",
}
"""In the order in which a program has them: random keys of methods are numbered by it."""
SUITES: dict[str, Found] = {
    "probe": "sphere.envs.probes:Probes",
    "metaworld": "sphere.envs.metaworld:MetaWorld",
    "metaworld-pixels": "sphere.envs.metaworld_pixels:MetaWorldPixels",
    "humanoidbench": "sphere.envs.humanoidbench:HumanoidBench",
}
WORLDS: dict[str, Found] = {
    "humanoidbench": "sphere.envs.humanoidbench_worlds:H1Worlds",
}
"""Suites whose simulators can live on a GPU, and what makes their worlds."""
STREAMS: dict[str, Found] = {
    "cifar100": "sphere.data.cifar100:CIFAR100",
    "newsgroups": "sphere.data.newsgroups:Newsgroups",
    "squares": "sphere.data.squares:Squares",
}
"""Labelled data that streams are made of."""
PRESETS: dict[str, Found] = {}
"""Those from outside; ours are in `sphere.presets`."""

GROUP = "sphere.plugins"


def register_learner(learner: type) -> type:
    """Add a learner (`sphere.algos.learner.Learner`) under its own name; may be used as a decorator."""
    return _add(LEARNERS, "learner", learner.name, learner)  # type: ignore[attr-defined]


def register_source(source: type) -> type:
    """Add the settings of a source (`sphere.algos.source.SourceSettings`) under its kind."""
    return _add(SOURCES, "source", source.kind, source)  # type: ignore[attr-defined]


def register_method(method: type) -> type:
    """Add a method (`sphere.methods.method.Method`) under its own name."""
    return _add(METHODS, "method", method.name, method)  # type: ignore[attr-defined]


def register_suite(name: str, suite: Any) -> Any:
    """Add a suite of environments (`sphere.envs.Suite`): its tasks are then `name/task`."""
    return _add(SUITES, "suite", name, suite)


def register_worlds(name: str, worlds: Any) -> Any:
    """Add a form of a suite for simulators on a GPU: what makes `sphere.envs.worlds.Worlds` of its tasks."""
    return _add(WORLDS, "suite on a GPU", name, worlds)


def register_stream(name: str, data: Any) -> Any:
    """Add a labelled data set (`sphere.data.labelled.DataSet`): its tasks are then `name/0`, `name/1`, ..."""
    return _add(STREAMS, "labelled data set", name, data)


def register_preset(name: str, config: Any) -> Any:
    """Add settings of a fleet (`sphere.training.settings.FleetConfig`) for `--preset name`."""
    return _add(PRESETS, "preset", name, config)


def _add(place: dict[str, Found], kind: str, name: str, found: Found) -> Found:
    there = place.get(name, found)
    if there is not found and not _same(there, found):
        raise ValueError(f"there is a {kind} {name!r} already; give yours another name")
    place[name] = found
    return found


def _same(one: Found, two: Found) -> bool:
    """A module that is imported twice (under a test, or reloaded) registers what it registered before."""
    names = ("__module__", "__qualname__")
    return hasattr(one, "__qualname__") and all(getattr(one, n, 1) == getattr(two, n, 2) for n in names)


def learner(name: str) -> type:
    return _find(LEARNERS, "learner", name)


def source(kind: str) -> type:
    return _find(SOURCES, "source", kind)


def method(name: str) -> type:
    return _find(METHODS, "method", name)


def suite(name: str) -> Any:
    return _find(SUITES, "suite", name)


def worlds(name: str) -> Any:
    return _find(WORLDS, "suite on a GPU", name)


def stream(name: str) -> Any:
    return _find(STREAMS, "labelled data set", name)


def _find(place: dict[str, Found], kind: str, name: str) -> Found:
    if name not in place:
        load_plugins()
    if name not in place:
        raise unknown(kind, name, place)
    found = place[name]
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        return getattr(importlib.import_module(module), attribute)
    return found


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Import these modules, from the current directory too, and all that installed packages offer."""
    _load_installed(tuple(sys.path))
    for module in modules:
        if module in sys.modules:
            continue
        if os.getcwd() not in sys.path:  # the command `sphere` does not have it there, `python -m sphere` does
            sys.path.append(os.getcwd())
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module.split(".")[0]:
                raise
            raise ValueError(
                f"the plugin {module!r} cannot be imported; go to the directory it is in, or put that on PYTHONPATH"
            ) from error


@cache
def _load_installed(path: tuple[str, ...]) -> None:
    """Once for the same `sys.path`: looking through the metadata of all packages takes as long as reading a run."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        entry.load()
