"""Run directories with known numbers, written as training writes them but without training."""

import copy
import json
from pathlib import Path

import numpy as np

TASKS = ("metaworld/hammer", "metaworld/push-wall", "metaworld/faucet-close")
COLUMNS = ("return", "length", "success_once", "success_at_end")

OLD = {
    "tasks": list(TASKS),
    "protocol": "crl",
    "steps_per_task": 3000,
    "seeds": [0],
    "rho": [0.0],
    "ppo": {
        "num_envs": 10,
        "rollout_steps": 100,
        "learning_rate": 3e-4,
        "actor": {"kind": "top-k", "experts": 4, "top_k": 2, "layer_norm": False},
        "critic": {"kind": "mlp"},
        "penalty": {"variant": "last", "coefficient": "gradient-norm"},
    },
    "evaluation": {"every": 1000, "episodes": 4, "retention": True},
    "workers": None,
}
"""A config.json of format 1."""

SETTINGS = {
    "tasks": list(TASKS),
    "protocol": "crl",
    "steps_per_task": 3000,
    "seeds": [0],
    "rho": [0.0],
    "vary": {},
    "learner": {
        "kind": "ppo",
        "num_envs": 10,
        "rollout_steps": 100,
        "learning_rate": 3e-4,
        "actor": {"kind": "top-k", "experts": 4, "top_k": 2, "layer_norm": False},
        "critic": {"kind": "mlp"},
        "methods": {"sphere": {"variant": "last", "coefficient": "gradient-norm"}},
    },
    "source": {"kind": "environments", "normalise_observations": False, "workers": None},
    "boundary": {"parameters": True, "optimiser": True, "learning_rate": False, "statistics": True, "methods": True},
    "evaluation": {"every": 1000, "episodes": 4, "retention": True},
    "sharing": 1,
    "plugins": [],
}
ENVIRONMENT = {
    "python": "3.11.7",
    "versions": {"sphere-rl": "0.1.0", "jax": "0.10.2", "numpy": "2.4.6"},
    "git": {"commit": "874834bde0640a5e51cbf0530d345cfc16112c83", "dirty": False},
    "device": {"kind": "cpu", "platform": "cpu", "count": 1},
}


def _changed(config: dict, changes: dict) -> dict:
    """`learner__actor__experts=16` reaches into the settings."""
    config = copy.deepcopy(config)
    for path, value in changes.items():
        place = config
        *parents, last = path.split("__")
        for parent in parents:
            place = place[parent]
        place[last] = value
    return config


def old_settings(seed=0, rho=0.0, protocol="crl", **changes) -> dict:
    """config.json of one run, format 1."""
    return _changed(OLD, {"seeds": [seed], "rho": [rho], "protocol": protocol} | changes)


