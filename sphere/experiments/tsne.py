"""How the weighted expert features of the same states look along the sequence, with and without SPHERE."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sphere.experiments.cells import Cell
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.method_tables import PAIR, methods
from sphere.experiments.networks import snapshot
from sphere.report.figures import tsne_panels
from sphere.report.labels import short
from sphere.report.tables import Cell as Entry
from sphere.report.tables import Measured, Table
from sphere.spectrum import effective_rank
from sphere.variants import feature_blocks

TITLE = "t-SNE of weighted expert features along the sequence, HumanoidBench, CRL"
NOTE = "Effective rank of the matrix of weighted features on the held-out states, of the first seed."


def cells() -> list[Cell]:
    """A snapshot after task k is the end of a run on the first k tasks, which is the beginning of the whole run."""
    whole = methods("humanoidbench-crl", PAIR)
    return [
        Cell(one.label, dataclasses.replace(one.config, tasks=one.config.tasks[:k]))
        for one in whole
        for k in range(1, len(one.config.tasks) + 1)
    ]


def features(one) -> np.ndarray:
    blocks = jax.jit(lambda trunk, states: feature_blocks(trunk(states)[1]))(one.actor.trunk, jnp.asarray(one.heldout))
    return np.asarray(blocks).reshape(len(one.heldout), -1)


def results(found: Found) -> Results:
    panels: dict[str, dict[str, np.ndarray]] = {}
    for label in PAIR:
        runs = sorted((run for run in found.runs(label) if run.finished), key=lambda run: (run.seed, len(run.tasks)))
        for run in [run for run in runs if run.seed == runs[0].seed]:
            if "start" not in (mine := panels.setdefault(label, {})) and (
                one := snapshot(run, found.scale, fresh=True)
            ):
                mine["start"] = features(one)
            if one := snapshot(run, found.scale):
                mine[f"after {short(run.tasks[-1])}"] = features(one)
    columns = list(dict.fromkeys(name for mine in panels.values() for name in mine))
    rows: list[list[Entry]] = [
        [label, *(Measured(float(effective_rank(jnp.asarray(mine[c])))) if c in mine else None for c in columns)]
        for label, mine in panels.items()
    ]
    table = Table("tsne", TITLE, ("", *columns), rows, NOTE)
    return Results([table], {"tsne": tsne_panels(panels) if panels else None})


experiment = Experiment(TITLE, "fig:case-study", cells, results, seeds=1)
