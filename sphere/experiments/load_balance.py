"""Does a loss that balances the experts' load keep r_e(K) up?"""

from sphere.experiments.cells import cell
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.tables import beside_paper, last_value, success
from sphere.report.figures import curves

SOURCE = "tab:loadbalance-success-rek"
METHODS = {"Top-K MoE": "none", "+ Load balancing": "load-balance"}
TITLE = "Load balancing against r_e(K), HumanoidBench, CRL"


def results(found: Found) -> Results:
    rows = {
        label: {"success": success(found.scores(label)), "r_e(K)": last_value(found.runs(label), "heldout/ntk_rank")}
        for label in METHODS
    }
    note = "Average success, and r_e(K) on held-out states at the last evaluation."
    figure = curves(found.comparison, "crl", ["heldout/ntk_rank", "heldout/routing_entropy"])
    return Results([beside_paper("load-balance", TITLE, SOURCE, rows, note)], {"ntk-rank": figure})


experiment = Experiment(
    TITLE,
    f"{SOURCE} and fig:loadbalance-vs-topk-entk",
    lambda: [cell(label, "humanoidbench-crl", method) for label, method in METHODS.items()],
    results,
)
