"""Figures of a comparison as SVG, PDF and PNG. Colours are Okabe and Ito's, told apart by colour-blind readers too."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from sphere.report.comparison import Comparison, band, load_map, metrics, retention, task_band
from sphere.report.metrics import DIRECTIONS, full_words, is_bounded, measure, metric_words
from sphere.report.names import short
from sphere.report.summary import averages
from sphere.report.tables import digits

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#7A6FF0")
DASHES = ("-", "--", ":", "-.")
STYLE: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.color": "0.9",
    "svg.fonttype": "path",
    "svg.hashsalt": "sphere",
    "pdf.fonttype": 42,
    "figure.dpi": 150,
}
FORMS: Mapping[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
"""Without dates: the same records give the same files."""


def write_figures(comparison: Comparison, folder: Path) -> list[Path]:
    """All figures that the records have the numbers for."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    written = []
    with pyplot.rc_context(STYLE):
        for name, figure in _figures(comparison).items():
            if figure is not None:
                written += save(figure, folder / name)
    return written


def save(figure: Any, path: Path) -> list[Path]:
    """One figure under three endings."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.parent / f"{path.name}.{form}" for form in FORMS]
    figure.canvas.draw()
    figure.set_layout_engine("none")  # the layout is found; finding it again for each form doubles the time
    for file, metadata in zip(files, FORMS.values(), strict=True):
        figure.savefig(file, metadata=metadata)
    pyplot.close(figure)
    return files


def _figures(comparison: Comparison) -> dict[str, Any]:
    found = {f"{comparison.words.word.replace(' ', '-')}-bars": score_bars(comparison)}
    for protocol in comparison.protocols:
        found[f"learning-curves-{protocol}"] = curves(comparison, protocol, comparison.score_curves)
        if comparison.many_tasks:
            found[f"by-task-{protocol}"] = by_task(comparison, protocol)
        runs = [run for run in comparison.runs if run.protocol == protocol]
        ranks = [n for n in metrics(runs) if n.endswith("/ntk_rank")]
        found[f"ntk-rank-{protocol}"] = curves(comparison, protocol, ranks)
        found[f"router-{protocol}"] = router(comparison, protocol)
        rest = [n for n in metrics(runs) if n.startswith("heldout/") and n != "heldout/ntk_rank"]
        found[f"diagnostics-{protocol}"] = curves(comparison, protocol, rest, columns=3)
    found["retention"] = None if comparison.many_tasks else retention_matrices(comparison)
    return found


def _colour(comparison: Comparison, method: str) -> tuple[str, Any]:
    return COLOURS[comparison.colour(method)], DASHES[comparison.dash(method)]


def score_bars(comparison: Comparison) -> Any:
    """Average score under RL (light) and CRL (full), intervals over runs, single runs, and the paper's number."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found = averages(comparison)
    if not found:
        return None
    methods = [m for m in comparison.methods if any(one.method == m for one in found)]
    figure, axis = pyplot.subplots(figsize=(max(4, 1.1 + 1.05 * len(methods)), 3.2), layout="constrained")
    for one in found:
        pair = len(comparison.protocols) > 1
        x = methods.index(one.method) + (0.2 if one.protocol == "crl" else -0.2) * pair
        light = 0.45 if pair and one.protocol == "rl" else 1.0
        axis.bar(x, one.mean.value, 0.36, color=_colour(comparison, one.method)[0], alpha=light)
        if np.isfinite([one.mean.low, one.mean.high]).all():
            axis.vlines(x, one.mean.low, one.mean.high, color="black", linewidth=1.2)
        spread = x + 0.1 * np.linspace(-1, 1, len(one.by_run)) * (len(one.by_run) > 1)
        axis.plot(spread, one.by_run, "o", markersize=3, markerfacecolor="white", color="0.25", markeredgewidth=0.8)
        if one.paper:
            axis.plot(x, one.paper.mean, "D", markersize=6, markerfacecolor="none", markeredgecolor="black")
    if comparison.words.bounded:
        axis.set_ylim(0, 1.05)
    axis.set_ylabel(f"average {comparison.words.word}")
    slanted = max(map(len, methods)) > 11
    axis.set_xticks(range(len(methods)), methods, rotation=30 if slanted else 0, ha="right" if slanted else "center")
    axis.grid(axis="x", visible=False)
    shades = {p: 0.45 if p == "rl" else 1 for p in comparison.protocols}
    keys: list[Any] = [Patch(color="0.5", alpha=shade, label=p.upper()) for p, shade in shades.items()]
    if any(one.paper for one in found):
        keys.append(Line2D([], [], marker="D", color="black", markerfacecolor="none", linestyle="", label="paper"))
    figure.legend(handles=keys, loc="outside upper right", ncols=3)
    return figure


