"""Methods in training: with every actor, in fleets, across tasks, resumed; by their names; refused where they do not
apply."""

import contextlib
import dataclasses
import json
import re
from functools import partial

import equinox as eqx
import fleets
import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from test_ppo import (
    CONFIG,
    PLAIN,
    assert_same_bits,
    experience,
    filled,
    fresh,
    hyper,
    random_batches,
    run,
    small,
    updated,
    with_methods,
)

from sphere import registry
from sphere.algos import fleet as rows
from sphere.algos import ppo
from sphere.algos import state as states
from sphere.algos.learner import Clock
from sphere.algos.optimiser import clipped_adam
from sphere.algos.ppo import PPO
from sphere.algos.ppo_equations import actor_loss, critic_loss
from sphere.choices import ACTORS, method_name, method_names, tenfold, with_actor, with_method
from sphere.cli.main import main
from sphere.envs.source import Environments
from sphere.methods import CBP, CChain, LayerNorm, LoadBalance, Parseval, ReDo, SpectralNorm, Sphere
from sphere.nets import NetConfig
from sphere.presets import preset
from sphere.storage import checkpoint, run_directory
from sphere.training import loop
from sphere.training.group import Order
from sphere.training.loop import train
from sphere.training.settings import NOTHING, Boundary, Evaluation, FleetConfig, from_json, to_json

TRAINED = ["c-chain", "cbp", "parseval", "redo", "spectral-norm", "spectral-reg", "load-balance", "sphere+layernorm"]
"""All but none and sphere alone, which every other test of training trains."""

# Two short tasks with a known best action; busy methods are made to act within them.
LADDER = FleetConfig(
    tasks=("probe/observed-action", "probe/observed-action"),
    steps_per_task=20 * 256,
    seeds=(0,),
    rho=(0.0, 0.1),
    learner=PPO(
        num_envs=16,
        rollout_steps=16,
        batch_size=64,
        epochs=8,
        gamma=0.8,
        learning_rate=1e-2,
        final_learning_rate=1e-3,
        actor=NetConfig(kind="top-k", width=12, depth=1, experts=3, top_k=2),
        critic=NetConfig(kind="mlp", width=12, depth=1, activation="tanh"),
    ),
    evaluation=Evaluation(every=100_000, episodes=16, heldout=0),
    checkpoint_every=4,
    source=Environments(workers=0),
)
BUSY = {
    "cbp": CBP(maturity=100, replacement_rate=1e-3),
    "redo": ReDo(period=50, tau=0.025),
    "spectral-norm": SpectralNorm(layers="hidden"),
}


def fleet_of(method: str) -> FleetConfig:
    if method not in BUSY:
        return with_method(LADDER, method)
    return dataclasses.replace(LADDER, rho=(0.0,), learner=with_methods(LADDER.learner, BUSY[method]))


def stopped_and_resumed(config, directory, after):
    """Broken off in the middle of an iteration, as by a crash, and taken up from the last checkpoint."""
    fleets.write(config, directory)
    fleets.cut_after(after, config, directory)
    newest = checkpoint.checkpoints(directory)[-1]
    assert 0 < int(newest.stem.rsplit("-", 1)[1]) < after - 1  # it goes on from there, and some iterations come twice
    train(config, directory, resume=True, quiet=True)


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_learns_and_resumes_to_the_same_numbers(method, tmp_path):
    config = fleet_of(method)
    train(config, tmp_path / "straight", quiet=True)
    stopped_and_resumed(config, tmp_path / "resumed", after=27)  # in the second task
    assert fleets.numbers(tmp_path / "straight") == fleets.numbers(tmp_path / "resumed")
    one, other = (fleets.final_arrays(tmp_path / name) for name in ("straight", "resumed"))
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
    for one_run in config.runs:
        path = tmp_path / "straight" / one_run.name
        events = run_directory.read_events(path)
        returns = [event["train/return"] for event in events if "train/return" in event]
        last = [event["evaluation/return"] for event in events if "evaluation/return" in event][-1]
        assert last > returns[0]
        saved = from_json(run_directory.read_config(path)["settings"])
        assert saved.learner.methods == config.learner.methods
        replaced = sum(event.get("train/replaced", 0) for event in events)
        assert (replaced > 0) == ("cbp" in method or "redo" in method)


