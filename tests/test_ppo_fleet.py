"""Updates of a fleet: every run as if it were alone, whatever its neighbours' rho, and a NaN stays where it is."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import CONFIG, PLAIN, assert_same_bits, experience, filled, hyper, run, updated

from sphere.algos import rows
from sphere.algos.learner import Clock
from sphere.algos.ppo import PPOMetrics


def assert_close(found, want):
    """State and metrics to 1e-5, not to the bit: products with a run axis sum in another order, and Adam divides by
    small gradients. Eight minibatches at rate 1e-3 move a parameter by up to 8e-3, so a run with another's numbers is
    far off."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found[0]), jax.tree.leaves(want[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path))
    for name in PPOMetrics._fields:
        np.testing.assert_allclose(found[1][name], want[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


SEEDS = (4, 5, 6)


@pytest.fixture(scope="module")
def fleet():
    """Three runs with rho 0, 0.1 and -0.2 and different rates: before, hyperparameters, rollout, and after one
    update."""
    state, rollout = filled(CONFIG, runs=3), experience(CONFIG, 3)
    numbers = hyper([0.0, 0.1, -0.2]) | {"learning_rate": jnp.array([3e-4, 1e-3, 3e-4], jnp.float32)}
    return state, numbers, rollout, updated(CONFIG, state, numbers, rollout, SEEDS)


def test_a_fleet_equals_its_runs_one_by_one(fleet):
    state, numbers, rollout, together = fleet
    for i, seed in enumerate(SEEDS):
        alone = updated(CONFIG, run(state, i), run(numbers, i), run(rollout, i), [seed])
        if jax.default_backend() == "cpu":  # in turns
            assert_same_bits(run(together, i), alone)
        else:
            assert_close(run(together, i), alone)


def test_runs_side_by_side_equal_runs_in_turns(fleet):
    state, numbers, rollout, _ = fleet
    clock = Clock(jnp.int32(0), jnp.float32(0.25))
    arguments = (state, numbers, rollout._asdict(), jnp.asarray(SEEDS, jnp.uint32), clock)
    found, want = (jax.jit(partial(form, CONFIG))(*arguments) for form in (rows.side_by_side, rows.in_turns))
    assert_close(found, want)


def test_side_by_side_too_rho_zero_equals_no_penalty_bit_for_bit(fleet):
    """Beside runs with another rho. (A GPU's own programs are compared where `updated` is.)"""
    state, numbers, rollout, _ = fleet
    more = (rollout._asdict(), jnp.asarray(SEEDS, jnp.uint32), Clock(jnp.int32(0), jnp.float32(0.25)))
    found, want = (jax.jit(partial(rows.side_by_side, config))(state, numbers, *more)[0] for config in (CONFIG, PLAIN))
    if jax.default_backend() == "cpu":
        assert_same_bits(run(found, 0), run(want, 0))
    assert (run(found, 1).nets["actor"].log_std != run(want, 1).nets["actor"].log_std).any()


def test_the_same_seed_twice_is_bit_equal_and_another_is_not(fleet):
    state, numbers, rollout, once = fleet
    assert_same_bits(updated(CONFIG, state, numbers, rollout, SEEDS), once)
    other = updated(CONFIG, state, numbers, rollout, (4, 5, 7))[0]
    assert_same_bits(run(other, 1), run(once[0], 1))
    assert (other.nets["actor"].log_std[2] != once[0].nets["actor"].log_std[2]).any()


def test_rho_zero_equals_no_penalty_bit_for_bit_in_a_fleet_of_one(fleet):
    state, _, rollout, _ = fleet
    arguments = (run(state, 0), hyper([0.0]), run(rollout, 0), SEEDS[:1])
    with_penalty, metrics = updated(CONFIG, *arguments)
    without, plain_metrics = updated(PLAIN, *arguments)
    if jax.default_backend() == "cpu":
        assert_same_bits(with_penalty, without)
    else:  # a lone product may be fused with what reads it; in training the penalty is left out if all rho are 0
        for a, b in zip(jax.tree.leaves(with_penalty), jax.tree.leaves(without), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    assert metrics["penalty"][0] > 0
    assert plain_metrics["penalty"][0] == metrics["coefficient"][0] == plain_metrics["coefficient"][0] == 0


def test_rho_zero_equals_no_penalty_bit_for_bit_beside_other_runs(fleet):
    state, numbers, rollout, (mixed, _) = fleet
    without, _ = updated(PLAIN, state, numbers | {"rho": jnp.zeros(3)}, rollout, SEEDS)
    assert_same_bits(run(mixed, 0), run(without, 0))
    for i in (1, 2):  # and another rho is another actor, with the critic left alone
        assert (mixed.nets["actor"].log_std[i] != without.nets["actor"].log_std[i]).any()
        assert_same_bits(run(mixed.nets["critic"], i), run(without.nets["critic"], i))


def test_rho_alone_makes_runs_differ(fleet):
    state, _, rollout, _ = fleet
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), (state, rollout))
    after, metrics = updated(CONFIG, same[0], hyper([0.0, 0.1, -0.2]), same[1], (4, 4, 4))
    kernels = after.nets["actor"].trunk.experts.hidden[-1].kernel
    gaps = [np.max(np.abs(kernels[i] - kernels[j])) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert min(gaps) > 1e-5
    assert_same_bits(run(after.nets["critic"], 1), run(after.nets["critic"], 0))
    assert metrics["coefficient"][0] == 0
    assert metrics["coefficient"][1] > 0 > metrics["coefficient"][2]


@pytest.mark.parametrize("field", ["obs", "action", "log_prob", "reward", "next_obs"])
def test_a_nan_is_reported_by_the_run_that_has_it_and_stays_there(field, fleet):
    state, numbers, rollout, (clean, clean_metrics) = fleet
    np.testing.assert_array_equal(clean_metrics["finite"], True)
    planted = getattr(rollout, field).copy()
    planted[1, 3, 2] = np.nan
    after, metrics = updated(CONFIG, state, numbers, rollout._replace(**{field: planted}), SEEDS)
    np.testing.assert_array_equal(metrics["finite"], [True, False, True])
    for i in (0, 2):
        assert_same_bits(run(after, i), run(clean, i))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="counts products by the names of the CPU's compiler")
def test_the_penalty_shares_the_forward_pass():
    """In the compiled update the layers of grouped experts are computed once, not once for the loss and once for the
    penalty."""
    config = replace(CONFIG, actor=replace(CONFIG.actor, width=48, depth=3, compute="grouped"))
    arguments = filled(config, runs=1), hyper([0.1]), experience(config, 1)._asdict(), jnp.zeros(1, jnp.uint32)
    program = jax.jit(partial(rows.in_turns, config)).lower(*arguments, Clock(jnp.int32(0), jnp.float32(0.25)))
    products = re.findall(r"= f32\[\d+,\d+,48\]\S* dot\(.*op_name=\"([^\"]*)\"", program.compile().as_text())
    assert len([name for name in products if "jvp()" in name and "transpose" not in name]) == 3
