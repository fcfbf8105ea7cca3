"""The tables of docs/streams.md, number by number, from the records in `results/`."""

import json
import re
from functools import cache
from pathlib import Path
from statistics import fmean, pstdev

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "streams.md").read_text()
COLUMNS = ("evaluation/accuracy_of_all", "evaluation/accuracy_within_task", "heldout/feature_norm", "heldout/ntk_rank")
FORMS = (".3f", ".3f", ".1f", ".1f", ".1f")
STREAMS = {  # first cells of a row -> runs, seeds, tasks, which of both scores is the paper's
    ("CIFAR-100, MLP", "fine-tune"): ("cifar100-mlp/rho0", 5, 20, 0),
    ("CIFAR-100, MLP", "SPHERE"): ("cifar100-mlp/rho0.1", 5, 20, 0),
    ("CIFAR-100, ViT", "fine-tune"): ("cifar100-vit/rho0", 5, 20, 0),
    ("CIFAR-100, ViT", "SPHERE"): ("cifar100-vit/rho0.1", 5, 20, 0),
    ("20 Newsgroups", "fine-tune"): ("newsgroups/rho0", 10, 400, 1),
    ("20 Newsgroups", "SPHERE"): ("newsgroups/rho0.1", 10, 400, 1),
}
OTHER_FORMS = {
    (form, method): f"newsgroups-{preset}/rho{rho}"
    for form, preset in (
        ("softmax over all experts", "all"),
        ("LayerNorm after each part", "post-ln"),
        ("as PyTorch's own modules", "plain"),
    )
    for method, rho in (("fine-tune", "0"), ("SPHERE", "0.1"))
}
PARTS = {
    "LayerNorm after each part": "newsgroups-post-ln/rho0",
    "with longer word vectors": "newsgroups-parts/vectors/rho0",
    "with padding that counts": "newsgroups-parts/padding/rho0",
    "with both": "newsgroups-plain/rho0",
}
CONTROLS = {
    "fine-tune, weight decay 0.01": "cifar100-mlp/rho0",
    "weight decay 0.3": "cifar100-mlp-controls/rho0-weight_decay0.3",
    "weight decay 1.0": "cifar100-mlp-controls/rho0-weight_decay1",
    r"a penalty on \|\|A\|\| alone, rho 0.1": "cifar100-mlp-controls/rho0.1",
    "SPHERE, rho 0.1": "cifar100-mlp/rho0.1",
}


def run(name: str, tasks: int, first: int | None = None) -> list[float]:
    """Means over the evaluations after each task, or the first of them, and r_e(K) at the last."""
    lines = evaluations(name)[:first]
    assert len(lines) == (first or tasks)
    ranks = [line[COLUMNS[3]] for line in lines if COLUMNS[3] in line]
    return [*(fmean(line[name] for line in lines if name in line) for name in COLUMNS), ranks[-1]]


def evaluations(name: str) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (ROOT / "results" / name / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if COLUMNS[0] in line]


@cache
def values(runs: str, seeds: int, tasks: int) -> tuple[tuple[float, float], ...]:
    """Mean and deviation over seeds of every column."""
    columns = zip(*(run(f"{runs}-seed{seed}", tasks) for seed in range(seeds)), strict=True)
    return tuple((fmean(column), pstdev(column)) for column in columns)


def numbers(runs: str, seeds: int, tasks: int) -> list[str]:
    """As the page has them."""
    return [f"{mean:{form}} ± {sd:{form}}" for (mean, sd), form in zip(values(runs, seeds, tasks), FORMS, strict=True)]


def first_tasks(tasks: int) -> list[str]:
    """Of text: accuracy over the first tasks and r_e(K) after them, of both methods."""
    runs = [[evaluations(f"newsgroups/rho{rho}-seed{seed}")[:tasks] for seed in range(10)] for rho in ("0", "0.1")]
    scores = [[fmean(line[COLUMNS[1]] for line in one) for one in method] for method in runs]
    ranks = [[one[-1][COLUMNS[3]] for one in method] for method in runs]
    both = [(column, form) for columns, form in ((scores, ".3f"), (ranks, ".1f")) for column in columns]
    return [f"{fmean(column):{form}} ± {pstdev(column):{form}}" for column, form in both]


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


