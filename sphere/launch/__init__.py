"""Who trains which fleets, and where: in this process, side by side, over a Ray cluster, or by Slurm.

A job is a fleet and its directory. What it trains is `sphere.training`'s business; which jobs an experiment needs is
`sphere.experiments`'.
"""
