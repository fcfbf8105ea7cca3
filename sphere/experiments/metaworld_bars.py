"""Average success of all methods under RL and CRL on MetaWorld."""

from sphere.experiments.method_tables import METAWORLD, both_protocols

SOURCE = "fig:metaworld-methods-success-bars"

experiment = both_protocols("metaworld", METAWORLD, SOURCE, "all methods")
