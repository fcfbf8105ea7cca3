"""Whether the lines of a record can be true: types, ranges, order, and means that agree with their episodes.

A line that a person or a disk has changed is found here if it breaks a rule. One that keeps all of them is found by
its checksum (`checksums.py`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sphere.storage.files import NON_FINITE
from sphere.storage.run_directory import EPISODE_FIELDS, EVENT_FIELDS

KINDS = ("evaluation", "retention", "final")
"""When an episode was played: during a task, at a task boundary, at the end of the sequence."""

RANGES = {"length": (0.0, math.inf), "accuracy": (0.0, 1.0)}
"""Of columns with a range of their own; any that begins with "success" is 0 or 1."""

ROUNDING = 1e-5
"""Relative difference of a mean, computed in float32, from that of the episodes in float64."""

Line = Mapping[str, Any]
Group = tuple[int, int, str]
"""Step, task index and kind of an evaluation."""


class Unreadable(ValueError):
    """A directory that is no run of ours, or a damaged one."""


FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("learner", "method", "label", "suite", "score"), str),
    **dict.fromkeys(("task_steps", "seed"), int),
    **dict.fromkeys(("columns", "varies"), list),
    **dict.fromkeys(("numbers", "settings"), dict),
}
"""What a reader takes from config.json, and its type."""


def check_config(config: Mapping[str, Any]) -> None:
    """config.json in today's format: all that a reader takes from it is there and can be true."""
    for name, kind in FIELDS.items():
        if not isinstance(config.get(name), kind) or isinstance(config[name], bool):
            raise Unreadable(
                f"config.json has {name} {config.get(name)!r:.60}, wanted {getattr(kind, '__name__', kind)}"
            )
    if not all(isinstance(name, str) for name in (*config["columns"], *config["varies"])):
        raise Unreadable("config.json has columns or varies that are not names")
    if config["score"] not in config["columns"]:
        raise Unreadable(f"config.json has score {config['score']!r}, which is none of {', '.join(config['columns'])}")
    _integer("config.json", "task_steps", config["task_steps"], 1, 2**53)
    _integer("config.json", "seed", config["seed"], 0, 2**32 - 1)
    for name, value in config["numbers"].items():
        if not math.isfinite(number("config.json", name, value)):
            raise Unreadable(f"config.json has {name} {value}, wanted a finite number")
    if not isinstance(config.get("choices", {}), dict):
        raise Unreadable(f"config.json has choices {config['choices']!r:.60}, wanted settings by name")
    _check_settings(config["settings"])
    _check_sizes(config)


def _check_sizes(value: Any) -> None:
    """No number is so large that nothing can be computed with it."""
    if isinstance(value, int) and abs(value) > 10**300:
        raise Unreadable(f"config.json has a number of {len(str(abs(value)))} digits")
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_sizes(one)


def _check_settings(settings: Mapping[str, Any]) -> None:
    tasks = settings.get("tasks")
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise Unreadable(f"config.json has tasks {tasks!r:.60}, wanted a list of names")
    if settings.get("protocol") not in ("crl", "rl"):
        raise Unreadable(f"config.json has protocol {settings.get('protocol')!r:.40}, wanted crl or rl")
    _integer("config.json", "steps_per_task", settings.get("steps_per_task"), 1, 2**53)
    for name in ("boundary", "evaluation", "learner", "source"):
        if not isinstance(settings.get(name) or {}, dict):
            raise Unreadable(f"config.json has {name} {settings[name]!r:.60}, wanted settings by name")
    methods = (settings.get("learner") or {}).get("methods") or {}
    if not isinstance(methods, dict) or not all(isinstance(one or {}, dict) for one in methods.values()):
        raise Unreadable(f"config.json has methods {methods!r:.60}, wanted settings by name")


def number(where: str, name: str, value: Any) -> float:
    """One number as records write it."""
    if isinstance(value, str):
        value = NON_FINITE.get(value, value)
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            pass
    raise Unreadable(f"{where} has {name} {value!r:.40}, wanted a number")


