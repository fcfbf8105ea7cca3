"""Success by task on HumanoidBench's five H1 tasks, one agent through all of them, all methods."""

from sphere.study.methods import HUMANOIDBENCH, per_task

experiment = per_task("humanoidbench", "crl", HUMANOIDBENCH, "tab:humanoidbench-crl-per-task-full-relu")
