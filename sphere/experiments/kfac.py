"""Does K-FAC's factorisation hold at the experts' output layer? Its curvature against Gauss-Newton's, in random directions."""

import jax
import jax.numpy as jnp
import numpy as np

from sphere.bounds import kfac_curvatures
from sphere.diagnostics import used
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.method_tables import PAIR, methods
from sphere.experiments.networks import by_batch
from sphere.experiments.tables import correlation_table, scatter
from sphere.nets import output_signals

TITLE = "K-FAC curvature against Gauss-Newton curvature, HumanoidBench, end of CRL"
NOTE = (
    "Correlation of logarithms. One point per batch of rollout states and random direction of rank one. Tokens are pairs of a "
    "state and an expert that it met: a the expert's last features, g the signal at its output, its gate weight included."
)
DIRECTIONS = 32


def curvatures(actor, states):
    """q_GN and q_KFAC of some directions of norm one, the same in every batch."""
    trace = actor.trunk(states)[1]
    met = used(trace.mixtures[-1]).reshape(-1, 1)
    # a token that is none has zeros for rows, and its part in the means is taken out again
    features = jnp.where(met, trace.layers[-1].input.reshape(len(met), -1), 0)
    signals = jnp.where(met, output_signals(actor.trunk, states)[-1].reshape(len(met), -1), 0)
    share = len(met) / jnp.sum(met)
    left, right = (
        jax.random.normal(key, (DIRECTIONS, rows.shape[1]))
        for key, rows in zip(jax.random.split(jax.random.key(0)), (signals, features), strict=True)
    )
    directions = left[:, :, None] * right[:, None, :]
    directions = directions / jnp.linalg.norm(directions, axis=(1, 2), keepdims=True)
    exact, proxy = jax.vmap(lambda direction: kfac_curvatures(features, signals, direction))(directions)
    return share * exact, share**2 * proxy


def results(found: Found) -> Results:
    points = {
        label: (exact[kept], proxy[kept])
        for label, (exact, proxy) in by_batch(found, PAIR, curvatures).items()
        if (kept := (exact > 0) & (proxy > 0)).any()
    }
    logarithms = {label: (np.log(x), np.log(y)) for label, (x, y) in points.items()}
    table = correlation_table("kfac", TITLE, logarithms, "Pearson log q_KFAC, log q_GN", NOTE)
    return Results([table], {"kfac": scatter(points, "q_GN", "q_KFAC", logarithmic=True, diagonal=True)})


experiment = Experiment(TITLE, "fig:kfac-scatter", lambda: methods("humanoidbench-crl", PAIR), results, seeds=1)