# One program ----------------------------------------------------------------------------------------------------------


def test_none_is_ppo_without_any_method_bit_for_bit():
    """Against a minibatch step that knows of no methods: loss, gradient, clip, Adam."""
    config = with_method(dataclasses.replace(LADDER, learner=CONFIG), "none").learner
    assert config == PLAIN
    assert config.methods == ()
    state = filled(config)
    assert state.methods == {}
    (batch,) = random_batches(np.random.default_rng(0), 1, 16, state)

    @jax.jit
    def plain(state, batch):
        losses = {
            "actor": lambda net: actor_loss(net, batch, config.clip)[0],
            "critic": lambda net: critic_loss(net, batch, config.value_coefficient)[0],
        }

        def step(role):
            grad = jax.lax.optimization_barrier(jax.grad(losses[role])(state.nets[role]))
            return clipped_adam(state.nets[role], state.moments[role], grad, jnp.float32(1e-3), max_norm=0.5, eps=1e-5)

        return {role: step(role)[:2] for role in losses}

    found = jax.jit(lambda *given: ppo.minibatch(config, *given)[0])(state, hyper(0.0), jnp.float32(1e-3), batch)
    want = plain(state, batch)
    assert_same_bits({role: (found.nets[role], found.moments[role]) for role in want}, want)


def alone(tree):
    """The first run of a fleet."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def arguments(config):
    """Of `update`, for tracing."""
    state = eqx.filter_eval_shape(lambda: alone(fresh(config, jnp.zeros(1, jnp.uint32))))
    data = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), experience(config, 1)._asdict())
    return state, hyper(0.1), data, jnp.uint32(0), Clock(jnp.int32(0), jnp.float32(0.5))


BRIEF = with_methods(
    small(
        num_envs=4,
        rollout_steps=16,
        batch_size=16,
        epochs=2,
        actor=NetConfig(kind="top-k", width=8, depth=1, experts=3, top_k=1),
    ),
    SpectralNorm(layers="hidden", placement="actor"),
    CChain(),
    CBP(maturity=2, replacement_rate=0.05),
    ReDo(period=5),
)
"""All methods that keep a state or look at carried parameters, in one program."""


TOGETHER = (("layernorm", "c-chain", "cbp", "parseval"), ("spectral-norm", "redo", "spectral-reg", "load-balance"))
"""All methods but sphere, which is beside each; four at a time, since most of a trace is not theirs."""


def test_no_method_is_left_out_of_the_traces():
    assert {"none", "sphere", *(name for names in TOGETHER for name in names)} == set(method_names())


@pytest.mark.parametrize("kind", networks.KINDS)
@pytest.mark.parametrize("methods", TOGETHER, ids="+".join)
def test_every_method_with_every_actor_keeps_the_types_of_its_state(methods, kind):
    """Traced, not run: a state whose types change would compile a second program, or not pass a scan at all."""
    config = dataclasses.replace(CONFIG, actor=networks.config(kind))
    fleet = dataclasses.replace(LADDER, learner=config)
    if "load-balance" in methods and kind not in ("top-k", "deepseek"):
        with pytest.raises(ValueError, match=f"'{kind}' actor|dense network"):
            with_method(fleet, "load-balance")
        methods = methods[:-1]
    config = with_method(fleet, "+".join(("sphere", *methods))).learner
    given = arguments(config)
    after, metrics = jax.eval_shape(config.update, *given)
    assert jax.tree.structure(given[0]) == jax.tree.structure(after)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(given[0]), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type), jax.tree_util.keystr(path)
    assert all(leaf.shape == () for leaf in metrics.values())


def test_packed_parameters_change_nothing(monkeypatch):
    """All methods that look at carried parameters, against an update that carries networks as they are."""
    config = BRIEF
    state = alone(fresh(config, jnp.array([3], jnp.uint32)))
    rest = arguments(config)[1:]
    packed = jax.jit(lambda state: config.update(state, *rest))(state)
    monkeypatch.setattr(states, "packing", lambda tree: (lambda t: t, lambda t: t))
    plain = jax.jit(lambda state: config.update(state, *rest))(state)
    assert packed[1]["replaced"] > 0
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(packed), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=jax.tree_util.keystr(path))


def test_a_run_of_a_fleet_with_methods_equals_the_run_alone():
    """Side by side, as on a GPU."""
    config = BRIEF
    seeds = (4, 5, 6)
    numbers = jnp.asarray(seeds, jnp.uint32)
    state = fresh(config, numbers)
    rollout = experience(config, 3)
    clock = Clock(jnp.int32(0), jnp.float32(0.25))
    fleet = (state, hyper([0.0] * 3), rollout._asdict(), numbers, clock)
    together, metrics = jax.jit(partial(rows.side_by_side, config))(*fleet)
    single, own_metrics = updated(config, run(state, 1), hyper([0.0]), run(rollout, 1), seeds[1:2])
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(run(together, 1)), jax.tree.leaves(single), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, err_msg=jax.tree_util.keystr(path))
    assert metrics["replaced"][1] == own_metrics["replaced"][0] > 0


def test_what_is_due_rarely_stays_a_branch_in_a_fleet():
    """ReDo's period is the same for all runs: under `vmap` it must not become a `select` that always does the work."""
    config = with_methods(small(batch_size=9), ReDo())
    given = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape), leaf.dtype), arguments(config)[:4])
    text = str(jax.make_jaxpr(lambda *a: rows.side_by_side(config, *a))(*given, Clock(jnp.int32(0), jnp.float32(0))))
    assert re.search(r"\bcond\[", text)


