"""Old config.json files in today's form. Every guess about what an old record means stands here and nowhere else.

Format 1 held the flat settings of a fleet and said neither method nor label, score or length of a task: readers
worked them out. `current` does that once. Format 2 says all of it and is believed as it is. The tables below belong
to format 1, which no version writes any more, so nothing is ever added to them. The first records of format 2 did not
say which variant of the penalty they have: `choices`.
"""

from collections.abc import Mapping
from typing import Any

from sphere.storage.files import FORMAT

ACTORS = {
    "mlp": "PPO",
    "top-k": "Top-K MoE",
    "dense": "Dense-MoE",
    "deepseek": "DS-MoE",
    "soft": "SoftMoE",
    "expert-choice": "Expert-choice routing",
}
"""Kind of the actor's network -> what tables call it."""

METHODS = {
    "layernorm": "LN",
    "spectral-norm": "Spectral Normalization",
    "c-chain": "C-CHAIN",
    "cbp": "CBP",
    "parseval": "PW",
    "redo": "ReDo",
    "spectral-reg": "Spectral Regularization",
    "load-balance": "Load balancing",
}
"""Methods beside SPHERE -> what tables call them."""

BOUNDARY = {
    "parameters": True,
    "optimiser": True,
    "learning_rate": False,
    "statistics": True,
    "methods": True,
}
"""What a task switch kept unless a record says otherwise: the first records do not mention it."""

SOURCE = {
    "goals": None,
    "horizon": None,
    "one_hot": None,
    "normalise_observations": False,
    "workers": None,
    "overlap": None,
}

CHOICES = {"variant": "last", "coefficient": "gradient-norm", "placement": "actor", "mixtures": "last"}
"""What SPHERE is, where a record does not say that it is something else."""

DEFAULTS = {"evaluation": {}, "checkpoint_every": 10, "wandb": None, "sharing": 1}
COLUMNS = ("return", "length", "success_once", "success_at_end")
WANTED = ("tasks", "protocol", "steps_per_task", "seeds", "rho")
NUMBERS = ("learning_rate", "final_learning_rate")


def current(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's config.json in today's format; one that has it already comes back as it is."""
    written = config.get("format", 1)
    if written == FORMAT:
        return dict(config)
    if written != 1:
        raise ValueError(f"config.json has format {written!r:.20}; this version reads 1 and {FORMAT}, update sphere-rl")
    _check(config)
    ppo = config.get("ppo") or {}
    actor = ppo.get("actor") or {}
    rho = float(config["rho"][0])
    methods = _methods(ppo, actor)
    found = {"rho": config["rho"][0]} | {name: ppo[name] for name in NUMBERS if ppo.get(name) is not None}
    return {
        "format": FORMAT,
        "learner": "ppo",
        "method": "+".join([*(["sphere"] if rho else []), *methods]) or "none",
        "actor": str(actor.get("kind", "unknown")),
        "label": _label(ppo, actor, rho, methods),
        "suite": config["tasks"][0].split("/")[0],
        "source": "environments",
        "score": "success_at_end",
        "columns": list(COLUMNS),
        "task_steps": _task_steps(ppo, int(config["steps_per_task"])),
        "iteration_steps": _task_steps(ppo, 1),
        "seed": int(config["seeds"][0]),
        "numbers": found,
        "varies": ["rho"],
        "plugins": [],
        "spec": {},
        "settings": settings(config),
    }


def choices(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a record in today's format: what makes its penalty something else than SPHERE, which tables have to name."""
    if "choices" in config:
        return config["choices"]
    learner = config["settings"].get("learner") or {}
    penalty = (learner.get("methods") or {}).get("sphere") or {}
    if "sphere" not in config["method"].split("+") or "td3" in config["learner"]:  # there it acts on critics
        return {}
    found = {name: penalty[name] for name, usual in CHOICES.items() if penalty.get(name, usual) != usual}
    return found | ({"target_scale": penalty["target_scale"]} if found.get("variant") == "fixed-scale" else {})


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of format 1, of a run or of a whole fleet, in the shape of format 2. Unknown ones stay as they are."""
    ppo = dict(config.get("ppo") or {})
    penalty, others = ppo.pop("penalty", None), ppo.pop("mitigations", None) or {}
    used = {} if penalty is None else {"sphere": penalty}
    used |= {name.replace("_", "-"): value for name, value in others.items() if value is not None}
    source = {"kind": "environments", **SOURCE, **(config.get("simulator") or {})}
    source |= {name: config[name] for name in ("normalise_observations", "workers", "overlap") if name in config}
    boundary = config.get("boundary") or {}
    moved = {"ppo", "simulator", "normalise_observations", "workers", "overlap"}
    kept = {name: value for name, value in config.items() if name not in moved}
    return {
        **{name: kept[name] for name in WANTED},
        "vary": {},
        "learner": {"kind": "ppo", **ppo, "methods": used},
        "source": source,
        **DEFAULTS,
        "plugins": [],
        **{name: value for name, value in kept.items() if name not in WANTED},
        "boundary": BOUNDARY | {"methods" if k == "mitigation" else k: v for k, v in boundary.items()},
    }


def _check(config: Mapping[str, Any]) -> None:
    if missing := [name for name in WANTED if name not in config]:
        raise ValueError(f"config.json has no {', '.join(missing)}; it is not a run of sphere train")
    tasks = config["tasks"]
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise ValueError(f"config.json has tasks {tasks!r:.60}, wanted a list of names")
    for name in ("seeds", "rho"):
        if not isinstance(config[name], list) or len(config[name]) != 1:
            raise ValueError(f"config.json has {name} {config[name]!r:.60}, wanted one: a run's own settings")
    for name in ("ppo", "boundary", "simulator"):
        if not isinstance(config.get(name) or {}, dict):
            raise ValueError(f"config.json has {name} {config[name]!r:.60}, wanted settings by name")


def _methods(ppo: Mapping[str, Any], actor: Mapping[str, Any]) -> list[str]:
    """Those beside SPHERE. LayerNorm was a switch of the network before it was a method."""
    used = [name.replace("_", "-") for name, value in (ppo.get("mitigations") or {}).items() if value is not None]
    return used if "layernorm" in used or not actor.get("layer_norm") else ["layernorm", *used]


def _label(ppo: Mapping[str, Any], actor: Mapping[str, Any], rho: float, methods: list[str]) -> str:
    """The paper's name. What is added to its Top-K actor does not repeat the actor's: SPHERE, LN, C-CHAIN."""
    kind = ACTORS.get(str(actor.get("kind")), str(actor.get("kind", "unknown")))
    if kind == "PPO" and _ten_times(actor, ppo.get("critic") or {}):
        kind = "PPO(10x)"
    more = [] if rho == 0 else ["SPHERE" if rho > 0 else "negative SPHERE"]
    more += [METHODS.get(name, name.replace("-", "_")) for name in methods]
    return " + ".join(more if kind == "Top-K MoE" and more and rho >= 0 else [kind, *more])


def _ten_times(actor: Mapping[str, Any], critic: Mapping[str, Any]) -> bool:
    """Whether a dense actor has about ten times the parameters of one as wide as its critic."""
    if not (actor.get("width") and critic.get("width")):
        return False
    return 8 <= (actor["width"] / critic["width"]) ** 2 <= 14


def _task_steps(ppo: Mapping[str, Any], steps: int) -> int:
    """Environment steps of a task, in whole rollouts."""
    rollout = int(ppo.get("num_envs", 1)) * int(ppo.get("rollout_steps", 1))
    return -(-steps // rollout) * rollout
