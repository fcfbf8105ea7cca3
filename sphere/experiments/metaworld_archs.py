"""What one agent through all tasks loses against training from scratch, per architecture, on MetaWorld."""

from sphere.experiments.method_tables import ARCHITECTURES, both_protocols

SOURCE = "fig:humanoidbench-archs-rl-vs-crl-relu, for MetaWorld"

experiment = both_protocols("metaworld", ARCHITECTURES, SOURCE, "per architecture")
