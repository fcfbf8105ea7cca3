"""Success by task on HumanoidBench's five H1 tasks, every task from scratch, all methods."""

from sphere.experiments.method_tables import HUMANOIDBENCH, per_task

experiment = per_task("humanoidbench", "rl", HUMANOIDBENCH, "tab:humanoidbench-per-task-full-relu")
