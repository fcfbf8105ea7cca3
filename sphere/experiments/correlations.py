"""The approximations behind the penalty, batch by batch at the end of training on HumanoidBench."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sphere import ntk
from sphere.bounds import kfac_curvatures
from sphere.diagnostics import feature_rank, used
from sphere.experiments.arms import PAIR, methods
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.snapshots import by_batch
from sphere.nets import output_signals
from sphere.report import paper
from sphere.report.comparison_tables import paper_cell
from sphere.report.tables import Cell, MeanStd, Table
from sphere.spectrum import effective_rank_spsd

Points = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By label: the two numbers of every batch."""

DIRECTIONS = 32
"""Of K-FAC's curvature, per batch."""


def feature_and_ntk_rank(actor: Any, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """r_e(A_last), which SPHERE shapes, and r_e(K), which it is for."""
    return feature_rank(actor.trunk(states)[1].mixtures[-1]), ntk.effective_rank(actor, states)


def kronecker_ranks(actor: Any, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Effective ranks of A kron G and of the block product A * G of an expert layer, for which the former stands in.

    The latter is computed from its n^2 x n^2 Gram, (a_i . a_j) (g_k . g_l) summed over experts: no matrix of the size
    of the parameters is formed.
    """
    phi, psi = ntk.kronecker_factors(actor, states)[-2]
    n = len(states)
    a, g = (jnp.einsum("new,mew->enm", rows, rows) for rows in (phi, psi))
    proxy = effective_rank_spsd(jnp.sum(a, axis=0) / n) * effective_rank_spsd(jnp.sum(g, axis=0) / n)
    block = jnp.einsum("eij,ekl->ikjl", a, g).reshape(n * n, n * n) / n**2
    return proxy, effective_rank_spsd(block)


def curvatures(actor: Any, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """q_GN and q_KFAC at the experts' output layer in some directions of norm one, the same in every batch."""
    trace = actor.trunk(states)[1]
    met = used(trace.mixtures[-1]).reshape(-1, 1)
    # a pair of state and expert that did not meet has rows of zeros, and its part in the means is taken out again
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


def correlation(
    name: str,
    title: str,
    source: str,
    pair: Callable[[Any, Any], tuple[Any, Any]],
    axes: tuple[str, str],
    quoted: str,
    note: str,
    logarithmic: bool = False,
) -> Experiment:
    """Two numbers of every batch of states: a scatter plot, and their correlation beside the paper's."""

    def results(found: Found) -> Results:
        points = by_batch(found, PAIR, pair)
        if logarithmic:
            points = {
                label: (x[kept], y[kept]) for label, (x, y) in points.items() if (kept := (x > 0) & (y > 0)).any()
            }
        numbers = {label: _compared(*xy, logarithmic) for label, xy in points.items()}
        rows: list[list[Cell]] = [
            [label, str(len(x)), MeanStd(pearson(x, y)), paper_cell(paper.QUOTED[quoted])]
            for label, (x, y) in numbers.items()
        ]
        table = Table(name, title, ("", "points", "Pearson", "paper"), rows, note)
        return Results([table], {name: scatter(points, *axes, logarithmic)})

    return Experiment(title, source, methods(PAIR), results, seeds=1)


def _compared(x: np.ndarray, y: np.ndarray, logarithmic: bool) -> tuple[np.ndarray, np.ndarray]:
    return (np.log(x), np.log(y)) if logarithmic else (x, y)


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """NaN where one side does not vary."""
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def scatter(points: Points, across: str, up: str, logarithmic: bool) -> Any:
    """A cloud per label, with its correlation in the legend; logarithmic: with the diagonal."""
    from matplotlib import pyplot

    from sphere.report.figures import COLOURS

    figure, axis = pyplot.subplots(figsize=(4.2, 3.6), layout="constrained")
    for index, (label, (x, y)) in enumerate(points.items()):
        told = f"{label}: r = {pearson(*_compared(x, y, logarithmic)):.3f}"
        axis.plot(x, y, "o", markersize=3, alpha=0.6, color=COLOURS[index % len(COLOURS)], label=told)
    if logarithmic:
        axis.set(xscale="log", yscale="log")
    if logarithmic and points:
        low, high = (edge([v for x, y in points.values() for v in (*x, *y)]) for edge in (min, max))
        axis.plot([low, high], [low, high], color="0.5", linewidth=0.8, linestyle="--")
    axis.set(xlabel=across, ylabel=up)
    axis.legend(fontsize=7)
    return figure


EXPERIMENTS = {
    "feature-rank": correlation(
        "feature-rank",
        "r_e(A_last) against r_e(K), HumanoidBench, end of CRL",
        "fig:reA-reK-batchwise",
        feature_and_ntk_rank,
        ("r_e(A_last)", "r_e(K)"),
        "Pearson r_e(A_last), r_e(K)",
        "One point per batch of rollout states of one checkpoint, the first seed of each method.",
    ),
    "kronecker": correlation(
        "kronecker",
        "Kronecker proxy against the Khatri-Rao block, HumanoidBench, end of CRL",
        "fig:kron-proxy-vs-khatri",
        kronecker_ranks,
        ("r_e of the Kronecker proxy", "r_e of the Khatri-Rao block"),
        "Pearson Kronecker proxy, Khatri-Rao",
        "One point per batch of rollout states of one checkpoint, the first seed of each method, at the last hidden "
        "expert layer. At the output layer, where the paper looks, the signal of a summed linear output is the same "
        "for all states, and proxy and target would be equal.",
    ),
    "kfac": correlation(
        "kfac",
        "K-FAC curvature against Gauss-Newton curvature, HumanoidBench, end of CRL",
        "fig:kfac-scatter",
        curvatures,
        ("q_GN", "q_KFAC"),
        "Pearson log q_KFAC, log q_GN",
        "Correlation of logarithms. One point per batch of rollout states and random direction of rank one. Tokens are "
        "pairs of a state and an expert that it met: a the expert's last features, g the signal at its output, its "
        "gate weight included.",
        logarithmic=True,
    ),
}
