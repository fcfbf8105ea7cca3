"""Success by task on MetaWorld's ten tasks, one agent through all of them, all methods."""

from sphere.experiments.method_tables import METAWORLD, per_task

experiment = per_task("metaworld", "crl", METAWORLD, "tab:metaworld-crl-per-task-full")
