"""Which runs are runs of one method, and what it is called: the paper's names where it has one."""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sphere.training.settings import HOW, Boundary

KINDS = {
    "mlp": "PPO",
    "top-k": "Top-K MoE",
    "dense": "Dense-MoE",
    "deepseek": "DS-MoE",
    "soft": "SoftMoE",
    "expert-choice": "Expert-choice routing",
}

MITIGATIONS = {
    "layernorm": "LN",
    "spectral_norm": "Spectral Normalization",
    "c_chain": "C-CHAIN",
    "cbp": "CBP",
    "parseval": "PW",
    "redo": "ReDo",
    "spectral_reg": "Spectral Regularization",
    "load_balance": "Load balancing",
}

NOT_THE_METHOD = (
    *("seeds", "protocol", "tasks", "steps_per_task", "boundary"),
    *("evaluation", *HOW),
)
"""Settings that runs of one method may differ in: which sample, what it was trained on and how it was watched. `boundary` is
looked at by itself (`_kept`)."""


def method_name(config: Mapping[str, Any]) -> str:
    """Of one run by its settings; runs of different settings may still share it (see `tell_apart`)."""
    ppo = config.get("ppo") or {}
    actor = ppo.get("actor") or {}
    kind = KINDS.get(str(actor.get("kind")), str(actor.get("kind", "unknown")))
    if kind == "PPO" and _ten_times(actor, ppo.get("critic") or {}):
        kind = "PPO(10x)"
    rho = float(config["rho"][0])
    more = [] if rho == 0 else ["SPHERE" if rho > 0 else "negative SPHERE"]
    more += _mitigations(ppo, actor)
    # the paper's names for what is added to its Top-K actor do not repeat the actor's: SPHERE, LN, C-CHAIN
    return " + ".join(more if kind == "Top-K MoE" and more and rho >= 0 else [kind, *more])


def _mitigations(ppo: Mapping[str, Any], actor: Mapping[str, Any]) -> list[str]:
    used = [name for name, value in (ppo.get("mitigations") or {}).items() if value is not None]
    if actor.get("layer_norm") and "layernorm" not in used:
        used.insert(0, "layernorm")
    return [MITIGATIONS.get(name, name) for name in used]


def _ten_times(actor: Mapping[str, Any], critic: Mapping[str, Any]) -> bool:
    """Whether a dense actor has about ten times the parameters of one as wide as its critic."""
    if not (actor.get("width") and critic.get("width")):
        return False
    return 8 <= (actor["width"] / critic["width"]) ** 2 <= 14


def method_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make the method, flat: "ppo.actor.experts" -> 10."""
    rest = {name: value for name, value in config.items() if name not in NOT_THE_METHOD}
    rest["rho"] = config["rho"][0]
    # what is not set is left out: settings that came with a later version do not make another method of an old run
    found = {name: number(value) for name, value in flatten(rest).items() if value is not None}
    if rest["rho"] == 0:  # what a penalty would have been like makes no difference
        found = {name: value for name, value in found.items() if not name.startswith("ppo.penalty")}
    return found


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def number(value: Any) -> Any:
    """5 and 5.0 are one setting."""
    if isinstance(value, list):
        return [number(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def tell_apart(
    configs: Sequence[Mapping[str, Any]], label: Callable[[Mapping[str, Any]], str] = method_name
) -> list[str]:
    """The method of each run. Where one name covers several settings, what differs is added: "SPHERE (rho 0.1)"."""
    flat = _kept(configs, [method_settings(config) for config in configs])
    keys = [_spelled(one) for one in flat]
    groups: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for config, key, settings in zip(configs, keys, flat, strict=True):
        groups[label(config)][key] = settings
    names: dict[tuple[str, str], str] = {}
    for name, members in groups.items():
        for number, (key, more) in enumerate(zip(members, _differences(list(members.values())), strict=True)):
            taken = name if len(members) == 1 else f"{name} ({more})"
            names[name, key] = taken if taken not in names.values() else f"{taken} #{number + 1}"
    return [names[label(config), key] for config, key in zip(configs, keys, strict=True)]


def _spelled(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _kept(configs: Sequence[Mapping[str, Any]], flat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With what a task switch keeps. From scratch nothing is kept, whatever is set: such a run belongs to the sequences of its
    settings, where these are all of one kind."""
    usual = flatten({"boundary": dataclasses.asdict(Boundary())})
    own = [usual | flatten(config.get("boundary") or {}, "boundary.") for config in configs]
    kinds: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for config, settings, kept in zip(configs, flat, own, strict=True):
        if config["protocol"] == "crl":
            kinds[_spelled(settings)][_spelled(kept)] = kept
    found = []
    for config, settings, kept in zip(configs, flat, own, strict=True):
        sequences = list(kinds[_spelled(settings)].values())
        scratch = sequences[0] if len(sequences) == 1 else usual
        found.append(settings | (kept if config["protocol"] == "crl" else scratch))
    return found


def _differences(members: list[dict[str, Any]], most: int = 4) -> list[str]:
    """What sets each of some settings apart from the others, in words."""
    missing = object()
    every = sorted({name for one in members for name in one})
    apart = [
        name
        for name in every
        if len({json.dumps(one.get(name, str(missing)), sort_keys=True, default=str) for one in members}) > 1
    ]
    short = [name.rsplit(".", 1)[-1] for name in apart]
    spoken = [
        last if short.count(last) == 1 and not full.startswith("boundary.") else full  # "optimiser no" says too little
        for full, last in zip(apart, short, strict=True)
    ]
    return [
        ", ".join(
            f"{word} {spell(one.get(name, 'none'))}" for word, name in list(zip(spoken, apart, strict=True))[:most]
        )
        + (", …" if len(apart) > most else "")
        for one in members
    ]


def spell(value: Any) -> str:
    """A setting as people write it: 0.001, not 1e-3; a list as words."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float) and math.isfinite(value):
        return f"{int(value)}" if value.is_integer() and abs(value) < 1e15 else f"{value:g}"
    if isinstance(value, list | tuple):
        return " ".join(spell(one) for one in value)
    return str(value)