def tables() -> list[list[list[str]]]:
    """Of the page's results; an empty first cell is that of the row above."""
    found: list[list[list[str]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", PAGE[PAGE.index("## Results") : PAGE.index("## Speed")], re.MULTILINE):
        rows = [cells(row) for row in block.splitlines()][2:]
        for row, above in zip(rows[1:], rows, strict=False):
            row[0] = row[0] or above[0]
        found.append(rows)
    return found


SCORES, FEATURES, OF_FORMS, OF_PARTS, FIRST, OF_CONTROLS = tables()
TASKS = (40, 100, 200, 400)


@pytest.mark.parametrize("key", STREAMS, ids=" ".join)
def test_streams(key):
    runs, seeds, tasks, paper = STREAMS[key]
    want = numbers(runs, seeds, tasks)
    scores = [f"*{cell}*" if place == paper else cell for place, cell in enumerate(want[:2])]
    assert [row[2:5] for row in SCORES if tuple(row[:2]) == key] == [[str(seeds), *scores]]
    assert [row[2:5] for row in FEATURES if tuple(row[:2]) == key] == [want[2:]]


@pytest.mark.parametrize("key", OTHER_FORMS, ids=" ".join)
def test_other_forms_of_the_text_network(key):
    assert [row[2:] for row in OF_FORMS if tuple(row[:2]) == key] == [numbers(OTHER_FORMS[key], 10, 400)]


def of_first_seed(runs: str) -> list[str]:
    return [format(value, form) for value, form in zip(run(f"{runs}-seed0", 400, 399), FORMS, strict=True)]


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_the_form_that_pytorch_has(name):
    assert [row[1:] for row in OF_PARTS if row[0] == name] == [of_first_seed(PARTS[name])]


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_of_splitcifar(name):
    assert [row[1:] for row in OF_CONTROLS if row[0] == name] == [numbers(CONTROLS[name], 5, 20)]


def test_the_first_tasks_of_text():
    assert [[str(tasks), *first_tasks(tasks)] for tasks in TASKS] == FIRST


def test_no_row_is_without_records():
    assert {tuple(row[:2]) for row in SCORES} == {tuple(row[:2]) for row in FEATURES} == set(STREAMS)
    assert {tuple(row[:2]) for row in OF_FORMS} == set(OTHER_FORMS)
    assert {row[0] for row in OF_PARTS} == set(PARTS)
    assert {row[0] for row in OF_CONTROLS} == set(CONTROLS)


def accounted() -> set[str]:
    """Every number that the records give for the page."""
    found = [cell for runs, seeds, tasks, _ in STREAMS.values() for cell in (str(seeds), *numbers(runs, seeds, tasks))]
    found += [cell for runs in OTHER_FORMS.values() for cell in numbers(runs, 10, 400)]
    found += [cell for runs in PARTS.values() for cell in of_first_seed(runs)]
    found += [cell for runs in CONTROLS.values() for cell in numbers(runs, 5, 20)]
    found += [cell for tasks in TASKS for cell in (str(tasks), *first_tasks(tasks))]
    return {number for cell in found for number in cell.split(" ± ")}


def test_what_is_said_of_the_tables():
    """The sentences, in their order; scores are the paper's."""

    def of(stream: str, method: str) -> tuple[float, float]:
        runs, seeds, tasks, paper = STREAMS[stream, method]
        return values(runs, seeds, tasks)[paper]

    gain = {stream: of(stream, "SPHERE")[0] - of(stream, "fine-tune")[0] for stream, _ in STREAMS}
    assert gain["CIFAR-100, MLP"] > 0.2 > 0.02 > gain["20 Newsgroups"] > 0 > gain["CIFAR-100, ViT"]
    assert abs(of("CIFAR-100, ViT", "fine-tune")[0] - 0.52) < 0.02  # what the paper has for SPHERE
    assert of("20 Newsgroups", "fine-tune")[0] / 0.17 == pytest.approx(3, abs=0.1)
    little, after, padded = (
        values(OTHER_FORMS[form, "SPHERE"], 10, 400)[1][0] / values(OTHER_FORMS[form, "fine-tune"], 10, 400)[1][0]
        for form in dict.fromkeys(form for form, _ in OTHER_FORMS)
    )
    assert 1 < little < 1.05 < 1.4 < after < padded  # of softmax over all, of the others, against the paper's 1.59
    plain, _, decay, norm, ours = (values(runs, 5, 20) for runs in CONTROLS.values())
    assert 0 < ours[0][0] - norm[0][0] < norm[0][1]  # less than the deviation over seeds
    assert norm[2][0] == pytest.approx(ours[2][0], rel=0.05)  # features as short
    assert (decay[0][0] - plain[0][0]) / (ours[0][0] - plain[0][0]) > 0.7  # most of the way
    assert decay[3][0] < plain[3][0] < ours[3][0]  # r_e(K) on average
    assert all(abs(ours[1][0] - other[1][0]) < 0.01 for other in (decay, norm))
