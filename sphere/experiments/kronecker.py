"""Is the Kronecker proxy A kron G a good stand-in for the block product A * G of an expert layer? Their effective ranks."""

import jax.numpy as jnp

from sphere import ntk
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.method_tables import PAIR, methods
from sphere.experiments.networks import by_batch
from sphere.experiments.tables import correlation_table, scatter
from sphere.spectrum import effective_rank_spsd

TITLE = "Kronecker proxy against the Khatri-Rao block, HumanoidBench, end of CRL"
NOTE = (
    "One point per batch of rollout states of one checkpoint, the first seed of each method, at the last hidden expert layer. "
    "At the output layer, where the paper looks, the signal of a summed linear output is the same for all states, and proxy "
    "and target would be equal."
)


def ranks(actor, states):
    """Of A kron G, and of A * G. The latter from its n^2 x n^2 Gram, (a_i . a_j) (g_k . g_l) summed over experts: no matrix of
    the size of the parameters is formed."""
    phi, psi = ntk.kronecker_factors(actor, states)[-2]
    n = len(states)
    a, g = (jnp.einsum("new,mew->enm", rows, rows) for rows in (phi, psi))
    proxy = effective_rank_spsd(jnp.sum(a, axis=0) / n) * effective_rank_spsd(jnp.sum(g, axis=0) / n)
    block = jnp.einsum("eij,ekl->ikjl", a, g).reshape(n * n, n * n) / n**2
    return proxy, effective_rank_spsd(block)


def results(found: Found) -> Results:
    points = by_batch(found, PAIR, ranks)
    table = correlation_table("kronecker", TITLE, points, "Pearson Kronecker proxy, Khatri-Rao", NOTE)
    return Results([table], {"kronecker": scatter(points, "r_e of the Kronecker proxy", "r_e of the Khatri-Rao block")})


experiment = Experiment(TITLE, "fig:kron-proxy-vs-khatri", lambda: methods("humanoidbench-crl", PAIR), results, seeds=1)
