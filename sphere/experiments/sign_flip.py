"""SPHERE with its sign turned: the penalty makes features alike instead of different."""

from sphere.experiments.cells import cell
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.experiments.tables import success_table
from sphere.report.figures import curves

SOURCE = "tab:negative-intervention-success"
RHO = {"Top-K MoE, rho=0": 0.0, "SPHERE, rho=1e-3": 1e-3, "Negative-SPHERE, rho=-1e-3": -1e-3}
TITLE = "Sign flip of rho, HumanoidBench, CRL"


def results(found: Found) -> Results:
    one = found.comparison
    names = [one.curve, "heldout/ntk_rank"]
    return Results([success_table(found, "sign-flip", TITLE, SOURCE, list(RHO))], {"curves": curves(one, "crl", names)})


experiment = Experiment(
    TITLE,
    f"{SOURCE} and fig:negative-intervention-curves",
    lambda: [cell(label, "humanoidbench-crl", "sphere", rho=rho) for label, rho in RHO.items()],
    results,
)
