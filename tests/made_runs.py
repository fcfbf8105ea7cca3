"""Run directories with known numbers, written as training writes them but without training."""

import copy
import json
from pathlib import Path

import numpy as np

TASKS = ("metaworld/hammer", "metaworld/push-wall", "metaworld/faucet-close")

CONFIG = {
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
ENVIRONMENT = {
    "python": "3.11.7",
    "versions": {"sphere-rl": "0.1.0", "jax": "0.10.2", "numpy": "2.4.6"},
    "git": {"commit": "874834bde0640a5e51cbf0530d345cfc16112c83", "dirty": False},
    "device": {"kind": "cpu", "platform": "cpu", "count": 1},
}


def settings(seed=0, rho=0.0, protocol="crl", **changes) -> dict:
    config = copy.deepcopy(CONFIG)
    config |= {"seeds": [seed], "rho": [rho], "protocol": protocol}
    for path, value in changes.items():
        place = config
        *parents, last = path.split("__")
        for parent in parents:
            place = place[parent]
        place[last] = value
    return config


def write_run(path: Path, config: dict, *, stop_at: int | None = None, shift: float = 0.0) -> Path:
    """A run that gets better in every task: success k/4 at evaluation k; `stop_at` leaves it after that many steps."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config, indent=2))
    (path / "environment.json").write_text(json.dumps(ENVIRONMENT))
    metrics, episodes, step = [], [], 0
    tasks, experts = config["tasks"], config["ppo"]["actor"].get("experts", 0)
    rng = np.random.default_rng(config["seeds"][0])

    def evaluate(task, kind, good):
        count = config["evaluation"]["episodes"]
        for number in range(count):
            once = number < good + (kind == "evaluation")
            episodes.append(
                {"step": step, "task": task, "kind": kind, "seed": config["seeds"][0], "episode": number}
                | {"return": float(good), "length": 50, "success_once": once, "success_at_end": number < good}
            )
        values = {f"{kind}/success_at_end": good / count, f"{kind}/success_once": good / count, f"{kind}/return": good}
        if kind == "evaluation":
            for place in ("heldout", "online"):
                values |= {f"{place}/ntk_rank": 10 - step / 3000 + shift + rng.uniform(), f"{place}/silhouette": "nan"}
                values |= {f"{place}/dormant_ratio": 0.1, f"{place}/routing_entropy": 0.8}
                values |= {f"{place}/load/{e}": 1 / experts for e in range(experts)}
            values["standardised/ntk_rank"] = 20.0 + shift
        metrics.append({"step": step, "task": task, "task_index": tasks.index(task), "wall": 1.0 + step, **values})

    for index, task in enumerate(tasks):
        for good in (1, 2, 3):
            step += 1000
            if stop_at is not None and step > stop_at:
                break
            metrics.append({"step": step, "task": task, "task_index": index, "wall": step, "train/loss": 0.5})
            evaluate(task, "evaluation", good)
        else:
            last = index == len(tasks) - 1
            if config["protocol"] == "crl" and (last or config["evaluation"]["retention"]):
                for other, name in enumerate(tasks):
                    evaluate(name, "final" if last else "retention", 3 if other == index else 1 if other < index else 0)
            continue
        break
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in episodes))
    return path


def write_comparison(root: Path, seeds=(0, 1, 2)) -> Path:
    """Two methods under both protocols."""
    for protocol in ("crl", "rl"):
        for rho in (0.0, 0.1):
            for seed in seeds:
                config = settings(seed, rho, protocol)
                write_run(root / protocol / f"rho{rho:g}-seed{seed}", config, shift=20 * rho)
    return root
