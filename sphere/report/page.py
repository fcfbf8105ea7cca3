"""The report: one self-contained HTML page, and tables and figures beside it."""

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sphere.report.chart_data import chart_data, dump
from sphere.report.comparison import Comparison, comparisons
from sphere.report.comparison_tables import tables
from sphere.report.curves import curves_csv
from sphere.report.elements import EMPTY, Markup, element, region, two_columns
from sphere.report.load import load
from sphere.report.names import spell
from sphere.report.run import Loaded, Run
from sphere.report.sections import section, suite_name
from sphere.report.tables import Table
from sphere.storage.files import atomic_write, flatten
from sphere.storage.provenance import devices
from sphere.storage.run_directory import EPISODES, METRICS
from sphere.training.progress import plural

HERE = Path(__file__).parent
FOOTER = "Made by sphere report from run directories alone."
SCRIPTS = ("charts.js", "bars.js", "page.js")
FILES = {"tables": ("txt", "md", "tex", "csv"), "figures": ("svg", "pdf", "png")}
"""What lies beside a page, by folder."""
RECORDS = ("fleet.json", "config.json", METRICS, EPISODES)
"""By which the directory of a fleet or of a run is known."""
MOST_LISTED = 30
MOST_ROWS = 60
"""Of a table that people read; a longer one is written as CSV alone."""

DEFINITIONS = (
    "A run is one sample. Its score on a task is the mean over the evaluation episodes right after that task's own "
    "training; its average is the mean over tasks. Mean, standard deviation (population), IQM (mean of the middle "
    "half) and IQR are over runs.",
    "Intervals are 95% bootstrap intervals over runs, widened for small numbers of runs; under CRL runs are "
    "resampled whole, under RL within each task. The probability of improvement is that of a random run of one "
    "method being better than one of the other on a random task, ties counting half.",
    "Continual World: average performance is the final policy's score over all tasks; forgetting is the score right "
    "after a task's training minus that at the end; forward transfer, of scores up to 1, is (AUC − AUC_ref) / (1 − "
    "AUC_ref), AUC the mean score over a task's own segment and ref the same method trained on that task alone.",
)

NO_SCRIPT = (
    "<noscript><p>Charts need JavaScript; the same figures lie beside this page in the folder figures, unless they "
    "were not asked for.</p></noscript>"
)


def render(loaded: Loaded, version: str = "", lead: Sequence[Markup] = ()) -> str:
    """The page as text. With a version it asks the server for a newer one every two seconds. `lead` comes first."""
    found = comparisons(loaded)
    script = Markup("".join((HERE / name).read_text("utf-8") for name in SCRIPTS))
    parts = [*lead, *(section(one, index) for index, one in enumerate(found))]
    parts += [runs_section(loaded), notes_section(loaded.notes), _definitions()]
    made = [_made(loaded, found), *([" · ", element("span", "live", id="live")] if version else [])]
    body = [
        element("header", element("h1", "Plasticity report"), element("p", *made, class_="soft"), class_="page"),
        element("main", Markup(NO_SCRIPT), *parts),
        element("footer", FOOTER),
        element("script", Markup(dump([chart_data(one) for one in found])), type="application/json", id="data"),
        element("script", script),
    ]
    page = element(
        "html", _head(_title(found), script), element("body", *body, data_version=version or False), lang="en"
    )
    return f"<!doctype html>{page}"


def _head(title: str, script: str) -> Markup:
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only this very script may run, whatever a name in a run directory says; nothing is loaded from anywhere.
    policy = (
        f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'),
        element("title", title),
        element("style", Markup((HERE / "page.css").read_text("utf-8"))),
    )


def _definitions() -> Markup:
    words = [element("p", text) for text in DEFINITIONS]
    return element("section", element("h2", "How the numbers are made"), *words, class_="plain", id="definitions")


def _title(found: Sequence[Comparison]) -> str:
    return "Plasticity report: " + ", ".join(dict.fromkeys(suite_name(one) for one in found))


def _made(loaded: Loaded, found: Sequence[Comparison]) -> str:
    left = f" · {plural(len(loaded.notes), 'note')} below" if loaded.notes else ""
    scores = ", ".join(dict.fromkeys(one.words.meaning for one in found))
    return f"{time.strftime('%Y-%m-%d %H:%M')} · {plural(len(loaded.runs), 'run')} · score: {scores}{left}"


# The runs themselves

