"""`sphere experiment report`: an experiment's tables, figures and page, from its run directories."""

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from sphere.experiments.experiment import Experiment, Found, Scale
from sphere.report.elements import Markup, element, table
from sphere.report.figures import STYLE, save
from sphere.report.page import render, write
from sphere.report.tables import Table

WARNINGS: dict[Scale, str] = {
    "smoke": "SMOKE: a few steps of tiny networks on two tasks. It shows that everything from runs to page works; its "
    "numbers say nothing about any method.",
    "small": "SMALL: a tenth of the paper's steps per task, three seeds unless said otherwise; not comparable with its "
    "numbers.",
}


def write_results(name: str, experiment: Experiment, found: Found, out: Path) -> list[Path]:
    """Write tables/, figures/ and index.html into `out`; returns the files."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    warning = WARNINGS.get(found.scale, "")
    written: list[Path] = []
    with pyplot.rc_context(STYLE):
        results = experiment.results(found)
        for figure_name, figure in results.figures.items():
            if figure is not None:
                if warning:
                    figure.text(
                        0.5, 0.5, found.scale.upper(), fontsize=40, color="0.5", alpha=0.25, rotation=30, ha="center"
                    )
                written += save(figure, out / "figures" / figure_name)
    tables = [_marked(one, found.scale, warning) for one in results.tables]
    for one in tables:
        for form, text in (("txt", one.text()), ("md", one.markdown()), ("tex", one.latex()), ("csv", one.csv())):
            write(text, out / "tables" / f"{one.name}.{form}")
            written.append(out / "tables" / f"{one.name}.{form}")
    pictures = [path for path in written if path.suffix == ".svg"]
    # on the page the warning stands once, at the top; a file that travels alone carries its own
    shown = [_marked(one, found.scale, "") for one in results.tables]
    write(render(found.loaded, lead=[_section(name, experiment, warning, shown, pictures)]), out / "index.html")
    return [*written, out / "index.html"]


def _marked(one: Table, scale: Scale, warning: str) -> Table:
    if scale not in WARNINGS:
        return one
    return dataclasses.replace(one, title=f"[{scale}] {one.title}", note=f"{warning} {one.note}".strip())


def _section(
    name: str, experiment: Experiment, warning: str, tables: Sequence[Table], pictures: Sequence[Path]
) -> Markup:
    parts = [element("h2", f"{name}: {experiment.title}")]
    if warning:
        parts.append(element("p", element("strong", warning), class_="note"))
    for one in tables:
        parts += [element("h3", one.title), table(one)]
    for path in pictures:
        data = base64.b64encode(path.read_bytes()).decode()
        image = Markup(f'<img src="data:image/svg+xml;base64,{data}" alt="{path.stem}" style="max-width:100%">')
        parts.append(element("figure", image, element("figcaption", path.stem)))
    parts.append(element("p", f"In the paper: {experiment.source}. All records follow below.", class_="note"))
    return element("section", *parts, class_="plain", id="experiment")
