"""Which runs an experiment needs at a scale, the fleets that have them, and what these have recorded."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sphere.experiments.configs import (
    at_scale,
    by_task,
    config_of,
    identity_of,
    identity_on_any_task,
    read,
    run_in_words,
    same_run,
    singles,
)
from sphere.experiments.experiment import SEEDS, Experiment, Found, Scale
from sphere.experiments.schedule import Schedule, schedule
from sphere.report.load import load
from sphere.report.run import Loaded
from sphere.storage import run_directory
from sphere.training.settings import FleetConfig


class WantedRuns(NamedTuple):
    """Runs of an arm at one scale; under RL those of one task."""

    label: str
    config: FleetConfig


def wanted(experiment: Experiment, scale: Scale, seeds: Sequence[int] | None = None) -> list[WantedRuns]:
    number = experiment.seeds if scale == "paper" else min(experiment.seeds, SEEDS[scale])
    chosen = tuple(seeds) if seeds else tuple(range(number))
    found: dict[str, WantedRuns] = {}
    for arm in experiment.arms:
        whole = at_scale(config_of(arm), scale, chosen)
        # smoke: nearly all of the time goes into compiling, which every fleet does for itself
        for config in [whole] if scale == "smoke" else by_task(whole):
            known = found.setdefault(identity_of(config), WantedRuns(arm.label, config))
            if known.label != arm.label:
                raise ValueError(
                    f"{known.label} and {arm.label} are the same runs at scale {scale}; use one label for them"
                )
    return list(found.values())


def schedule_of(experiment: Experiment, scale: Scale, seeds: Sequence[int] | None, out: Path) -> Schedule:
    root = out / scale / ("fleets" if experiment.together else "timed")
    configs = [one.config for one in wanted(experiment, scale, seeds)]
    return schedule(configs, root, experiment.together)


def gather(experiment: Experiment, scale: Scale, seeds: Sequence[int] | None, out: Path) -> Found:
    """All runs that have started, finished or not; the others are named in the notes."""
    arms, places = wanted(experiment, scale, seeds), schedule_of(experiment, scale, seeds, out).runs
    every = {same_run(one): (arm.label, one) for arm in arms for one in singles(arm.config).values()}
    started = [key for key in every if (places[key] / run_directory.METRICS).is_file()]
    if not started:
        raise ValueError(
            f"none of the {len(every)} runs has started; first use sphere experiment run NAME --scale {scale}"
        )
    labels = {identity_on_any_task(arm.config): arm.label for arm in arms}
    loaded = load([places[key] for key in started])
    runs = tuple(
        dataclasses.replace(run, method=labels[identity_on_any_task(read(run.settings))]) for run in loaded.runs
    )
    missing = [f"{label}, {run_in_words(one)}" for key, (label, one) in every.items() if key not in started]
    notes = [f"not started yet: {'; '.join(missing)}"] if missing else []
    return Found(scale, Loaded(runs, (*notes, *loaded.notes)))