def curves(comparison: Comparison, protocol: str, names: Sequence[str], columns: int = 1) -> Any:
    """Metrics over training: mean over runs, and a band from the lowest to the highest; a line ends where its task
    does."""
    from matplotlib import pyplot

    groups = [(m, runs) for m, p, runs in comparison.groups if p == protocol]
    bands = {name: [(m, one) for m, runs in groups if (one := band(runs, name))] for name in names}
    bands = {name: some for name, some in bands.items() if some}
    if not bands:
        return None
    columns = min(columns, len(bands))
    rows = -(-len(bands) // columns)
    size = (7.2, 2.1 * rows + 0.5) if columns == 1 else (3.1 * columns, 1.9 * rows + 0.5)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", sharex=True, squeeze=False)
    for axis, (name, some) in zip(axes.flat, bands.items(), strict=False):
        breaks = (name.startswith("evaluation/") or protocol == "rl") and not comparison.many_tasks
        for method, one in some:
            _draw_band(axis, one, *_colour(comparison, method), breaks)
        about, words = measure(name), full_words(name) if columns == 1 else metric_words(name)
        better = f" {DIRECTIONS[about.better]}"[: None if columns == 1 else 2] if about.better else ""
        axis.set_title(words + better, fontsize=9, loc="left")
        axis.set_ylabel(about.unit, fontsize=8)
        if is_bounded(name):
            axis.set_ylim(-0.03, 1.03)
        _tasks(axis, comparison, names=axis is axes[0, 0] and columns == 1)
    for axis in axes.flat[len(bands) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel(comparison.step_unit)
    _legend(figure, comparison, [m for m, _ in groups])
    return figure


def by_task(comparison: Comparison, protocol: str) -> Any:
    """The score right after each task's own training, by the number of the task."""
    from matplotlib import pyplot

    groups = [(m, runs) for m, p, runs in comparison.groups if p == protocol]
    bands = [(m, one) for m, runs in groups if (one := task_band(comparison, runs))]
    if not bands:
        return None
    figure, axis = pyplot.subplots(figsize=(7.2, 2.6), layout="constrained")
    for method, one in bands:
        _draw_band(axis, one, *_colour(comparison, method), breaks=False)
    if comparison.words.bounded:
        axis.set_ylim(-0.03, 1.03)
    axis.set(xlabel="task", ylabel=comparison.words.word)
    _legend(figure, comparison, [m for m, _ in groups])
    return figure


def _legend(figure: Any, comparison: Comparison, methods: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    styles = [(name, *_colour(comparison, name)) for name in methods]
    handles = [Line2D([], [], color=colour, linestyle=dash, label=name) for name, colour, dash in styles]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)))


def _draw_band(axis: Any, one: Any, colour: str, dash: str, breaks: bool) -> None:
    for task in sorted(set(one.task.tolist())) if breaks else [None]:
        own = np.ones(len(one.step), bool) if task is None else one.task == task
        axis.plot(
            one.step[own], one.mean[own], dash, color=colour, linewidth=1.6, marker="o" if own.sum() == 1 else None
        )
        axis.fill_between(one.step[own], one.low[own], one.high[own], color=colour, alpha=0.15, linewidth=0)


def _tasks(axis: Any, comparison: Comparison, names: bool) -> None:
    """Boundaries, the names of tasks above the axis if asked for, and steps as 40k."""
    length = max(run.task_steps for run in comparison.runs)
    seen = max(run.steps for run in comparison.runs)
    names, slanted = names and not comparison.many_tasks, len(comparison.tasks) > 5
    for index, task in enumerate(() if comparison.many_tasks else comparison.tasks):
        if index * length >= seen:
            break
        axis.axvline(index * length, color="0.5", linewidth=0.8, linestyle=":", zorder=1.5)
        if names:
            place: dict[str, Any] = {"rotation": 20, "ha": "left"} if slanted else {"ha": "center"}
            x = (index + (0.15 if slanted else 0.5)) * length
            axis.text(x, 1.03, short(task), transform=axis.get_xaxis_transform(), fontsize=7.5, color="0.35", **place)
    if names:
        axis.set_title(axis.get_title(loc="left"), fontsize=9, loc="left", pad=40 if slanted else 17)
    axis.grid(axis="x", visible=False)
    axis.xaxis.set_major_formatter(in_thousands)


