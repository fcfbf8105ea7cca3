"""Run directories and checkpoints: everything that is written while runs train, and everything that reads it back.

Here belong file formats, locks, checksums, provenance and export. Nothing here knows a learner, a suite or a method,
but for `migrate`, which knows those of old records. Nothing here computes statistics (`sphere.report`) or decides
what is trained (`sphere.training`).

A fleet's directory holds `fleet.json`, the checkpoints of all its runs, a lock, with `--wandb` also `wandb.json` (its
id there), and a directory for each run: `config.json`, `environment.json`, `metrics.jsonl`, `episodes.jsonl`, event
files for TensorBoard and a lock. Reports are made from run directories alone.

- Records are written through: a line goes to the operating system at once, so a killed process loses none. Only
  `positions()` waits for the disk.
- Saving: log, then `positions()`, then the checkpoint, which holds the lengths of the records at that moment. It is
  written to a new name, flushed and renamed; the last two are kept.
- Resuming: take the lock, read the newest checkpoint (a damaged file is passed over with a warning, one that does not
  fit is an error), cut the records to the stored lengths, go on.
- A run that goes on elsewhere says so: `environment.json` has versions, commit and device of its beginning and, under
  `resumed` and the step, what was different from there on.
"""
