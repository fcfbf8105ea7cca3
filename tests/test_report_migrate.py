"""Records of format 1 in today's format: names, seeds and lengths are what readers worked out before records said them.

The table of names is the specification: it was recorded from the readers of version 0.1.
"""

import copy
import dataclasses
import json
from pathlib import Path

import fleets
import pytest
from made_runs import old_settings, settings, write_run

from sphere.methods import Sphere
from sphere.report.load import load
from sphere.storage.migrate import choices, current
from sphere.storage.reader import read_record
from sphere.training.describe import run_records

RESULTS = Path(__file__).resolve().parents[1] / "results"

SCALE_FREE = "SPHERE (coefficient gradient-norm, variant scale-free, rho 0.1)"
LOSS_RATIO = "SPHERE (coefficient loss-ratio, variant last, rho 0.1)"
WEAK = "SPHERE (coefficient gradient-norm, variant last, rho 0.01)"

KEPT = {
    "cifar100-mlp": {("SPHERE", 12500): 5, ("Top-K MoE", 12500): 5},
    "cifar100-mlp-controls": {("SPHERE", 12500): 5, ("Top-K MoE", 12500): 10},
    "cifar100-mlp-controls-first": {("SPHERE", 12500): 1, ("Top-K MoE", 12500): 2},
    "cifar100-vit": {("SPHERE", 12500): 5, ("Top-K MoE", 12500): 5},
    "humanoidbench-diverged": {("SPHERE", 3000320): 2},
    "humanoidbench-rl": {("SPHERE", 3000320): 2},
    "humanoidbench-stand-released": {("SPHERE", 10000384): 1, ("Top-K MoE", 10000384): 1},
    "metaworld-crl": {("SPHERE", 1015808): 5, ("Top-K MoE", 1015808): 5},
    "metaworld-crl-coefficients": {("SPHERE", 1015808): 7},
    "metaworld-crl-first": {("SPHERE", 1015808): 5, ("Top-K MoE", 1015808): 5},
    "metaworld-crl-layernorm": {("LN", 1015808): 2},
    "metaworld-crl-ppo": {("PPO", 1015808): 5},
    "metaworld-demo": {("SPHERE", 143360): 2, ("Top-K MoE", 143360): 2},
    "metaworld-rl": {("SPHERE", 1015808): 50, ("Top-K MoE", 1015808): 50},
    "metaworld-rl-check": {("Top-K MoE", 1015808): 2},
    "metaworld-rl-exchange": {("Top-K MoE", 1032192): 1},
    "metaworld-rl-partial": {("SPHERE", 1015808): 3, ("Top-K MoE", 1015808): 3},
    "metaworld-rl-td3": {("Top-K MoE critic (TD3)", 1000000): 2},
    "metaworld-rl-td3-checks": {("TD3", 300000): 1, ("Top-K MoE critic (TD3)", 100000): 1},
    "newsgroups": {("SPHERE", 50): 10, ("Top-K MoE", 50): 10},
    "newsgroups-all": {("SPHERE", 50): 10, ("Top-K MoE", 50): 10},
    "newsgroups-parts": {("Top-K MoE", 50): 2},
    "newsgroups-plain": {("SPHERE", 50): 10, ("Top-K MoE", 50): 10},
    "newsgroups-post-ln": {("SPHERE", 50): 10, ("Top-K MoE", 50): 10},
    "probe-crl": {("LN", 40960): 3, ("SPHERE", 40960): 3, ("Top-K MoE", 40960): 3},
}
"""Directory of results -> label and steps of a task -> how many runs."""

METHODS = {
    "humanoidbench-rl": {("SPHERE", "rl", 2): [0]},
    "metaworld-crl": {("SPHERE", "crl", 10): [0, 1, 2, 3, 4], ("Top-K MoE", "crl", 10): [0, 1, 2, 3, 4]},
    "metaworld-crl-coefficients": {
        (WEAK, "crl", 2): [0, 1, 2],
        (WEAK, "crl", 3): [3, 4],
        (SCALE_FREE, "crl", 3): [0],
        (LOSS_RATIO, "crl", 3): [0],
    },
    "metaworld-crl-layernorm": {("LN", "crl", 2): [0, 1]},
    "metaworld-crl-ppo": {("PPO", "crl", 10): [0, 1, 2, 3, 4]},
    "metaworld-rl": {("SPHERE", "rl", 10): [0, 1, 2, 3, 4], ("Top-K MoE", "rl", 10): [0, 1, 2, 3, 4]},
    "metaworld-rl-check": {("Top-K MoE", "rl", 1): [0], ("Top-K MoE", "rl", 4): [0]},
}
"""Directory of results -> method, protocol and number of tasks as a report has them -> seeds."""