def in_thousands(value: float, _: object = None) -> str:
    return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k" if value else "0"


def router(comparison: Comparison, protocol: str) -> Any:
    """Share of selections that each expert takes, over training; one map per method."""
    from matplotlib import pyplot

    groups = [(m, runs) for m, p, runs in comparison.groups if p == protocol]
    maps = [(m, one) for m, runs in groups if (one := load_map(runs))]
    if not maps:
        return None
    size = (7.2, 0.4 + 1.5 * len(maps))
    figure, axes = pyplot.subplots(len(maps), 1, figsize=size, layout="constrained", squeeze=False, sharex=True)
    most = max(float(np.nanmax(one.share)) for _, one in maps)
    for axis, (method, one) in zip(axes[:, 0], maps, strict=True):
        edges = np.concatenate([[one.step[0] - (one.step[1] - one.step[0] if len(one.step) > 1 else 1)], one.step])
        image = axis.pcolormesh(edges, np.arange(one.share.shape[0] + 1), one.share, vmin=0, vmax=most, cmap="Blues")
        axis.invert_yaxis()
        _tasks(axis, comparison, names=False)
        axis.grid(visible=False)
        every = max(1, one.share.shape[0] // 8)
        axis.set_yticks(np.arange(0, one.share.shape[0], every) + 0.5, range(1, one.share.shape[0] + 1, every))
        axis.set_ylabel("expert")
        axis.set_title(
            method + (f", mean of {one.runs} runs, experts by load" if one.runs > 1 else ""), fontsize=9, loc="left"
        )
    axes[-1, 0].set_xlabel(comparison.step_unit)
    figure.colorbar(image, ax=axes[:, 0], label="share of selections")
    return figure


def retention_matrices(comparison: Comparison) -> Any:
    """The score on every task after training on each, one matrix per method."""
    from matplotlib import pyplot

    found = [(m, t) for m in comparison.methods if (t := retention(comparison, comparison.group(m, "crl"))) is not None]
    if not found:
        return None
    names = [short(task) for task in comparison.tasks]
    columns = min(2 if len(names) > 5 else 3, len(found))
    rows, side = -(-len(found) // columns), 1.6 + 0.42 * len(names)
    size = (side * columns, side * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, (method, table) in zip(axes.flat, found, strict=False):
        low, high = (0, 1) if comparison.words.bounded else (np.nanmin(table), np.nanmax(table))
        axis.imshow(table, vmin=low, vmax=high, cmap="Blues")
        for (row, column), value in np.ndenumerate(table):
            if np.isfinite(value):
                ink = "black" if value < low + 0.6 * (high - low) else "white"
                axis.text(column, row, digits(value), ha="center", va="center", fontsize=7, color=ink)
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axis.set_yticks(range(len(names)), names)
        axis.set(title=method, xlabel=f"{comparison.words.word} on", ylabel="after training on")
        axis.grid(visible=False)
    return figure


def tsne_panels(panels: Mapping[str, Mapping[str, np.ndarray]], seed: int = 0) -> Any:
    """The paper's case study: method -> snapshot -> weighted features [state, feature] of the same held-out states.

    A row per method, a column per snapshot. A state has the colour of the right singular direction on which its
    features have the largest absolute projection. Needs scikit-learn.
    """
    from matplotlib import pyplot

    try:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise ValueError("t-SNE needs scikit-learn: pip install 'sphere-rl[tsne]'") from error
    columns = list(dict.fromkeys(name for snapshots in panels.values() for name in snapshots))
    shape = (len(panels), len(columns))
    figure, axes = pyplot.subplots(*shape, figsize=(2 * shape[1], 2.1 * shape[0]), layout="constrained", squeeze=False)
    for row, (method, snapshots) in enumerate(panels.items()):
        for axis, name in zip(axes[row], columns, strict=True):
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(name, fontsize=9)
            if name in snapshots:
                phi = np.asarray(snapshots[name], float)
                with threadpool_limits(1):  # more threads wait for one another by spinning
                    embedding = TSNE(perplexity=min(30, (len(phi) - 1) / 3), init="random", random_state=seed)
                    near = embedding.fit_transform(phi)
                axis.scatter(*near.T, c=dominant_direction(phi), cmap="tab10", vmin=0, vmax=9, s=4)
        axes[row, 0].set_ylabel(method)
    return figure


def dominant_direction(phi: np.ndarray) -> np.ndarray:
    """Of each row, the index of the right singular vector with the largest absolute projection."""
    return np.argmax(np.abs(phi @ np.linalg.svd(phi, full_matrices=False)[2].T), axis=1)
