"""What a record says of itself, so that its readers need not guess: config.json of every run of a fleet."""

from collections.abc import Mapping, Sequence
from typing import Any

from sphere.algos.learner import Learner
from sphere.storage.files import FORMAT, plain
from sphere.storage.fleet_directory import RunRecord
from sphere.training.settings import FleetConfig, RunSettings, to_json

ACTORS = {
    "top-k": "Top-K MoE",
    "dense": "Dense-MoE",
    "deepseek": "DS-MoE",
    "soft": "SoftMoE",
    "expert-choice": "Expert-choice routing",
}
"""Mixtures by kind; a dense network goes by the name of its learner."""


def run_records(config: FleetConfig, spec: Mapping[str, Any]) -> list[RunRecord]:
    return [RunRecord(run.name, run.seed, described(config, run, spec)) for run in config.runs]


def described(config: FleetConfig, run: RunSettings, spec: Mapping[str, Any]) -> dict[str, Any]:
    own = config.of_run(run)
    learner, suite = own.learner, own.suite
    used = [m for m in learner.methods if m.strength is None or run.numbers[m.strength]]
    return {
        "format": FORMAT,
        "learner": learner.name,
        "method": "+".join(method.name for method in used) or "none",
        "actor": learner.actor.kind,
        "label": label(learner, run.numbers),
        "choices": choices(learner, run.numbers),
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


def method_names(config: FleetConfig, runs: Sequence[RunSettings]) -> list[str]:
    """What tells one run of each method from the others: its label, with the numbers in which it differs where labels
    are the same."""
    labels = [_titled(config.of_run(run).learner, run.numbers) for run in runs]
    apart = [", ".join(f"{name.replace('_', ' ')} {run.numbers[name]:g}" for name in run.varied) for run in runs]
    return [one if labels.count(one) == 1 else f"{one} ({more})" for one, more in zip(labels, apart, strict=True)]


def _titled(learner: Learner, numbers: Mapping[str, float]) -> str:
    words = [f"{name.replace('_', ' ')} {value}" for name, value in choices(learner, numbers).items()]
    return label(learner, numbers) + (f" ({', '.join(words)})" if words else "")


def choices(learner: Learner, numbers: Mapping[str, float]) -> dict[str, Any]:
    """Settings of the methods that act by which a run is something else than its label says: a variant of the penalty.
    Tables name them, so that a run of it alone is not taken for the method."""
    usual = {"placement": learner.placement} if learner.placement else {}
    acting = [method for method in learner.methods if method.strength is None or numbers[method.strength]]
    return {name: value for method in acting for name, value in method.choices(usual).items()}


def label(learner: Learner, numbers: Mapping[str, float]) -> str:
    """What tables call a run with these numbers: the paper's name where it has one. A method whose strength is 0 is not
    named, one below 0 is called negative."""
    place = learner.placement
    actor, critic = learner.nets[place] if place else learner.actor, learner.nets.get("critic")
    base = ACTORS.get(actor.kind, learner.title if actor.kind == "mlp" else actor.kind)
    if not place and actor.kind == "mlp" and critic is not None and 8 <= (actor.width / critic.width) ** 2 <= 14:
        base += "(10x)"  # the paper's dense baseline with ten times the parameters
    strengths = {m: numbers[m.strength] if m.strength else 1.0 for m in learner.methods}
    more = [f"{'negative ' * (value < 0)}{method.label}" for method, value in strengths.items() if value]
    if actor.layer_norm and not any(method.name == "layernorm" for method in learner.methods):
        more.append("LN")
    # the paper's names for what is added to its Top-K actor do not repeat the actor's: SPHERE, LN, C-CHAIN
    alone = base == ACTORS["top-k"] and more and min(strengths.values(), default=0.0) >= 0
    if place and actor.kind != "mlp":  # Top-K MoE critic (TD3), SPHERE + LN (TD3)
        return f"{' + '.join(more if alone else [f'{base} {place}', *more])} ({learner.title})"
    return " + ".join(more if alone else [base, *more])
