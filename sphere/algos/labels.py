"""How tables call a learner with its methods: the paper's names where it has one."""

from collections.abc import Mapping

from sphere.algos.learner import Learner

ACTORS = {
    "top-k": "Top-K MoE",
    "dense": "Dense-MoE",
    "deepseek": "DS-MoE",
    "soft": "SoftMoE",
    "expert-choice": "Expert-choice routing",
}
"""Mixtures by kind; a dense network goes by the name of its learner."""


def label(learner: Learner, numbers: Mapping[str, float]) -> str:
    """Of a run with these numbers. A method whose strength is 0 is not named, one below 0 is called negative."""
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
