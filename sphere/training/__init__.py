"""Training a fleet of runs: its settings, its state between iterations, and the loop that drives it.

A learner turns data into a better state, a source gives data and says how well a policy does; this package knows only
these two protocols. Files belong to `sphere.storage`, processes and simulators to `sphere.envs`.
"""
