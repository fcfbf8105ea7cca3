"""Experiments: settings at every scale, and tables and figures from made-up runs."""

import dataclasses
import json
import re

import jax
import pytest
from fleets import TINY, changed

from sphere.experiments import find, registry
from sphere.experiments.arms import PAIR, Arm
from sphere.experiments.configs import SIZES, config_of, identity, identity_of
from sphere.experiments.experiment import SCALES
from sphere.experiments.gather import schedule_of, wanted
from sphere.methods import CBP, Sphere
from sphere.nets import build, parameter_count
from sphere.presets import PRESETS
from sphere.report import paper
from sphere.training.settings import to_json

ASKED_FOR = """
activation dense-backbones design-ablations expert-choice expert-count feature-rank gate-expert kfac kronecker
humanoidbench-archs humanoidbench-bars humanoidbench-crl humanoidbench-rl layernorm lead-lag load-balance
metaworld-archs metaworld-bars metaworld-crl metaworld-ntk metaworld-rl ntk-heldout ntk-online placement
plasticity-diagnostics retention rho-sweep runtime sign-flip specialisation spectral-baselines sphere-ablation
structures ten-seeds tsne longer-chain td3-bc td3-critic td3-layernorm cifar100-mlp cifar100-vit newsgroups
pixels
""".split()
NAMES = list(registry())
NETWORKS = ("feature-rank", "gate-expert", "kfac", "kronecker", "tsne")
"""These look at checkpoints, not only at records."""
STREAMS = ("cifar100-mlp", "cifar100-vit", "newsgroups")
"""Labelled tasks: an outcome is a test set, and comes at the end of a task only."""


# Settings
def test_there_is_an_experiment_for_everything():
    assert sorted(ASKED_FOR) == sorted(NAMES)


@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_has_valid_settings(scale):
    """Settings refuse what is impossible; a label occurs once per suite, protocol and task list."""
    for name in NAMES:
        arms = wanted(find(name), scale)
        labels = [(arm.label, arm.config.protocol, arm.config.tasks) for arm in arms]
        assert len(set(labels)) == len(labels), name
        assert len({identity_of(arm.config) for arm in arms}) == len(arms), name
        for one in arms:
            assert len(one.config.rho) == 1
            if one.config.source.kind == "stream":  # its networks read images and texts
                continue
            seen = 51 if one.config.learner.actor.encoder is None else (84, 84, 9)
            jax.eval_shape(lambda key, c=one.config, n=seen: build(c.learner.actor, n, 19, key=key), jax.random.key(0))


def test_sources_are_labels_of_the_paper():
    known = {*paper.TABLES, *paper.SOURCES.values()}
    for name in NAMES:
        for label in re.findall(r"tab:[\w-]+", find(name).source):
            assert label in known, name


def test_rows_of_tables_are_those_of_the_paper():
    """Labels that a table looks up in the paper's are spelled as there; else its number would be missing silently."""
    for name in ("sphere-ablation", "design-ablations", "placement", "pixels", "expert-choice", "spectral-baselines"):
        source = find(name).source
        assert set(find(name).labels) == set(paper.TABLES[source]), name
    for suite, protocol in paper.SUCCESS:
        assert set(find(f"{suite}-{protocol}").labels) == set(paper.SUCCESS[suite, protocol])


def test_the_papers_scale_is_the_preset():
    by_label = {arm.label: arm.config for arm in wanted(find("metaworld-crl"), "paper")}
    preset = PRESETS["metaworld-crl"]
    assert by_label["SPHERE"] == dataclasses.replace(preset, seeds=(0, 1, 2, 3, 4))
    bare = dataclasses.replace(preset.learner, methods=())
    assert by_label["Top-K MoE"] == dataclasses.replace(preset, seeds=(0, 1, 2, 3, 4), rho=(0.0,), learner=bare)
    assert by_label["CBP"].learner.methods == (CBP(),)
    assert len(wanted(find("ten-seeds"), "paper")[0].config.seeds) == 10
    rates = {arm.label: arm.config.rho[0] for arm in wanted(find("sign-flip"), "paper")}
    assert list(rates.values()) == [0.0, 1e-3, -1e-3]
    assert wanted(find("metaworld-crl"), "paper", (7, 9))[0].config.seeds == (7, 9)


def test_under_rl_every_task_is_a_fleet_of_its_own_but_for_smoke(tmp_path):
    """Then a cluster, or a machine that trains several fleets at once, need not wait for one task to begin the next."""
    pair = find("metaworld-rl").only(PAIR)
    jobs = schedule_of(pair, "paper", None, tmp_path).jobs
    assert [job.config.tasks for job in jobs] == [(task,) for task in PRESETS["metaworld-rl"].tasks]
    assert {(job.config.seeds, job.config.rho) for job in jobs} == {((0, 1, 2, 3, 4), (0.0, 0.1))}
    assert all(job.directory.name.startswith(f"metaworld-rl-{job.config.tasks[0][10:]}-top-k-") for job in jobs)
    (smoke,) = schedule_of(pair, "smoke", None, tmp_path).jobs
    assert len(smoke.config.tasks) == 2
    assert len(schedule_of(find("metaworld-crl").only(PAIR), "paper", None, tmp_path).jobs) == 1


def test_some_methods_of_an_experiment():
    arms = wanted(find("metaworld-bars").only(["SPHERE", "LN"]), "smoke")
    labels = [(arm.label, arm.config.protocol) for arm in arms]
    assert labels == [("LN", "rl"), ("SPHERE", "rl"), ("LN", "crl"), ("SPHERE", "crl")]


def test_ten_times_the_parameters():
    for suite, sizes in SIZES.items():
        nets = [config_of(Arm("", actor=actor, preset=f"{suite}-crl")).learner.actor for actor in ("ppo", "ppo-10x")]
        counts = [parameter_count(build(net, *sizes, key=jax.random.key(0))) for net in nets]
        assert 10 <= counts[1] / counts[0] < 10.2


def test_the_sizes_of_a_suite_are_those_of_its_simulator():
    from sphere import envs

    with envs.make("metaworld/hammer", num_envs=1, seed=0, workers=0) as pool:
        spaces = pool.single_observation_space, pool.single_action_space
    assert tuple(space.shape[0] for space in spaces) == SIZES["metaworld"]


def test_identity_leaves_out_what_makes_no_difference():
    config = dataclasses.replace(TINY, seeds=(0,), rho=(0.1,))
    same = changed(config, workers=3, overlap=True, sharing=2, checkpoint_every=7, seeds=(5,))
    assert identity_of(config) == identity_of(same)
    other = dataclasses.replace(config, steps_per_task=641)
    assert identity_of(config) != identity_of(other)
    gate = dataclasses.replace(config.learner, methods=(Sphere(variant="gate"),))
    assert identity_of(config) != identity_of(dataclasses.replace(config, learner=gate))
    none = [dataclasses.replace(config, rho=(0.0,), learner=learner) for learner in (config.learner, gate)]
    assert identity_of(none[0]) == identity_of(none[1])  # without rho there is no penalty
    assert identity(json.loads(json.dumps(to_json(config)))) == identity_of(config)
