"""Labelled data sets and the streams of tasks that are made of them: readers, downloads, and the source `stream`.

What belongs here reads data and hands out batches. What learns from them is in `sphere.algos`, simulators are in
`sphere.envs`.
"""
