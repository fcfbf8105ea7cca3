"""SPHERE on the actor, on the critic, or on both."""

from sphere.experiments.cells import cell
from sphere.experiments.tables import success_rows

PLACES = {"Actor only": "actor", "Critic only": "critic", "Actor and critic": "both"}

experiment = success_rows(
    "Placement on actor and critic, HumanoidBench, CRL",
    "tab:actor-critic-placement",
    lambda: [
        cell(label, "humanoidbench-crl", "sphere", penalty={"placement": place}) for label, place in PLACES.items()
    ],
)
