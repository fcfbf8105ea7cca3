"""Methods and actors by their names, and where they do not apply."""

import contextlib
import dataclasses
import json
import re

import pytest
from updates import (
    with_methods,
)

from sphere import registry
from sphere.algos.ppo import PPO
from sphere.choices import ACTORS, method_name, method_names, tenfold, with_actor, with_method
from sphere.cli.main import main
from sphere.methods import CBP, CChain, LayerNorm, LoadBalance, Parseval, SpectralNorm, Sphere
from sphere.nets import NetConfig
from sphere.presets import preset
from sphere.training import loop
from sphere.training.settings import from_json, to_json


def test_methods_have_the_names_under_which_they_are_chosen():
    start = preset("metaworld-crl")
    for name in [*method_names(), "sphere+layernorm", "c-chain+cbp+spectral-norm"]:
        config = with_method(start, name)
        assert set(method_name(config).split("+")) == set(name.split("+"))
        assert from_json(json.loads(json.dumps(to_json(config)))) == config
    assert with_method(start, "pw") == with_method(start, "parseval")
    assert with_method(start, "sphere") == start
    assert with_method(start, "cbp").rho == (0.0,)
    assert method_name(start) == "sphere"  # what presets are by default
    assert with_method(start, "pw").learner.methods == (Parseval(weight=1e-3),)
    assert with_method(preset("humanoidbench-crl"), "pw").learner.methods == (Parseval(weight=1e-4),)


def test_actors_have_the_names_of_the_paper():
    start = preset("metaworld-crl")
    assert {name: with_actor(start, name).learner.actor.kind for name in ACTORS} == ACTORS
    wide = tenfold(with_actor(start, "ppo-10x"), 39, 4)
    assert wide.learner.actor == NetConfig(kind="mlp", width=834)  # docs/deviations.md
    assert wide.learner.critic == start.learner.critic


@pytest.mark.parametrize(
    ("actor", "method", "sentence"),
    [
        (NetConfig(kind="mlp"), LoadBalance(), "needs experts to balance"),
        (NetConfig(kind="soft"), LoadBalance(), "no effect on a 'soft'"),
        (NetConfig(top_k=10), LoadBalance(), "all experts are always chosen"),
        (NetConfig(kind="expert-choice"), LoadBalance(), "takes equally many samples"),
        (NetConfig(kind="mlp"), Sphere(variant="gate"), "the actor is a dense network"),
        (NetConfig(), Sphere(variant="gate", placement="both"), "the critic is a dense network"),
        (NetConfig(depth=1), SpectralNorm(), "depth is 1; use depth 2 or more"),
    ],
)
def test_a_method_that_does_not_apply_is_refused(actor, method, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        with_methods(dataclasses.replace(PPO(), actor=actor), method)


@pytest.mark.parametrize("method", [LayerNorm(), Sphere(), CChain(), LoadBalance(), CBP(placement="actor")])
def test_a_placement_that_no_network_of_the_learner_has_is_refused(method):
    with pytest.raises(
        ValueError, match=f"{method.name} acts on the network 'actor', and this learner has only 'critic'"
    ):
        method.check({"critic": NetConfig()})
    method.check({"critic": NetConfig(kind="mlp"), "actor": NetConfig()})


def test_both_are_all_networks_of_a_learner():
    assert CBP().placed(["encoder", "actor", "critic"]) == ["encoder", "actor", "critic"]
    assert CBP(placement="critic").placed({"actor": 1, "critic": 2}) == ["critic"]


def test_methods_by_name_have_labels_and_one_has_a_strength():
    methods = {name: registry.method(name) for name in method_names() if name != "none"}
    assert [method.name for method in methods.values()] == list(methods)
    assert [method.label for method in methods.values()] == [
        *("SPHERE", "LN", "Spectral Normalization", "C-CHAIN", "CBP", "PW", "ReDo"),
        *("Spectral Regularization", "Load balancing"),
    ]
    assert {method.name: method.strength for method in methods.values() if method.strength} == {"sphere": "rho"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--method cpb", "did you mean cbp?"),
        ("--method sphere+layernrm", "did you mean layernorm?"),
        ("--method none cbp none", "names none twice"),
        ("--method cbp+cbp", "name each method once"),
        ("--method none+cbp", "none alone"),
        ("--method redo --cbp.decay 0.9", "--cbp.decay is a setting of the method cbp, which is not chosen"),
        ("--method cbp --rho 0.1", "no effect without SPHERE"),
        ("--method load-balance --actor ppo", "needs experts to balance"),
        ("--actor topk", "did you mean top-k?"),
    ],
)
def test_mistakes_on_the_command_line_are_answered_with_a_sentence(words, sentence, capsys):
    with contextlib.suppress(SystemExit):  # what tyro finds while it builds the settings
        assert main(["train", "--preset", "probe-crl", *words.split()]) == 1
    assert sentence in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_methods_and_their_settings_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = {}
    monkeypatch.setattr(loop, "train", lambda fleet, out, **_: saved.update(fleet=fleet, out=str(out)))
    words = "train --preset probe-crl --method cbp+layernorm --actor ds-moe --layernorm.placement both".split()
    assert main([*words, "--cbp.replacement-rate", "1e-3"]) == 0
    assert saved["fleet"].learner.methods == (LayerNorm(placement="both"), CBP(replacement_rate=1e-3))
    assert saved["fleet"].learner.actor.kind == "deepseek"
    assert saved["out"] == "runs/probe-crl-ds-moe-cbp+layernorm"
    assert main("train --preset probe-crl --method=sphere --sphere.variant gate --rho 0 0.2".split()) == 0
    assert saved["fleet"].learner.methods == (Sphere(variant="gate"),)
    assert saved["fleet"].rho == (0.0, 0.2)
    assert main("train --preset probe-crl --actor ppo-10x --method none".split()) == 0
    assert saved["fleet"].learner.actor.width > 3 * 32
    assert main("train --preset probe-crl --seeds 0 1".split()) == 0
    assert saved["fleet"] == dataclasses.replace(preset("probe-crl"), seeds=(0, 1))
    with pytest.raises(SystemExit):
        main("train --preset probe-crl --method cbp --help".split())
    said = capsys.readouterr().out
    assert "--cbp.maturity" in said
    assert "spectral-norm" in said