def _integer(where: str, name: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise Unreadable(f"{where} has {name} {value!r:.40}, wanted a whole number from {low} to {high}")
    return value


def _of_task(where: str, line: Line, tasks: Sequence[str]) -> int:
    """Old lines have no task_index; there a name must do."""
    task, index = line.get("task"), line.get("task_index")
    if type(index) is int and 0 <= index < len(tasks) and tasks[index] == task:
        return index
    if task not in tasks:
        raise Unreadable(f"{where} has the task {task!r:.60}, which config.json does not name")
    if "task_index" in line:
        raise Unreadable(f"{where} has the task {task} with task_index {index!r:.20}")
    if tasks.count(task) > 1:
        raise Unreadable(f"{where} does not say which visit of {task} it belongs to")
    return tasks.index(task)


def _rising(name: str, lines: Sequence[Line], last: int) -> None:
    before = 0
    for place, line in enumerate(lines, 1):
        step = _integer(f"{name}, line {place}", "step", line.get("step"), 0, last)
        if step < before:
            raise Unreadable(f"{name}, line {place} has step {step} after {before}; steps rise")
        before = step


def check_events(name: str, events: Sequence[Line], tasks: Sequence[str], last: int) -> None:
    """Lines of metrics.jsonl. `last`: the highest step there can be.

    Only success is never NaN: other scores of a run that diverged may be, and a diagnostic that does not apply is. What
    training measures may be infinite too: a run that diverges says so in its last lines.
    """
    _rising(name, events, last)
    for place, event in enumerate(events, 1):
        where = f"{name}, line {place}"
        _of_task(where, event, tasks)
        if not math.isfinite(number(where, "wall", event.get("wall"))):
            raise Unreadable(f"{where} has wall {event['wall']}, wanted the time in seconds")
        for metric, value in event.items():
            if metric in EVENT_FIELDS or (type(value) is float and math.isfinite(value)):
                continue
            found, (prefix, _, column) = number(where, metric, value), metric.partition("/")
            if prefix != "train" and (
                math.isinf(found) or (prefix in KINDS and not _possible(column, found, mean=True))
            ):
                raise Unreadable(f"{where} has {metric} {value!r:.40}, wanted a finite number in its range")


def check_episodes(
    name: str, lines: Sequence[Line], tasks: Sequence[str], columns: Iterable[str], seed: int, last: int
) -> None:
    """Lines of episodes.jsonl: each once, of this seed, with all its columns."""
    _rising(name, lines, last)
    seen = set()
    for place, line in enumerate(lines, 1):
        where = f"{name}, line {place}"
        index = _of_task(where, line, tasks)
        if missing := [one for one in (*EPISODE_FIELDS, *columns) if one not in line and one != "task_index"]:
            raise Unreadable(f"{where} has no {', '.join(missing)}")
        if line["kind"] not in KINDS:
            raise Unreadable(f"{where} has kind {line['kind']!r:.40}, wanted {', '.join(KINDS)}")
        if line["seed"] != seed:
            raise Unreadable(f"{where} has seed {line['seed']!r:.40}, and config.json {seed}")
        key = line["step"], index, line["kind"], _integer(where, "episode", line["episode"], 0, 2**31)
        if key in seen:
            raise Unreadable(f"{where} is an episode that an earlier line has already")
        seen.add(key)
        for column in columns:
            _check_outcome(where, column, line[column])


def _check_outcome(where: str, column: str, value: Any) -> None:
    if not _possible(column, number(where, column, value)):
        low, high = RANGES.get(column, (-math.inf, math.inf))
        wanted = "0 or 1" if column.startswith("success") else f"a finite number from {low:g} to {high:g}"
        raise Unreadable(f"{where} has {column} {value!r:.40}, wanted {wanted}")


def _possible(column: str, value: float, mean: bool = False) -> bool:
    """Whether an outcome, or a mean of such, can have that value. NaN is how a run that diverged writes it."""
    if column.startswith("success"):
        return 0 <= value <= 1 if mean else value in (0, 1)
    low, high = RANGES.get(column, (-math.inf, math.inf))
    return math.isnan(value) or (math.isfinite(value) and low <= value <= high)


def check_means(events: Sequence[Line], episodes: Sequence[Line], tasks: Sequence[str], columns: Iterable[str]) -> None:
    """What metrics.jsonl says of an evaluation is the mean of its episodes, and neither record lacks one. Only the last
    evaluation may have episodes and no mean: it is being written, or the run was killed."""
    groups: dict[Group, list[Line]] = {}
    for line in episodes:
        groups.setdefault((line["step"], _of_task("", line, tasks), line["kind"]), []).append(line)
    open_groups = dict.fromkeys(groups)
    for event in events:
        for kind in dict.fromkeys(name.split("/")[0] for name in event if name.split("/")[0] in KINDS):
            group = (event["step"], _of_task("", event, tasks), kind)
            if group not in groups:
                raise Unreadable(
                    f"episodes.jsonl has no episodes of the {kind} at step {event['step']} of {event['task']}"
                )
            open_groups.pop(group, None)
            for column in columns:
                if f"{kind}/{column}" in event:
                    _check_mean(f"{kind}/{column}", event, [float(line[column]) for line in groups[group]])
    lost = [group for group in open_groups if group != next(reversed(groups))]
    if lost:
        raise Unreadable(f"metrics.jsonl has no line of the {lost[0][2]} at step {lost[0][0]}, and episodes.jsonl has")


def _check_mean(name: str, event: Line, values: list[float]) -> None:
    mean, said = sum(values) / len(values), float(event[name])  # of few numbers, where numpy takes ten times as long
    if math.isnan(mean) != math.isnan(said) or abs(mean - said) > ROUNDING * max(map(abs, values)):
        raise Unreadable(
            f"metrics.jsonl says {name} {event[name]} at step {event['step']} of {event['task']}, and the mean of its "
            f"{len(values)} episodes is {mean:.6g}"
        )
