"""Average success of all methods under RL and CRL on HumanoidBench."""

from sphere.experiments.method_tables import HUMANOIDBENCH, both_protocols

SOURCE = "fig:humanoidbench-methods-success-bars"

experiment = both_protocols("humanoidbench", HUMANOIDBENCH, SOURCE, "all methods")
