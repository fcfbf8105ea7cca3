"""What things are called: methods, tasks and scores. Also which runs are runs of one method."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sphere.storage.files import flatten

# Scores


class ScoreName(NamedTuple):
    word: str
    """In titles and on axes."""
    meaning: str
    bounded: bool
    """Whether it lies between 0 and 1 and 1 is the best there is."""


SCORES = {
    "success_at_end": ScoreName("success", "success at the end of an episode", True),
    "success_once": ScoreName("success", "success at any step of an episode", True),
    "accuracy": ScoreName("accuracy", "accuracy", True),
    "return": ScoreName("return", "return", False),
    "length": ScoreName("length", "length of an episode", False),
}
"""Columns of outcomes in words. Others are shown by their own name and taken to have no bounds."""

SECOND = "return"
"""A column that is shown beside the score where records have it: it moves long before a task is solved."""


def score_of(column: str) -> ScoreName:
    words = column.replace("_", " ")
    return SCORES.get(column) or ScoreName(words, words, False)


# Tasks


def visits(tasks: Sequence[str]) -> tuple[str, ...]:
    """Every task of a sequence under a name of its own: hammer, push, hammer (2)."""
    found: dict[str, None] = {}
    count: dict[str, int] = defaultdict(int)
    for task in tasks:
        count[task] += 1
        name = task if count[task] == 1 else f"{task} ({count[task]})"
        while name in found:
            count[task] += 1
            name = f"{task} ({count[task]})"
        found[name] = None
    return tuple(found)


def short(task: str) -> str:
    return task.split("/", 1)[-1]


# Methods

NOT_THE_METHOD = (
    *("seeds", "protocol", "tasks", "steps_per_task", "boundary", "evaluation", "rho", "vary"),
    *("sharing", "wandb", "checkpoint_every", "plugins"),
)
"""Settings that runs of one method may differ in: which sample, what it was trained on and how it was watched.
What varies within a fleet is taken from the record's numbers; `boundary` is looked at by itself
(`_with_boundary`)."""
HOW_DATA_COMES = ("source.workers", "source.overlap")


def method_settings(config: Mapping[str, Any], varying: Sequence[str]) -> dict[str, Any]:
    """The settings that make the method, flat: "learner.actor.experts" -> 10. `varying`: numbers that fleets vary."""
    rest = {name: value for name, value in config["settings"].items() if name not in NOT_THE_METHOD}
    flat = flatten(rest) | {"method": config["method"]}
    acting = config["method"].split("+")
    found = {}
    for name, value in flat.items():
        # what is not set is left out: settings that came with a later version do not make another method of an old run
        if value is None or value == {} or name in HOW_DATA_COMES:
            continue
        part = name.split(".")
        if part[:2] == ["learner", "methods"] and part[2] not in acting:  # no matter how it would have been
            continue
        found[name] = number(value)
    for name in varying:
        setting = found.pop(f"learner.{name}", None)
        if (value := config["numbers"].get(name, setting)) is not None:
            found[name] = number(value)
    return found


def number(value: Any) -> Any:
    """5 and 5.0 are one setting."""
    if isinstance(value, list):
        return [number(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def tell_apart(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The method of each run: its label, with the choices that make it something else ("SPHERE (variant scale-free)").
    Where one label covers several settings, what differs is added: "SPHERE (rho 0.1)"."""
    varying = sorted({name for config in configs for name in config["varies"]})
    flat = _with_boundary(configs, [method_settings(config, varying) for config in configs])
    keys = [_as_text(one) for one in flat]
    groups: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    chosen: dict[str, list[str]] = {}
    for config, key, settings in zip(configs, keys, flat, strict=True):
        groups[config["label"]][key] = settings
        chosen[key] = choices(config)
    names: dict[tuple[str, str], str] = {}
    for label, members in groups.items():
        for place, (key, more) in enumerate(zip(members, _differences(list(members.values())), strict=True)):
            words = more if len(members) > 1 else []
            name = titled(label, [*(word for word in chosen[key] if word not in words), *words])
            names[label, key] = name if name not in names.values() else f"{name} #{place + 1}"
    return [names[config["label"], key] for config, key in zip(configs, keys, strict=True)]


def choices(config: Mapping[str, Any]) -> list[str]:
    """The settings by which a run is something else than its label says, in words."""
    return [f"{name.replace('_', ' ')} {spell(number(value))}" for name, value in config.get("choices", {}).items()]


def titled(label: str, words: Sequence[str], most: int = 4) -> str:
    """A label and what is to be known beside it."""
    return f"{label} ({', '.join([*words[:most], *(['…'] if len(words) > most else [])])})" if words else label


def _as_text(settings: Any) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _with_boundary(configs: Sequence[Mapping[str, Any]], flat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With what a task switch keeps. From scratch nothing is kept, whatever is set: such a run belongs to the
    sequences of its settings, and where these differ, to those that keep the most."""
    own = [flatten(config["settings"].get("boundary") or {}, "boundary.") for config in configs]
    sequences: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for config, settings, kept in zip(configs, flat, own, strict=True):
        if config["settings"]["protocol"] == "crl":
            sequences[_as_text(settings)].append(kept)
    every = [kept for some in sequences.values() for kept in some]
    found = []
    for config, settings, kept in zip(configs, flat, own, strict=True):
        if config["settings"]["protocol"] != "crl":
            kept = max(sequences[_as_text(settings)] or every or [{}], key=lambda one: sum(map(bool, one.values())))
        found.append(settings | kept)
    return found


def _differences(members: list[dict[str, Any]]) -> list[list[str]]:
    """What sets each of some settings apart from the others, in words."""
    every = sorted({name for one in members for name in one})
    apart = [name for name in every if len({_as_text(one.get(name, "not set")) for one in members}) > 1]
    last = [name.rsplit(".", 1)[-1] for name in apart]
    words = [
        # as in a text, not as on the command line; "optimiser no" says too little
        end.replace("_", " ") if last.count(end) == 1 and not full.startswith("boundary.") else full
        for full, end in zip(apart, last, strict=True)
    ]
    return [
        [f"{word} {spell(one.get(name, 'none'))}" for word, name in zip(words, apart, strict=True)] for one in members
    ]


def spell(value: Any) -> str:
    """A setting as people write it: 0.001, not 1e-3; a list as words."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float) and math.isfinite(value):
        return f"{int(value)}" if value.is_integer() and abs(value) < 1e15 else f"{value:g}"
    if isinstance(value, list | tuple):
        return " ".join(spell(one) for one in value)
    return str(value)
