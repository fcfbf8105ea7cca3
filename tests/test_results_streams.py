"""The tables of docs/streams.md, number by number, from the records in `results/`."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "streams.md").read_text()
COLUMNS = ("evaluation/accuracy_of_all", "evaluation/accuracy_within_task", "heldout/feature_norm", "heldout/ntk_rank")
CONTROLS = {
    "no penalty, weight decay 0.01": "cifar100-mlp/rho0-seed0",
    "no penalty, weight decay 0.3": "cifar100-mlp-controls/rho0-weight_decay0.3-seed0",
    "no penalty, weight decay 1.0": "cifar100-mlp-controls/rho0-weight_decay1-seed0",
    r"a penalty on \|\|A\|\| alone, rho 0.1": "cifar100-mlp-controls/rho0.1-seed0",
    "SPHERE, rho 0.1": "cifar100-mlp/rho0.1-seed0",
}


def numbers(run: str) -> list[str]:
    """As the page has them: means over the evaluations after each task, and r_e(K) at the last."""
    lines = [json.loads(line) for line in (ROOT / "results" / run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if COLUMNS[0] in line]
    assert len(lines) == 20
    means = [sum(line[name] for line in lines) / 20 for name in COLUMNS]
    return [f"{means[0]:.3f}", f"{means[1]:.3f}", f"{means[2]:.1f}", f"{means[3]:.1f}", f"{lines[-1][COLUMNS[3]]:.1f}"]


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


ROWS = [cells(row) for row in PAGE.splitlines() if row.startswith("|")]


@pytest.mark.parametrize("rho", ["0", "0.1"])
def test_every_seed_of_splitcifar_is_in_the_table(rho):
    first = next(i for i, row in enumerate(ROWS) if row[:2] == [{"0": "Fine-tune", "0.1": "SPHERE, rho 0.1"}[rho], "0"])
    for seed in range(5):
        assert ROWS[first + seed][1:] == [str(seed), *numbers(f"cifar100-mlp/rho{rho}-seed{seed}")]


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_of_splitcifar(name):
    (row,) = [row for row in ROWS if row[0] == name and len(row) == 6]
    assert row[1:] == numbers(CONTROLS[name])


def accounted() -> set[str]:
    """Every number that the records give for the page: its tables, and what is said of them."""
    pairs = [[numbers(f"cifar100-mlp/rho{rho}-seed{seed}") for rho in ("0", "0.1")] for seed in range(5)]
    found = {cell for pair in pairs for row in pair for cell in row}
    found |= {cell for run in CONTROLS.values() for cell in numbers(run)}
    for plain, ours in pairs:
        found |= {f"{float(ours[1]) - float(plain[1]):.3f}", f"{100 * (float(ours[3]) / float(plain[3]) - 1):.0f}"}
    return found


def test_what_is_said_of_the_table():
    runs = {(rho, seed): numbers(f"cifar100-mlp/rho{rho}-seed{seed}") for rho in ("0", "0.1") for seed in range(5)}
    pairs = [(runs["0", seed], runs["0.1", seed]) for seed in range(5)]
    gains = sorted(round(float(ours[1]) - float(plain[1]), 3) for plain, ours in pairs)
    ranks = sorted(float(ours[3]) / float(plain[3]) - 1 for plain, ours in pairs)
    text = " ".join(PAGE.split())
    assert f"SPHERE gains {gains[0]} to {gains[-1]}" in text
    assert f"by {100 * ranks[0]:.0f} to {100 * ranks[-1]:.0f}%" in text
    assert sum(float(ours[4]) < float(plain[4]) for plain, ours in pairs) == 4
    assert "in four of five seeds" in text