def test_every_record_that_is_kept_is_in_the_table():
    found = {path.relative_to(RESULTS).parts[0] for path in RESULTS.rglob("config.json")}
    assert sorted(found) == sorted(KEPT)


@pytest.mark.parametrize("name", KEPT)
def test_kept_records_have_the_names_they_had(name):
    found: dict[tuple[str, int], int] = {}
    for path in sorted((RESULTS / name).rglob("config.json")):
        record = read_record(path.parent)
        key = record["label"], record["task_steps"]
        found[key] = found.get(key, 0) + 1
        assert record["suite"] == name.split("-")[0]
        assert f"seed{record['seed']}" in path.parent.name
    assert found == KEPT[name]


@pytest.mark.parametrize("name", METHODS)
def test_kept_runs_have_the_methods_they_had(name):
    found: dict[tuple[str, str, int], list[int]] = {}
    for run in load([RESULTS / name]).runs:
        found.setdefault((run.method, run.protocol, len(run.tasks)), []).append(run.seed)
    assert {key: sorted(seeds) for key, seeds in found.items()} == METHODS[name]


def test_a_record_of_today_comes_back_as_it_is():
    config = settings(rho=0.1)
    before = copy.deepcopy(config)
    assert current(config) == before
    assert config == before


@pytest.mark.parametrize(
    ("penalty", "method"),
    [
        ({}, "SPHERE"),
        ({"variant": "scale-free"}, "SPHERE (variant scale-free)"),
        ({"variant": "fixed-scale", "target_scale": 0.0}, "SPHERE (variant fixed-scale, target scale 0)"),
        ({"coefficient": "loss-ratio"}, "SPHERE (coefficient loss-ratio)"),
        ({"placement": "critic"}, "SPHERE (placement critic)"),
        ({"target_scale": 0.0}, "SPHERE"),  # has no effect on SPHERE itself
    ],
)
def test_another_penalty_than_sphere_is_named_as_such(tmp_path, penalty, method):
    """Alone in a report, from settings of a fleet and from records that do not say it yet, of both formats."""
    sphere = {"variant": "last", "coefficient": "gradient-norm", "placement": "actor", "mixtures": "last"} | penalty
    write_run(tmp_path / "one", settings(rho=0.1, learner__methods={"sphere": sphere}))
    write_run(tmp_path / "two", old_settings(rho=0.1, ppo__penalty=sphere))
    learner = dataclasses.replace(fleets.TINY.learner, methods=(Sphere(**penalty),))
    config = fleets.changed(fleets.TINY, learner=learner, steps_per_task=3000, seeds=(0,), rho=(0.1,))
    write_run(tmp_path / "three", json.loads(json.dumps(run_records(config, fleets.SPEC)[0].config)))
    for name in ("one", "two", "three"):
        (run,) = load([tmp_path / name]).runs
        assert run.method == method


def test_a_plain_run_has_no_choices():
    config = settings(rho=0.0, learner__methods={"sphere": {"variant": "scale-free"}})
    assert choices(config) == {}


def test_a_record_of_a_later_version_is_refused():
    with pytest.raises(ValueError, match="format 3; this version reads 1 and 2"):
        current({"format": 3})


def test_settings_take_their_new_places():
    old = old_settings(2, 0.1, ppo__mitigations={"c_chain": {"weight": 1.0}, "cbp": None}, workers=3)
    old |= {"simulator": {"horizon": 200}, "normalise_observations": True, "note": "mine"}
    before = copy.deepcopy(old)
    new = current(old)
    assert old == before
    assert (new["learner"], new["method"], new["actor"], new["seed"]) == ("ppo", "sphere+c-chain", "top-k", 2)
    assert (new["score"], new["source"], new["varies"]) == ("success_at_end", "environments", ["rho"])
    assert new["numbers"] == {"rho": 0.1, "learning_rate": 3e-4}
    chosen = new["settings"]
    assert chosen["learner"]["methods"] == {"sphere": old["ppo"]["penalty"], "c-chain": {"weight": 1.0}}
    assert "penalty" not in chosen["learner"]
    assert chosen["learner"]["actor"] == old["ppo"]["actor"]
    assert (chosen["source"]["horizon"], chosen["source"]["workers"]) == (200, 3)
    assert chosen["source"]["normalise_observations"] is True
    assert chosen["boundary"]["optimiser"] is True
    assert chosen["note"] == "mine"
    assert "ppo" not in chosen


