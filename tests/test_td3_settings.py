"""Settings of TD3: what is refused, what can be chosen by name, what tables call it."""

import dataclasses

import pytest
from test_td3 import CONFIG

from sphere.algos.td3 import TD3
from sphere.methods import CBP, CChain, Sphere
from sphere.nets import NetConfig


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch_size": 8192}, "batch_size=8192 is larger than td3.buffer_size=4096"),
        ({"learning_starts": 5000}, "nothing would ever be learned"),
        ({"learning_starts": 10}, "does not fill a minibatch of 64"),
        ({"update_ratio": -1.0}, "td3.update_ratio=-1.0; want a number"),
        (
            {"methods": (Sphere(),)},
            "methods act on the critic of td3, and its placement is 'actor'; use placement 'critic'",
        ),
        ({"methods": (CChain(),)}, "c-chain has no effect here: .* it is made for a policy"),
        ({"methods": (CBP(),)}, "its placement is 'both'"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(changes, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(CONFIG, **changes)


def test_every_method_for_a_critic_can_be_chosen_by_its_name():
    from sphere.choices import method_names, with_method
    from sphere.presets import preset

    start = dataclasses.replace(preset("probe-crl"), learner=CONFIG)
    taken = []
    for name in method_names():
        if name in ("c-chain", "load-balance"):
            with pytest.raises(ValueError, match="made for a policy"):
                with_method(start, name)
            continue
        chosen = with_method(start, name).learner.methods
        taken.append(name)
        assert all(getattr(method, "placement", "critic") == "critic" for method in chosen)
    assert taken == [
        *("none", "sphere", "layernorm", "spectral-norm", "cbp", "parseval", "redo", "spectral-reg"),
    ]


def test_tables_name_the_critic():
    from sphere.choices import with_method
    from sphere.presets import preset
    from sphere.training.describe import label

    def named(name, method, rho=0.1):
        learner = with_method(preset(name), method).learner
        return label(learner, learner.numbers | {"rho": rho})

    assert named("metaworld-crl-td3", "none") == "Top-K MoE critic (TD3)"
    assert named("metaworld-crl-td3", "sphere") == "SPHERE (TD3)"
    assert named("metaworld-crl-td3", "sphere", rho=0.0) == "Top-K MoE critic (TD3)"
    assert named("metaworld-crl-td3", "layernorm") == "LN (TD3)"
    assert named("metaworld-rl-td3-ln", "sphere+layernorm") == "SPHERE + LN (TD3)"
    assert named("metaworld-cw20", "sphere") == "SPHERE"
    dense = TD3(critic=NetConfig(kind="mlp"), methods=())
    assert label(dense, dense.numbers) == "TD3"


def test_the_longer_chain_has_each_of_ten_tasks_twice():
    from sphere.presets import CW10, preset

    assert [task.split("/")[1] for task in preset("metaworld-cw20").tasks] == [*CW10, *CW10]
