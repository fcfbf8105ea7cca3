"""Methods inside one program: the types of their states, packed parameters, runs side by side, branches."""

import dataclasses
import re
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from fleets import TINY
from updates import (
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

from sphere.algos import ppo, rows
from sphere.algos import state as states
from sphere.algos.learner import Clock
from sphere.algos.optimiser import clipped_adam
from sphere.algos.ppo_equations import actor_loss, critic_loss
from sphere.choices import method_names, with_method
from sphere.methods import CBP, CChain, ReDo, SpectralNorm
from sphere.nets import NetConfig


def test_none_is_ppo_without_any_method_bit_for_bit():
    """Against a minibatch step that knows of no methods: loss, gradient, clip, Adam."""
    config = with_method(dataclasses.replace(TINY, learner=CONFIG), "none").learner
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
    fleet = dataclasses.replace(TINY, learner=config)
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
