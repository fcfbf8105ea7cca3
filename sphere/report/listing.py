"""The page's part on the runs themselves: each with its settings and versions, and what was left out."""

import json
from collections.abc import Sequence
from typing import Any

from sphere.report.elements import EMPTY, Markup, element, region, two_columns
from sphere.report.labels import flatten, spell
from sphere.report.run import Loaded, Run
from sphere.storage.provenance import devices
from sphere.training.progress import plural

COLUMNS = ("run", "method", "protocol", "seed", "steps", "state", "hours", "steps/s", "device", "settings", "versions")
SPEED = (
    "Hours and steps per second are a run's own, by the clock from evaluation to evaluation, pauses cut short. Runs of one "
    "fleet share a machine: their speeds add up, their hours do not."
)


def runs_section(loaded: Loaded) -> Markup:
    """Every run; settings and versions are numbered, and each is written out once for all runs that share it."""
    settings = _numbers([_settings(run) for run in loaded.runs])
    versions = _numbers([run.environment for run in loaded.runs])
    head = [element("th", name, scope="col", class_="words" if name == "method" else False) for name in COLUMNS]
    rows = [_row(run, *numbers) for run, *numbers in zip(loaded.runs, settings, versions, strict=True)]
    listing = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    blocks = [
        _block(
            f"Settings {n}, of {plural(settings.count(n), 'run')}: {run.method}, {run.protocol.upper()}", _settings(run)
        )
        for n, run in _first(loaded.runs, settings)
    ]
    blocks += [
        _block(f"Versions {n}, of {plural(versions.count(n), 'run')}", run.environment)
        for n, run in _first(loaded.runs, versions)
    ]
    heading = element("h2", "Runs, settings, versions")
    told = element("p", SPEED, class_="soft")
    return element("section", heading, region("runs", listing), told, *blocks, class_="plain", id="runs")


def _row(run: Run, settings: str, versions: str) -> Markup:
    state = "finished" if run.finished else "unfinished"
    speed = run.speed
    clock = ["–", "–"] if speed is None else [f"{run.steps / speed / 3600:.2f}", f"{speed:,.0f}"]
    kind = ", ".join(devices(run.environment)) or "not known"
    rest = [run.protocol.upper(), str(run.seed), f"{run.steps:,}", state, *clock, kind, settings, versions]
    cells = [element("td", run.method, class_="words"), *(element("td", text) for text in rest)]
    return element("tr", element("th", run.name, scope="row"), *cells)


def _settings(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.config.items() if name != "seeds"}


def _numbers(values: Sequence[Any]) -> list[str]:
    keys = [json.dumps(value, sort_keys=True, default=str) for value in values]
    order = {key: str(number) for number, key in enumerate(dict.fromkeys(keys), 1)}
    return [order[key] for key in keys]


def _first(runs: Sequence[Run], numbers: Sequence[str]) -> list[tuple[str, Run]]:
    return [(number, runs[numbers.index(number)]) for number in dict.fromkeys(numbers)]


def _block(title: str, values: Any) -> Markup:
    listed = {name: spell(value) for name, value in flatten(values).items()}
    return element("details", element("summary", title), two_columns(listed))


def notes_section(notes: Sequence[str]) -> Markup:
    if not notes:
        return EMPTY
    items = [element("li", note) for note in notes]
    return element(
        "section", element("h2", "Left out"), element("ul", *items, class_="notes"), class_="plain", id="notes"
    )
