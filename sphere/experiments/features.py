"""Networks at the end of training on HumanoidBench: gate against experts, and the features of the same states."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sphere import ntk
from sphere.bounds import block_cosine, gate_expert_decoupling
from sphere.experiments.arms import METHODS, PAIR, Arm, methods
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.snapshots import Snapshot, batch_size, first_snapshots, snapshot
from sphere.nets import parameter_count
from sphere.report.names import short
from sphere.report.tables import Cell, MeanStd, Table
from sphere.spectrum import effective_rank
from sphere.variants import feature_blocks

# How strongly do gate and experts couple in the Gauss-Newton matrix? The cosine of their blocks, and what it can cost.

GATE_TITLE = "Gate and experts in the Gauss-Newton matrix, HumanoidBench, end of CRL"
GATE_COLUMNS = (
    "",
    "cos(gate, expert)",
    "change of log r_e without the cross blocks",
    "its bound",
    "gate parameters",
    "expert parameters",
)


def gate_results(found: Found) -> Results:
    size, _ = batch_size(found.scale)
    rows: list[list[Cell]] = []
    cosines = {}
    for label, one in first_snapshots(found, PAIR).items():
        states = jnp.asarray(one.rollout[:: len(one.rollout) // size][:size])
        with jax.default_matmul_precision("highest"):  # TF32 would lift the floor of the spectra
            gate, expert = jax.jit(ntk.blocks)(one.actor, states)[:2]  # nothing is shared in these actors
            cosines[label] = float(block_cosine(gate, expert))
            bound = gate_expert_decoupling(gate, expert, 2 * len(gate))
        sizes = [parameter_count(part) for part in (one.actor.trunk.router, one.actor.trunk.experts)]
        numbers = [MeanStd(v) for v in (cosines[label], float(bound.left), float(bound.right))]
        rows.append([label, *numbers, *(f"{n:,}" for n in sizes)])
    note = "On rollout states of one checkpoint, the first seed of each method."
    table = Table("gate-expert", GATE_TITLE, GATE_COLUMNS, rows, note)
    return Results([table], {"gate-expert": _blocks_figure(cosines) if cosines else None})


def _blocks_figure(cosines: dict[str, float]) -> Any:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(cosines), figsize=(2.6 * len(cosines), 2.6), layout="constrained", squeeze=False
    )
    for axis, (label, value) in zip(axes[0], cosines.items(), strict=True):
        blocks = np.array([[1, value], [value, 1]])
        axis.imshow(blocks, vmin=0, vmax=1, cmap="Blues")
        for (row, column), entry in np.ndenumerate(blocks):
            axis.text(column, row, f"{entry:.3f}", ha="center", color="black" if entry < 0.6 else "white")
        axis.set_xticks([0, 1], ["gate", "expert"])
        axis.set_yticks([0, 1], ["gate", "expert"])
        axis.set_title(label)
        axis.grid(visible=False)
    return figure


# How do the weighted expert features of the same states look along the sequence, with and without SPHERE?

TSNE_TITLE = "t-SNE of weighted expert features along the sequence, HumanoidBench, CRL"
TSNE_NOTE = "Effective rank of the matrix of weighted features on the held-out states, of the first seed."
TASKS = 5
"""Of the sequence. A run on the first k tasks ends as the whole run is after task k."""


def weighted_features(one: Snapshot) -> np.ndarray:
    last = jax.jit(lambda trunk, states: feature_blocks(trunk(states)[1].mixtures[-1]))
    blocks = last(one.actor.trunk, jnp.asarray(one.heldout))
    return np.asarray(blocks).reshape(len(one.heldout), -1)


def tsne_results(found: Found) -> Results:
    from sphere.report.figures import tsne_panels

    panels: dict[str, dict[str, np.ndarray]] = {}
    for label in PAIR:
        runs = sorted(found.finished(label), key=lambda run: (run.seed, len(run.tasks)))
        for run in [run for run in runs if run.seed == runs[0].seed]:
            mine = panels.setdefault(label, {})
            if "start" not in mine and (one := snapshot(run, found.scale, fresh=True)):
                mine["start"] = weighted_features(one)
            if one := snapshot(run, found.scale):
                mine[f"after {short(run.tasks[-1])}"] = weighted_features(one)
    columns = list(dict.fromkeys(name for mine in panels.values() for name in mine))
    rows: list[list[Cell]] = [
        [label, *(MeanStd(float(effective_rank(jnp.asarray(mine[c])))) if c in mine else None for c in columns)]
        for label, mine in panels.items()
    ]
    table = Table("tsne", TSNE_TITLE, ("", *columns), rows, TSNE_NOTE)
    return Results([table], {"tsne": tsne_panels(panels) if panels else None})


EXPERIMENTS = {
    "gate-expert": Experiment(
        GATE_TITLE, "fig:assumption-validation-gate-expert-ggncos", methods(PAIR), gate_results, seeds=1
    ),
    "tsne": Experiment(
        TSNE_TITLE,
        "fig:case-study",
        tuple(Arm(label, *METHODS[label], tasks=k) for label in PAIR for k in range(1, TASKS + 1)),
        tsne_results,
        seeds=1,
    ),
}
