"""Success by task on HumanoidBench's five H1 tasks, one agent through all of them, all methods."""

from sphere.experiments.method_tables import HUMANOIDBENCH, per_task

experiment = per_task("humanoidbench", "crl", HUMANOIDBENCH, "tab:humanoidbench-crl-per-task-full-relu")