# Tasks ----------------------------------------------------------------------------------------------------------------


def test_a_task_switch_keeps_or_renews_what_methods_know():
    config = with_methods(small(), SpectralNorm(layers="hidden"), CChain(), CBP())
    seeds = jnp.array([0, 1], jnp.uint32)
    new = fresh(config, seeds)
    state = jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf), new)
    kept = rows.cross(config, Boundary(), state, new, seeds)
    assert_same_bits(kept.methods["cbp"], state.methods["cbp"])
    assert_same_bits(kept.methods["spectral-norm"], state.methods["spectral-norm"])
    chain = kept.methods["c-chain"]
    assert not np.any([chain[name] for name in ("steps", "iterations")])
    np.testing.assert_array_equal(chain["weight"], 100)
    renewed = rows.cross(config, Boundary(methods=False), state, new, seeds)
    assert_same_bits(renewed.methods["cbp"], new.methods["cbp"])
    assert_same_bits(renewed.methods["c-chain"]["previous"], state.nets["actor"])  # of the networks as they are
    for before in (kept, renewed):
        assert_same_bits((before.nets, before.moments), (state.nets, state.moments))
    gone = rows.cross(config, NOTHING, state, new, seeds)
    assert_same_bits(gone, new)


def test_boundaries_reach_the_methods(tmp_path):
    config = fleet_of("cbp")
    ages = {}
    for name, boundary in {
        "kept": Boundary(),
        "renewed": Boundary(methods=False),
        "gone": Boundary(parameters=False),
    }.items():
        fleet = loop.Fleet(dataclasses.replace(config, boundary=boundary), tmp_path)
        try:
            fleet.begin_task()
            fleet.groups[0].advance(Order(0, 0, 1.0))
            fleet.groups[0].enter(config.tasks[1], fleet.config.kept)
            ages[name] = int(np.max(fleet.state.methods["cbp"]["critic"]["expert"][0].age))
        finally:
            fleet.close()
    assert ages == {"kept": 32, "renewed": 0, "gone": 0}


# Names and refusals ---------------------------------------------------------------------------------------------------


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
