"""What a record says of itself, so that its readers need not guess: config.json of every run of a fleet."""

from collections.abc import Mapping
from typing import Any

from sphere.algos.labels import label
from sphere.storage.files import FORMAT, plain
from sphere.storage.fleet_directory import RunRecord
from sphere.training.settings import FleetConfig, Run, to_json


def run_records(config: FleetConfig, spec: Mapping[str, Any]) -> list[RunRecord]:
    return [RunRecord(run.name, run.seed, described(config, run, spec)) for run in config.runs]


def described(config: FleetConfig, run: Run, spec: Mapping[str, Any]) -> dict[str, Any]:
    own = config.of_run(run)
    learner, suite = own.learner, own.suite
    used = [m for m in learner.methods if m.strength is None or run.numbers[m.strength]]
    return {
        "format": FORMAT,
        "learner": learner.name,
        "method": "+".join(method.name for method in used) or "none",
        "actor": learner.actor.kind,
        "label": label(learner, run.numbers),
        "suite": suite,
        "source": own.source.kind,
        "score": own.source.score(suite),
        "columns": list(own.source.columns(suite)),
        "task_steps": own.task_steps,
        "iteration_steps": own.iteration_steps,
        "seed": run.seed,
        "numbers": run.numbers,
        "varies": list(run.varied),
        "plugins": list(own.plugins),
        "spec": plain(spec),
        "settings": to_json(own),
    }
