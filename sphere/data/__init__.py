"""Data that were recorded or labelled before: transitions to learn from offline, and streams of labelled tasks.

What belongs here reads data and hands them out: readers, downloads, the sources `offline` and `stream`. What learns
from them is in `sphere.algos`, simulators are in `sphere.envs`.
"""
