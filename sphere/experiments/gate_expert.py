"""How strongly do gate and experts couple in the Gauss-Newton matrix? The cosine of their blocks, and what it can cost."""

import jax
import jax.numpy as jnp
import numpy as np

from sphere import ntk
from sphere.bounds import block_cosine, gate_expert_decoupling
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.method_tables import PAIR, methods
from sphere.experiments.networks import batch_size, first_snapshots
from sphere.nets import parameter_count
from sphere.report.tables import Cell, Measured, Table

TITLE = "Gate and experts in the Gauss-Newton matrix, HumanoidBench, end of CRL"
COLUMNS = (
    "",
    "cos(gate, expert)",
    "change of log r_e without the cross blocks",
    "its bound",
    "gate parameters",
    "expert parameters",
)


def figure(cosines: dict[str, float]):
    from matplotlib import pyplot

    shown, axes = pyplot.subplots(
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
    return shown


def results(found: Found) -> Results:
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
        numbers = [Measured(v) for v in (cosines[label], float(bound.left), float(bound.right))]
        rows.append([label, *numbers, *(f"{n:,}" for n in sizes)])
    table = Table(
        "gate-expert", TITLE, COLUMNS, rows, "On rollout states of one checkpoint, the first seed of each method."
    )
    return Results([table], {"gate-expert": figure(cosines) if cosines else None})


experiment = Experiment(
    TITLE, "fig:assumption-validation-gate-expert-ggncos", lambda: methods("humanoidbench-crl", PAIR), results, seeds=1
)
