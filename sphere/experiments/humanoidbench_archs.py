"""What one agent through all tasks loses against training from scratch, per architecture, on HumanoidBench."""

from sphere.experiments.method_tables import ARCHITECTURES, both_protocols

SOURCE = "fig:humanoidbench-archs-rl-vs-crl-relu"

experiment = both_protocols("humanoidbench", ARCHITECTURES, SOURCE, "per architecture")
