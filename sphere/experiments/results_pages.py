"""`sphere experiment pages`: a page of results for every experiment, from records. Same records, same pages."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sphere.experiments import registry
from sphere.experiments.beside_runs import BESIDE, beside_lines, networks_tables, predictors_lines, repeat_lines
from sphere.experiments.experiment import Experiment, Found
from sphere.experiments.matching import Archive, effort, identities
from sphere.experiments.overview import WIDTH, headline, overview, prose, wrapped
from sphere.experiments.paper_claims import CLAIMS
from sphere.experiments.paper_items import items, labels
from sphere.experiments.results_tables import level_table, markdown, narrow, paper_tables
from sphere.experiments.verdicts import NOT_RUN, Judged, in_words, judge, printed_apart
from sphere.report.tables import Table
from sphere.training.progress import plural

LEVELS = ("-crl", "-rl", "-bars", "-archs")
"""Experiments whose numbers are the paper's averages."""
CAPTIONS = {
    "learning-curves": "Score and return on the task in training. Lines: mean over runs; bands: lowest to highest run.",
    "success-bars": "Average score. Bars: mean over runs; lines: 95% interval; circles: runs; diamonds: the paper.",
    "curves": "Over training. Lines: mean over runs; bands: lowest to highest run.",
    "over-tasks": "Task by task. Lines: mean over runs; bands: lowest to highest run.",
}
"""Of figures, by the end of their names; the first that fits. Other figures have their name only."""
COMMAND = "sphere experiment pages results -o docs/results"
MADE = f"<!-- Made by `{COMMAND}`. Do not edit; hand-written text is in notes/. -->"


class ExperimentRecords(NamedTuple):
    """An experiment and what there is of it."""

    experiment: Experiment
    paths: list[Path]
    repeats: list[Path]
    found: Found | None
    judged: list[Judged]


def results_of(records: Archive) -> dict[str, ExperimentRecords]:
    found = {}
    for name, experiment in registry().items():
        runs = records.found(experiment)
        judged = [judge(claim, runs, experiment.seeds) for claim in CLAIMS.get(name, ())]
        found[name] = ExperimentRecords(experiment, *records.belonging(experiment), runs, judged)
    return found


def write_pages(
    records: Archive, results: Mapping[str, ExperimentRecords], out: Path, figures: bool = True
) -> list[Path]:
    """All pages; `out`/notes has the hand-written texts. Returns the files."""
    written = []
    for name, result in results.items():
        tables, drawn = _results(name, result, out if figures else None)
        lines = _page(name, result, tables)
        for one in drawn:
            lines += [f"![{one.replace('-', ' ')}](figures/{one}.svg)", ""]
            lines += [wrapped(f"*{told}*") + "\n" for ending, told in CAPTIONS.items() if one.endswith(ending)][:1]
        lines += _more(name, result, records)
        note = out / "notes" / f"{name}.md"
        lines += ["## Notes", "", prose(note, records.root), ""] if note.exists() else []
        lines += _made(name, result, records)
        written.append(_write(lines, out / f"{name}.md"))
    judged = {name: result.judged for name, result in results.items()}
    return [_write(overview(judged, records.root, out), out / "index.md"), *written]


def _write(lines: Iterable[str], path: Path) -> Path:
    text = "\n".join(line.rstrip() for line in "\n".join([MADE, "", *lines]).splitlines()).rstrip() + "\n"
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


# Parts of a page


def _page(name: str, result: ExperimentRecords, tables: Sequence[Table]) -> list[str]:
    experiment, found, judged = result.experiment, result.found, result.judged
    numbers = {item.label: item.number for item in items()}
    source = " and ".join(f"{numbers[one]} (`{one}`)" for one in labels(experiment.source))
    lines = [f"# {experiment.title}", ""]
    lines += [wrapped(f"In the paper: {source}." if source else f"Not in the paper; after {experiment.source}."), ""]
    lines += [wrapped(f"**Verdict: {headline(judged)}.** {_main(judged)}"), ""]
    if judged:
        lines += ["## Claims", "", *(_claim(one, experiment.seeds) for one in judged), ""]
        lines += [wrapped("How a verdict is reached: [the rule](index.md#the-rule)."), ""]
    else:
        text = "This needs checkpoints, and the published records have none. So there is no verdict yet."
        lines += [wrapped(text), ""]
    lines += ["## Ours beside the paper's" if found else "## The paper's numbers", ""]
    levels = [level_table(found)] if found and name.endswith(LEVELS) else []
    shown = [*tables, *levels] if found else paper_tables(name, experiment)
    for table in shown:
        lines += [markdown(one, WIDTH) for one in narrow(table) if one.rows]
    if not shown:
        lines += ["The paper prints no numbers for this figure.", ""]
    return lines


def _main(judged: Sequence[Judged]) -> str:
    if not judged:
        return "No records."
    looked = [one for one in judged if one.verdict != NOT_RUN]
    words = f"{len(looked)} of {plural(len(judged), 'claim')} {'has' if len(looked) == 1 else 'have'} runs."
    if not looked:
        return f"{words} {judged[0].reason}"
    first = looked[0]
    return " ".join([words, f"The first: {first.claim.text}.", in_words(first), first.reason])


