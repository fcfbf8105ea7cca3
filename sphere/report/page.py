"""The report: one self-contained HTML page, and tables and figures beside it."""

import base64
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from sphere.report.comparison_tables import tables
from sphere.report.elements import Markup, element
from sphere.report.listing import notes_section, runs_section
from sphere.report.load import load
from sphere.report.payload import dump, payload
from sphere.report.run import Loaded
from sphere.report.sections import section, suite_name
from sphere.report.select import Success
from sphere.report.summary import Comparison, comparisons
from sphere.storage.run_directory import EPISODES, METRICS
from sphere.training.progress import plural

HERE = Path(__file__).parent
FOOTER = "Made by sphere report from run directories alone."
FILES = {"tables": ("txt", "md", "tex", "csv"), "figures": ("svg", "pdf", "png")}
"""What lies beside a page, by folder."""
RECORDS = ("fleet.json", "config.json", METRICS, EPISODES)
"""By which the directory of a fleet or of a run is known."""

DEFINITIONS = (
    "A run is one sample. Its success on a task is the mean over the evaluation episodes right after that task's own "
    "training; its average is the mean over tasks. Mean, standard deviation (population), IQM (mean of the middle half) and "
    "IQR are over runs.",
    "Intervals are 95% bootstrap intervals over runs, widened for small numbers of runs; under CRL runs are resampled whole, "
    "under RL within each task. The probability of improvement is that of a random run of one method being better than one "
    "of the other on a random task, ties counting half.",
    "Continual World: average performance is the final policy's success over all tasks; forgetting is success right after a "
    "task's training minus success at the end; forward transfer is (AUC − AUC_ref) / (1 − AUC_ref), AUC the mean success over "
    "a task's own segment and ref the same method trained on that task alone.",
)

NO_SCRIPT = (
    "<noscript><p>Charts need JavaScript; the same figures lie beside this page in the folder figures, unless they were not "
    "asked for.</p></noscript>"
)


def render(loaded: Loaded, success: Success = "at-end", version: str = "", lead: Sequence[Markup] = ()) -> str:
    """The page as text. With a version it asks the server for a newer one every two seconds. `lead` comes first."""
    found = comparisons(loaded, success)
    script = Markup((HERE / "charts.js").read_text() + (HERE / "page.js").read_text())
    parts = [*lead, *(section(one, index) for index, one in enumerate(found))]
    parts += [runs_section(loaded), notes_section(loaded.notes), _definitions()]
    made = [_made(loaded, success), *([" · ", element("span", "live", id="live")] if version else [])]
    body = [
        element("header", element("h1", "Plasticity report"), element("p", *made, class_="soft"), class_="page"),
        element("main", Markup(NO_SCRIPT), *parts),
        element("footer", FOOTER),
        element("script", Markup(dump([payload(one) for one in found])), type="application/json", id="data"),
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
        element("style", Markup((HERE / "page.css").read_text())),
    )


def _definitions() -> Markup:
    words = [element("p", text) for text in DEFINITIONS]
    return element("section", element("h2", "How the numbers are made"), *words, class_="plain", id="definitions")


def _title(found: Sequence[Comparison]) -> str:
    return "Plasticity report: " + ", ".join(dict.fromkeys(suite_name(one) for one in found))


def _made(loaded: Loaded, success: Success) -> str:
    count = len(loaded.runs)
    words = {"at-end": "at the last step of an episode", "once": "at any step of an episode"}
    left = f" · {plural(len(loaded.notes), 'note')} below" if loaded.notes else ""
    return f"{time.strftime('%Y-%m-%d %H:%M')} · {plural(count, 'run')} · success: {words[success]}{left}"


def write(text: str, path: Path) -> None:
    """File names may hold bytes that are no text; they are shown escaped and never stop a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "backslashreplace"))


def _clear(out: Path) -> None:
    """Remove tables and figures of the report that was here before; somebody else's page is left alone."""
    page = out / "index.html"
    if not page.exists():
        return
    if FOOTER not in page.read_text(errors="replace"):
        raise ValueError(f"{page} was not made by sphere report; name another directory with -o")
    for folder, forms in FILES.items():
        for form in forms:
            for path in (out / folder).rglob(f"*.{form}"):
                path.unlink()
        for left in sorted((out / folder).glob("*-*/")):
            if not any(left.iterdir()):
                left.rmdir()


def write_report(paths: Sequence[Path], out: Path, success: Success = "at-end", figures: bool = True) -> Loaded:
    """index.html, tables/ and figures/ in `out`."""
    loaded = load(paths)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; name a directory for the report with -o")
    if records := [name for name in RECORDS if (out / name).exists()]:
        raise ValueError(
            f"{out} holds records of training ({records[0]}); name another directory for the report with -o"
        )
    _clear(out)
    write(render(loaded, success), out / "index.html")
    for index, one in enumerate(found := comparisons(loaded, success)):
        folder = out / "tables" / ("" if len(found) == 1 else f"{index + 1}-{one.suite}")
        for table in tables(one):
            for form, text in (
                ("txt", table.text()),
                ("md", table.markdown()),
                ("tex", table.latex()),
                ("csv", table.csv()),
            ):
                write(text, folder / f"{table.name}.{form}")
        if figures:
            from sphere.report.figures import write_figures  # matplotlib takes a second to import

            write_figures(one, out / "figures" / ("" if len(found) == 1 else f"{index + 1}-{one.suite}"))
    return loaded
