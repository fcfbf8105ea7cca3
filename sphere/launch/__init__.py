"""Where fleets are trained: in this process, side by side on this machine, on a Ray cluster, or by Slurm.

A job is a fleet and its directory. Launchers know nothing else: no learner, suite or method. `sphere.training` trains a
fleet; `sphere.experiments` says which fleets an experiment needs.
"""