def _claim(one: Judged, seeds: int) -> str:
    words = [f"**{one.claim.text}: {one.verdict}.**", in_words(one), one.reason]
    if one.effect is not None:
        words.append(f"Runs: {', '.join(map(str, one.runs))}.")
    if one.claim.printed is not None and len(one.claim.printed) == 2:
        apart = printed_apart(one.claim.printed[0], one.claim.printed[1], seeds)
        if apart is not None:
            words.append(f"The paper's own difference is {'' if apart else 'not '}significant ({seeds} seeds).")
    return wrapped(" ".join(word for word in words if word), "- ", "  ")


def _results(name: str, result: ExperimentRecords, out: Path | None) -> tuple[Sequence[Table], list[str]]:
    """The experiment's own tables, and the names of its figures, which are drawn into `out`."""
    found = result.found
    if found is None:
        return (), []
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    from sphere.report.figures import FORMS, STYLE

    with pyplot.rc_context(STYLE):
        results = result.experiment.results(found)
        drawn = {f"{name}-{key}": figure for key, figure in results.figures.items() if figure is not None}
        if out is not None:
            (out / "figures").mkdir(parents=True, exist_ok=True)
            for key, figure in drawn.items():
                figure.savefig(out / "figures" / f"{key}.svg", metadata=FORMS["svg"])
        pyplot.close("all")
    kept = [one for one in results.tables if not one.name.endswith(("-averages", "-against"))]  # levels and claims
    return kept, sorted(drawn)


def _more(name: str, result: ExperimentRecords, records: Archive) -> list[str]:
    """What else the records of this suite and protocol say."""
    experiment, paths, repeats, found, _ = result
    lines: list[str] = []
    if found and name in ("metaworld-ntk", "ntk-heldout"):
        lines += ["## At the end of each task", ""]
        lines += [markdown(one, WIDTH) for one in networks_tables(found)]
    if found and name == "metaworld-crl":
        lines += [wrapped(line) if line else "" for line in predictors_lines(found)]
    suite, _, protocol = name.rpartition("-")
    if protocol not in ("crl", "rl"):
        return lines
    if found and repeats:
        told = repeat_lines(CLAIMS[name][0], found, records.found(experiment, repeat=True))
        lines += [line if line.startswith("|") else wrapped(line) for line in told]
    beside = [
        path
        for path, record in records.records.items()
        if (record.config["suite"], record.config["settings"]["protocol"]) == (suite, protocol)
        and path not in {*paths, *repeats}
    ]
    if beside or repeats:
        told = beside_lines(experiment, records, beside, repeats)
        lines += [
            "## Records that are not counted",
            "",
            wrapped(BESIDE),
            "",
            *(wrapped(one, "- ", "  ") for one in told),
            "",
        ]
    return lines


def _made(name: str, result: ExperimentRecords, records: Archive) -> list[str]:
    """The command, the device and the time."""
    experiment, paths, _, found, _ = result
    configs = identities(experiment).values()
    runs = len(configs) * experiment.seeds
    steps = sum(config.task_steps * len(config.tasks) for config in configs) * experiment.seeds
    lines = ["## How to reproduce it", "", "```sh"]
    only = ""
    if found:
        have = list(dict.fromkeys(run.method for run in found.loaded.runs))
        chosen = [label for label in experiment.labels if label in have]
        if chosen != experiment.labels:
            only = " --only " + " ".join(f'"{one}"' if " " in one else one for one in chosen)
    lines += [f"sphere experiment run {name} --scale paper{only}", COMMAND, "```", ""]
    lines += [wrapped(f"The whole experiment is {plural(runs, 'run')} of {_million(steps)} million steps in all."), ""]
    if not found:
        return lines
    for one in effort(records.records[path] for path in paths):
        text = (
            f"{one.device}: {plural(one.runs, 'run')}, {one.hours:.1f} hours ({one.run_hours:.1f} added up over runs)."
        )
        lines.append(wrapped(text, "- ", "  "))
    folders = Counter(records.short(path).split("/")[0] for path in paths)
    told = ", ".join(f"`results/{folder}` ({count})" for folder, count in sorted(folders.items()))
    code = sorted({code_of(records.records[path].environment) for path in paths})
    lines += ["", wrapped(f"Records: {told}. Started with {', '.join(code)}.")]
    return lines


def code_of(environment: Mapping[str, Any]) -> str:
    """The code that a run began with. A copy outside of a checkout knows its version only."""
    commit = (environment.get("git") or {}).get("commit")
    return (
        f"commit {commit[:7]}" if commit else f"version {environment['versions']['sphere-rl']}, in a copy without git"
    )


def _million(steps: int) -> str:
    return f"{steps / 1e6:,.0f}" if steps >= 1e7 else f"{steps / 1e6:.1f}"