@pytest.mark.parametrize(
    ("steps", "envs", "rollout", "whole"), [(1_000_000, 8, 2048, 1_015_808), (3000, 10, 100, 3000), (1, 4, 64, 256)]
)
def test_a_task_has_whole_rollouts(steps, envs, rollout, whole):
    old = old_settings(steps_per_task=steps, ppo__num_envs=envs, ppo__rollout_steps=rollout)
    assert current(old)["task_steps"] == whole


def test_without_rho_the_penalty_is_no_method():
    assert current(old_settings(rho=0.0))["method"] == "none"
    assert current(old_settings(rho=0.0, ppo__actor__layer_norm=True))["method"] == "layernorm"
    assert current(old_settings(rho=-0.1))["method"] == "sphere"


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "Top-K MoE"),
        ({"rho": 0.1}, "SPHERE"),
        ({"rho": -0.001}, "Top-K MoE + negative SPHERE"),
        ({"ppo__actor": {"kind": "mlp"}}, "PPO"),
        ({"ppo__actor": {"kind": "mlp"}, "rho": 0.1}, "PPO + SPHERE"),
        ({"ppo__actor": {"kind": "mlp", "width": 834}, "ppo__critic": {"kind": "mlp", "width": 256}}, "PPO(10x)"),
        ({"ppo__actor": {"kind": "dense", "experts": 10}}, "Dense-MoE"),
        ({"ppo__actor": {"kind": "deepseek", "experts": 10}, "rho": 0.1}, "DS-MoE + SPHERE"),
        ({"ppo__actor__layer_norm": True}, "LN"),
        ({"ppo__actor__layer_norm": True, "rho": 0.1}, "SPHERE + LN"),
        ({"ppo__penalty": None, "rho": 0.0}, "Top-K MoE"),
        ({"ppo__mitigations": {"c_chain": {"weight": 1.0}, "cbp": None}}, "C-CHAIN"),
        ({"ppo__mitigations": {"layernorm": {}, "redo": {"tau": 0.1}}}, "LN + ReDo"),
        ({"ppo__mitigations": {"load_balance": {}}, "rho": 0.1}, "SPHERE + Load balancing"),
        ({"ppo__mitigations": {"parseval": {}}, "ppo__actor": {"kind": "mlp"}}, "PPO + PW"),
        ({"ppo__mitigations": {"novel": {}}}, "novel"),
    ],
)
def test_methods_have_the_papers_names(tmp_path, changes, label):
    (run,) = load([write_run(tmp_path / "x", old_settings(**changes))]).runs
    assert run.method == label


def test_old_and_new_records_of_one_method_stand_together(tmp_path):
    write_run(tmp_path / "old", old_settings(seed=0, rho=0.1))
    write_run(tmp_path / "new", settings(seed=1, rho=0.1))
    assert {run.method for run in load([tmp_path]).runs} == {"SPHERE"}


def test_a_run_that_says_nothing_of_its_boundary_has_the_usual_one(tmp_path):
    usual = {"parameters": True, "optimiser": True, "learning_rate": False, "statistics": True, "mitigation": True}
    write_run(tmp_path / "old", old_settings(seed=0))
    write_run(tmp_path / "new", old_settings(seed=1, boundary=usual))
    write_run(tmp_path / "scratch", old_settings(seed=0, protocol="rl"))
    assert {run.method for run in load([tmp_path]).runs} == {"Top-K MoE"}


def test_a_setting_that_came_later_and_is_not_used_makes_no_new_method(tmp_path):
    write_run(tmp_path / "old", old_settings(seed=0))
    write_run(tmp_path / "new", old_settings(seed=1, ppo__mitigations={"redo": None, "cbp": None}))
    assert {run.method for run in load([tmp_path]).runs} == {"Top-K MoE"}
