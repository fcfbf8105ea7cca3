"""Does K-FAC's factorisation hold at the experts' output layer? Its curvature against Gauss-Newton's, in random directions."""

import jax
import jax.numpy as jnp
import numpy as np

from sphere.bounds import kfac_curvatures
from sphere.diagnostics import used
from sphere.nets import output_signals
from sphere.study.experiment import Experiment, Found, Results
from sphere.study.methods import PAIR, methods
from sphere.study.networks import batch_size, batches, first_snapshots
from sphere.study.shown import correlation_table, scatter

TITLE = "K-FAC curvature against Gauss-Newton curvature, HumanoidBench, end of CRL"
NOTE = (
    "Correlation of logarithms. One point per batch of rollout states and random direction of rank one. Tokens are pairs of a "
    "state and an expert that it met: a the expert's last features, g the signal at its output, its gate weight included."
)
DIRECTIONS = 8


def curvatures(actor, states, key):
    """q_GN and q_KFAC of some directions of norm one."""
    trace = actor.trunk(states)[1]
    met = np.asarray(used(trace))
    features = np.asarray(trace.layers[-1].input)[met]
    signals = np.asarray(output_signals(actor.trunk, states)[-1])[met]
    left, right = (
        jax.random.normal(k, (DIRECTIONS, rows.shape[1]))
        for k, rows in zip(jax.random.split(key), (signals, features), strict=True)
    )
    directions = left[:, :, None] * right[:, None, :]
    directions = directions / jnp.linalg.norm(directions, axis=(1, 2), keepdims=True)
    return [kfac_curvatures(features, signals, direction) for direction in directions]


def results(found: Found) -> Results:
    size, count = batch_size(found.scale)
    points = {}
    for label, one in first_snapshots(found, PAIR, rollout=4 * size).items():
        pairs = [
            pair
            for number, states in enumerate(batches(one.rollout, size, count))
            for pair in curvatures(one.actor, states, jax.random.fold_in(jax.random.key(0), number))
        ]
        exact, proxy = (np.array(column, float) for column in zip(*pairs, strict=True))
        kept = (exact > 0) & (proxy > 0)
        points[label] = (exact[kept], proxy[kept])
    logarithms = {label: (np.log(x), np.log(y)) for label, (x, y) in points.items()}
    table = correlation_table("kfac", TITLE, logarithms, "Pearson log q_KFAC, log q_GN", NOTE)
    return Results([table], {"kfac": scatter(points, "q_GN", "q_KFAC", logarithmic=True, diagonal=True)})


experiment = Experiment(TITLE, "fig:kfac-scatter", lambda: methods("humanoidbench-crl", PAIR), results)
