"""Success by task on MetaWorld's ten tasks, every task from scratch, all methods."""

from sphere.experiments.method_tables import METAWORLD, per_task

experiment = per_task("metaworld", "rl", METAWORLD, "tab:metaworld-per-task-full")
