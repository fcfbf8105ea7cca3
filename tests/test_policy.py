"""The policy that worker processes have, in numpy, against the network that the learner has."""

import equinox as eqx
import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest

from sphere.envs import policy_arrays
from sphere.envs.policy import FleetPolicy, normalised
from sphere.nets import GaussianActor

PLAIN = ("mlp", "top-k", "dense", "deepseek", "soft")
RUNS = 3
FORMS = {
    "plain": {},
    "layernorm": {"layer_norm": True},
    "tanh": {"activation": "tanh"},
    "temperature": {"temperature": 0.3},
}


def actors(kind, **settings):
    each = [GaussianActor(networks.network(kind, seed=run, **settings), networks.ACT) for run in range(RUNS)]
    return each, jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)


def policy(fleet, envs, **more):
    parts = [(run, slice(run * envs, (run + 1) * envs)) for run in range(RUNS)]
    return FleetPolicy(policy_arrays.spec(fleet), policy_arrays.arrays(fleet) | more, parts)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", PLAIN)
def test_it_is_the_learners_network(kind, form):
    each, fleet = actors(kind, **FORMS[form])
    obs = np.random.default_rng(0).normal(size=(RUNS, 9, networks.OBS)).astype(np.float32)
    want = np.stack([eqx.filter_jit(actor)(x)[0].mean for actor, x in zip(each, obs, strict=True)])
    found = policy(fleet, 9)(obs.reshape(-1, networks.OBS)).reshape(want.shape)
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("width", [16, 256])
def test_a_row_does_not_depend_on_the_others_to_the_bit(kind, width):
    _, fleet = actors(kind, width=width, depth=3, layer_norm=width == 16)
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(12, networks.OBS)).astype(np.float32)
    spec, arrays = policy_arrays.spec(fleet), policy_arrays.arrays(fleet)

    def means(rows):
        return FleetPolicy(spec, arrays, [(0, slice(0, len(rows)))])(obs[rows])

    whole = means(np.arange(12))
    for size in (1, 2, 3, 5, 11):
        rows = rng.permutation(12)[:size]
        np.testing.assert_array_equal(means(rows), whole[rows])


def test_of_equal_logits_the_first_experts_are_taken():
    each, fleet = actors("top-k")
    flat = jax.tree.map(jnp.zeros_like, fleet.trunk.router.gate)
    fleet = eqx.tree_at(lambda actor: actor.trunk.router.gate, fleet, flat)
    each = [jax.tree.map(lambda leaf, run=run: leaf[run], fleet) for run in range(RUNS)]
    obs = np.random.default_rng(2).normal(size=(RUNS, 4, networks.OBS)).astype(np.float32)
    want = np.stack([actor(jnp.asarray(x))[0].mean for actor, x in zip(each, obs, strict=True)])
    found = policy(fleet, 4)(obs.reshape(-1, networks.OBS)).reshape(want.shape)
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)


def test_observations_are_normalised_by_each_runs_statistics():
    _, fleet = actors("top-k")
    rng = np.random.default_rng(3)
    mean, var = rng.normal(size=(RUNS, networks.OBS)), rng.uniform(0.1, 3, size=(RUNS, networks.OBS))
    obs = rng.normal(size=(RUNS, 5, networks.OBS)).astype(np.float32) * 30  # some beyond the clip at 10
    scaled = np.clip((obs - mean[:, None]) / np.sqrt(var[:, None] + 1e-8), -10, 10).astype(np.float32)
    assert (np.abs(scaled) == 10).any()
    np.testing.assert_array_equal(normalised(obs, mean[:, None], var[:, None]), scaled)
    found = policy(fleet, 5, mean=mean, var=var)(obs.reshape(-1, networks.OBS))
    np.testing.assert_array_equal(found, policy(fleet, 5)(scaled.reshape(-1, networks.OBS)))


def test_expert_choice_stays_with_the_learner():
    """An expert chooses among all samples of the batch, and a worker has a part of them only."""
    _, fleet = actors("expert-choice")
    assert policy_arrays.spec(fleet) is None
