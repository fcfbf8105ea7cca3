"""The paper's streams as presets and experiments: steps, sizes and settings as the paper and arithmetic give them."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from sphere.algos.learner import DataSpec
from sphere.choices import with_method
from sphere.experiments import find
from sphere.experiments.configs import at_scale, config_of
from sphere.nets import parameter_count
from sphere.presets import preset

NAMES = ("cifar100-mlp", "cifar100-vit", "newsgroups")
IMAGES, POSTS = DataSpec((3072,), 100), DataSpec((256,), 20, vocabulary=20_002)


def network(config, spec):
    numbers = {name: jnp.asarray(value) for name, value in config.learner.numbers.items()}
    state = eqx.filter_eval_shape(lambda: config.learner.init(spec, jnp.zeros((), jnp.uint32), numbers))
    return state.nets["actor"].trunk


@pytest.mark.parametrize(("name", "steps"), [("cifar100-mlp", 2000), ("cifar100-vit", 2000), ("newsgroups", 400)])
def test_gradient_steps_of_the_whole_stream(name, steps):
    config = preset(name)
    batches = -(-config.learner.examples // config.learner.batch_size)
    assert config.total_iterations * batches == steps
    assert config.source.classes * config.source.per_class == config.learner.examples
    for task in config.tasks:
        config.source.check(task)


def test_sizes_of_the_networks():
    """By arithmetic from the paper's settings."""
    vit = network(preset("cifar100-vit"), IMAGES)
    assert len(vit.blocks) == 8
    experts = sum(parameter_count(block.mixture.experts) for block in vit.blocks)
    assert experts == 8 * 128 * (2 * 256 * 256 + 2 * 256)
    assert vit.embed.tokens == 64
    text = network(preset("newsgroups"), POSTS)
    blocks = 4 * (8 * (2 * 128 * 1024 + 1024 + 128) + 128 * 8 + 4 * (128 * 128 + 128) + 4 * 128)
    assert parameter_count(text) == blocks + 20_002 * 128 + 256 * 128 + 2 * 128 + 128 * 20 + 20
    assert {float(preset(name).learner.actor.temperature) for name in ("newsgroups", "newsgroups-all")} == {0.01}


@pytest.mark.parametrize("name", NAMES)
def test_experiments_are_both_methods_of_the_preset_and_run_at_every_scale(name):
    found = {arm.label: config_of(arm) for arm in find(name).arms}
    assert found["SPHERE"] == preset(name)
    assert found["Fine-tune"] == with_method(preset(name), "none")
    assert found["SPHERE"].rho == (0.1,)
    for config in found.values():
        for scale in ("smoke", "small", "paper"):
            small = at_scale(config, scale, (0, 1))
            assert small.learner.examples == small.source.classes * small.source.per_class
            assert len(small.runs) == 2
    single = [at_scale(found[label], "smoke", (0,)) for label in ("SPHERE", "Fine-tune")]
    assert single[0].tasks == single[1].tasks == preset(name).tasks[:2]


@pytest.mark.parametrize("method", ["cbp", "redo", "spectral-reg", "load-balance", "layernorm", "parseval", "c-chain"])
def test_methods_are_chosen_by_name(method):
    config = with_method(preset("newsgroups-demo"), method)
    assert [one.name for one in config.learner.methods] == [method]
    assert config.rho == (0.0,)


FORMS = {
    "newsgroups-all": ("newsgroups", {"softmax"}),
    "newsgroups-post-ln": ("newsgroups", {"norm"}),
    "newsgroups-plain": ("newsgroups", {"norm", "masked", "word_deviation"}),
    "cifar100-vit-post-ln": ("cifar100-vit", {"norm"}),
}


@pytest.mark.parametrize("name", FORMS)
def test_other_forms_of_a_network_differ_in_the_encoder_alone(name):
    (of, changes), spec = FORMS[name], IMAGES if "cifar" in name else POSTS
    one, other = preset(of), preset(name)
    encoder, actor = one.learner.actor.transformer, one.learner.actor
    fields = {f.name: getattr(other.learner.actor.transformer, f.name) for f in dataclasses.fields(encoder)}
    assert {key for key, value in fields.items() if value != getattr(encoder, key)} == changes
    actor = dataclasses.replace(actor, transformer=other.learner.actor.transformer)
    assert dataclasses.replace(one, learner=dataclasses.replace(one.learner, actor=actor)) == other
    assert jax.tree.structure(network(one, spec)) != jax.tree.structure(network(other, spec))


@pytest.mark.parametrize(("name", "others"), [("newsgroups", 0), ("cifar100-vit", 1)])
def test_every_form_is_trained_with_both_methods(name, others):
    arms = find(name).arms
    assert [arm.label for arm in arms][:2] == ["Fine-tune", "SPHERE"]
    own = [form for form, (of, _) in FORMS.items() if of == name]
    assert sorted(arm.preset for arm in arms) == sorted(2 * [name, *own] + others * [name])
    assert len({arm.label for arm in arms}) == len(arms)
