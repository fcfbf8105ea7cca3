"""Run directories and checkpoints: everything that is written while runs train, and everything that reads it back.

Here belong file formats, locks, checksums, provenance and export. Nothing here knows a learner, a suite or a method, but
for `migrate`, which knows those of old records. Nothing here computes statistics (`sphere.report`) or decides what is
trained (`sphere.training`).
"""
