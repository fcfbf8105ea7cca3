"""Does r_e(A_last), which SPHERE shapes, go along with r_e(K), which it is for? Batch by batch, at the end of training."""

from sphere import ntk
from sphere.diagnostics import feature_rank
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.method_tables import PAIR, methods
from sphere.experiments.networks import by_batch
from sphere.experiments.tables import correlation_table, scatter

TITLE = "r_e(A_last) against r_e(K), HumanoidBench, end of CRL"
NOTE = "One point per batch of rollout states of one checkpoint, the first seed of each method."


def ranks(actor, states):
    return feature_rank(actor.trunk(states)[1].mixtures[-1]), ntk.effective_rank(actor, states)


def results(found: Found) -> Results:
    points = by_batch(found, PAIR, ranks)
    table = correlation_table("feature-rank", TITLE, points, "Pearson r_e(A_last), r_e(K)", NOTE)
    return Results([table], {"feature-rank": scatter(points, "r_e(A_last)", "r_e(K)")})


experiment = Experiment(TITLE, "fig:reA-reK-batchwise", lambda: methods("humanoidbench-crl", PAIR), results, seeds=1)