def settings(seed=0, rho=0.0, protocol="crl", *, says: dict | None = None, **changes) -> dict:
    """config.json of one run, format 2. `changes` are changes of its settings; `says` is what else it says of
    itself."""
    chosen = _changed(SETTINGS, {"seeds": [seed], "rho": [rho], "protocol": protocol} | changes)
    return {
        "format": 2,
        "learner": "ppo",
        "method": "sphere" if rho else "none",
        "actor": "top-k",
        "label": "SPHERE" if rho else "Top-K MoE",
        "suite": chosen["tasks"][0].split("/")[0] if chosen["tasks"] else "",
        "source": "environments",
        "score": "success_at_end",
        "columns": list(COLUMNS),
        "task_steps": -(-chosen["steps_per_task"] // 1000) * 1000,
        "seed": seed,
        "numbers": {"rho": rho, "learning_rate": chosen["learner"]["learning_rate"]},
        "varies": ["rho"],
        "plugins": [],
        "spec": {"observation": [39], "action": [4]},
        "settings": chosen,
    } | (says or {})


def write_run(path: Path, config: dict, *, stop_at: int | None = None, shift: float = 0.0) -> Path:
    """A run that gets better in every task: success k/4 at evaluation k; `stop_at` leaves it after that many
    steps. Format 1 or 2, as the config is. A stream of labelled tasks has one test set instead of episodes, and is
    evaluated at the end of a task only: accuracy 3/4."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config, indent=2))
    (path / "environment.json").write_text(json.dumps(ENVIRONMENT))
    chosen, columns = config.get("settings", config), config.get("columns", COLUMNS)
    stream = chosen["source"] if chosen.get("source", {}).get("kind") == "stream" else None
    tasks, protocol, count = chosen["tasks"], chosen["protocol"], 1 if stream else chosen["evaluation"]["episodes"]
    seed, experts = chosen["seeds"][0], chosen.get("learner", chosen.get("ppo"))["actor"].get("experts", 0)
    metrics, episodes, step = [], [], 0
    rng = np.random.default_rng(seed)

    def evaluate(index, kind, good):
        where = {"step": step, "task": tasks[index]} | ({"task_index": index} if "format" in config else {})
        for number in range(count):
            once = number < good + (kind == "evaluation")
            every = {"return": float(good), "length": 50, "success_once": once, "success_at_end": number < good}
            every |= {"accuracy": good / 4, "loss": -float(good)} | accuracies(good, stream)
            outcomes = {name: every[name] for name in columns}
            episodes.append(where | {"kind": kind, "seed": seed, "episode": number} | outcomes)
        once = min(good + (kind == "evaluation"), count)
        means = {"success_at_end": good / count, "success_once": once / count, "return": good, "length": 50}
        means |= {"accuracy": good / 4, "loss": -good} | accuracies(good, stream)
        values = {f"{kind}/{name}": means[name] for name in columns if name != "length"}
        if kind == "evaluation":
            for place in ("heldout", "online"):
                values |= {f"{place}/ntk_rank": 10 - step / 3000 + shift + rng.uniform(), f"{place}/silhouette": "nan"}
                values |= {f"{place}/dormant_ratio": 0.1, f"{place}/routing_entropy": 0.8}
                values[f"{place}/feature_norm"] = 2.0
                values |= {f"{place}/load/{e}": 1 / experts for e in range(experts)}
            values["standardised/ntk_rank"] = 20.0 + shift
        metrics.append({"step": step, "task": tasks[index], "task_index": index, "wall": 1.0 + step, **values})

    for index, task in enumerate(tasks):
        for good in (1, 2, 3)[: -(-chosen["steps_per_task"] // 1000)]:
            step += 1000
            if stop_at is not None and step > stop_at:
                break
            metrics.append({"step": step, "task": task, "task_index": index, "wall": step, "train/loss": 0.5})
            if not stream or good == 3:
                evaluate(index, "evaluation", good)
        else:
            last = index == len(tasks) - 1
            if protocol == "crl" and (last or chosen["evaluation"]["retention"]):
                for other in range(len(tasks)):
                    good = 3 if other == index else 1 if other < index else 0
                    evaluate(other, "final" if last else "retention", good)
            continue
        break
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in episodes))
    return path


def accuracies(good: int, stream: dict | None) -> dict[str, float]:
    """good/4 by the argmax that is the score's; within a task more is right than among all classes."""
    if stream is None:
        return {}
    of_all, within = (good / 4, (good + 4) / 8) if stream["argmax"] == "all" else (good / 8, good / 4)
    return {"accuracy_of_all": of_all, "accuracy_within_task": within}


def agree(path: Path) -> Path:
    """Means in metrics.jsonl as they are by episodes.jsonl, where a test has changed episodes."""
    events, episodes = (
        [json.loads(line) for line in (path / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "episodes.jsonl")
    )
    for event in events:
        for name in event:
            kind, _, column = name.partition("/")
            own = [
                float(one[column])
                for one in episodes
                if column in one and (one["step"], one["task"], one["kind"]) == (event["step"], event["task"], kind)
                if one.get("task_index", event["task_index"]) == event["task_index"]
            ]
            if own:
                event[name] = "nan" if np.isnan(np.mean(own)) else float(np.mean(own))
    (path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def write_comparison(root: Path, seeds=(0, 1, 2)) -> Path:
    """Two methods under both protocols."""
    for protocol in ("crl", "rl"):
        for rho in (0.0, 0.1):
            for seed in seeds:
                config = settings(seed, rho, protocol)
                write_run(root / protocol / f"rho{rho:g}-seed{seed}", config, shift=20 * rho)
    return root


def write_page(root: Path) -> Path:
    """What a report is full with: two methods under both protocols, a third that is still going, a directory that is no
    run."""
    write_comparison(root)
    dense = {"learner__actor": {"kind": "mlp"}, "says": {"label": "PPO", "actor": "mlp"}}
    write_run(root / "crl" / "dense", settings(protocol="crl", **dense), stop_at=4000)
    (root / "foreign").mkdir()
    (root / "foreign" / "config.json").write_text("{}")
    return root