COLUMNS = ("run", "method", "protocol", "seed", "steps", "state", "hours", "steps/s", "device", "settings", "versions")
SPEED = (
    "Hours and steps per second are a run's own, by the clock from evaluation to evaluation, pauses cut short. Runs "
    "of one fleet share a machine: their speeds add up, their hours do not."
)


def runs_section(loaded: Loaded) -> Markup:
    """Every run; settings and versions are numbered, and each is written out once for all runs that share it."""
    settings = _numbered([_settings(run) for run in loaded.runs])
    versions = _numbered([run.environment for run in loaded.runs])
    head = [element("th", name, scope="col", class_="words" if name == "method" else False) for name in COLUMNS]
    rows = [_row(run, *numbers) for run, *numbers in zip(loaded.runs, settings, versions, strict=True)]
    listing = element("table", element("thead", element("tr", *head)), element("tbody", *rows), class_="stack runs")
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
    cells = [element("td", run.method, class_="words", data_label="method")]
    cells += [element("td", text, data_label=name) for name, text in zip(COLUMNS[2:], rest, strict=True)]
    return element("tr", element("th", run.name, scope="row"), *cells)


def _settings(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.settings.items() if name != "seeds"}


def _numbered(values: Sequence[Any]) -> list[str]:
    keys = [json.dumps(value, sort_keys=True, default=str) for value in values]
    order = {key: str(number) for number, key in enumerate(dict.fromkeys(keys), 1)}
    return [order[key] for key in keys]


def _first(runs: Sequence[Run], numbers: Sequence[str]) -> list[tuple[str, Run]]:
    return [(number, runs[numbers.index(number)]) for number in dict.fromkeys(numbers)]


def _block(title: str, values: Any) -> Markup:
    listed = {name: spell(_shortened(value)) for name, value in flatten(values).items()}
    return element("details", element("summary", title), two_columns(listed))


def _shortened(value: Any) -> Any:
    """Of a long list its ends: 400 tasks are all in config.json."""
    if not isinstance(value, list) or len(value) <= MOST_LISTED:
        return value
    return [*value[:3], "…", value[-1], f"({len(value)})"]


def notes_section(notes: Sequence[str]) -> Markup:
    if not notes:
        return EMPTY
    items = [element("li", note) for note in notes]
    return element(
        "section", element("h2", "Left out"), element("ul", *items, class_="notes"), class_="plain", id="notes"
    )


# Files


def write(text: str, path: Path) -> None:
    """File names may hold bytes that are no text; they are shown escaped and never stop a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:  # half a page would be taken for somebody else's
        file.write(text.encode("utf-8", "backslashreplace"))


def write_table(table: Table, folder: Path) -> None:
    forms = {"csv": table.csv()}
    if len(table.rows) <= MOST_ROWS:
        forms |= {"txt": table.text(), "md": table.markdown(), "tex": table.latex()}
    for form, text in forms.items():
        write(text, folder / f"{table.name}.{form}")


def _clear(out: Path) -> None:
    """Remove tables and figures of the report that was here before; somebody else's page is left alone."""
    page = out / "index.html"
    if not page.exists():
        return
    if FOOTER not in page.read_text("utf-8", errors="replace"):
        raise ValueError(f"{page} was not made by sphere report; name another directory with -o")
    for folder, forms in FILES.items():
        for form in forms:
            for path in (out / folder).rglob(f"*.{form}"):
                path.unlink()
        for left in sorted((out / folder).glob("*-*/")):
            if not any(left.iterdir()):
                left.rmdir()


def write_report(paths: Sequence[Path], out: Path, score: str | None = None, figures: bool = True) -> Loaded:
    """index.html, curves.csv, tables/ and figures/ in `out`. `score`: a column of outcomes; else what records say."""
    loaded = load(paths, score)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; name a directory for the report with -o")
    if records := [name for name in RECORDS if (out / name).exists()]:
        raise ValueError(
            f"{out} holds records of training ({records[0]}); name another directory for the report with -o"
        )
    _clear(out)
    write(render(loaded), out / "index.html")
    write(curves_csv(loaded.runs), out / "curves.csv")
    for index, one in enumerate(found := comparisons(loaded)):
        folder = out / "tables" / ("" if len(found) == 1 else f"{index + 1}-{one.suite}")
        for table in tables(one):
            write_table(table, folder)
        if figures:
            from sphere.report.figures import write_figures  # matplotlib takes a second to import

            write_figures(one, out / "figures" / ("" if len(found) == 1 else f"{index + 1}-{one.suite}"))
    return loaded
