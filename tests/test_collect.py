"""What a rollout holds, against the textbook's Gaussian: actions, log-probabilities, and whose random numbers they
are."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import TINY, changed
from scipy import stats

from sphere.algos import rows
from sphere.algos.ppo_equations import Minibatch, Rollout, actor_loss
from sphere.training.fleet import Fleet

STEPS = 64


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """Two rollouts of a fleet of two, and of its second run alone; the policy's standard deviation is not 1."""
    found = {}
    for seeds in ((0, 1), (1,)):
        alone = {"workers": 0, "overlap": False, "normalise_observations": False}
        config = changed(TINY, seeds=seeds, rho=(0.0,), **alone)
        fleet = Fleet(config, tmp_path_factory.mktemp("fleet"))
        fleet.begin_task()
        actor = eqx.tree_at(lambda actor: actor.log_std, fleet.policy, replace_fn=lambda log_std: log_std - 0.7)
        (group,) = fleet.groups
        data = [group.source.sample(actor, STEPS, iteration)[0] for iteration in range(2)]
        found[seeds] = actor, [Rollout.of(rows.annotated(fleet.learner, actor, one)) for one in data]
        found[*seeds, "noise"] = data[0]["noise"]
        fleet.close()
    return found


def test_actions_are_normal_around_the_mean_with_the_policys_deviation(collected):
    actor, rollouts = collected[0, 1]
    for rollout in rollouts:
        shape = rollout.obs.shape
        mean = np.asarray(rows.act(actor, rollout.obs.reshape(shape[0], -1, shape[-1])))
        mean = mean.reshape(rollout.action.shape)
        z = (rollout.action - mean) / np.exp(-0.7)
        assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
        want = stats.norm(mean, np.exp(-0.7)).logpdf(rollout.action).sum(-1)
        np.testing.assert_allclose(rollout.log_prob, want, rtol=1e-4, atol=1e-4)


def test_noise_is_the_runs_own_and_new_in_every_rollout(collected):
    (_, (first, second)), (_, (alone, _)) = collected[0, 1], collected[1,]
    np.testing.assert_allclose(first.action[1], alone.action[0], rtol=1e-5, atol=1e-5)
    assert np.abs(first.action[0, 0] - first.action[1, 0]).min() > 1e-6
    assert np.abs(first.action[0, 0] - second.action[0, 0]).min() > 1e-6


def test_a_rollout_is_a_chain(collected):
    """The next observation is where the next step begins, unless the episode ended."""
    _, (rollout, _) = collected[0, 1]
    goes_on = ~rollout.done[:, :-1]
    np.testing.assert_array_equal(rollout.next_obs[:, :-1][goes_on], rollout.obs[:, 1:][goes_on])
    assert rollout.done.sum() == 2 * 4 * (STEPS // 10)
    assert not rollout.terminated.any()


def test_probabilities_by_noise_do_not_depend_on_the_network_that_learns(collected):
    """Where the learner's network has another mean for a state than the one that acted, as by another choice of
    experts, an action is all but impossible by its probability, and once the means agree again the ratio is huge."""
    actor, (rollout, _) = collected[0, 1]
    data = rollout._asdict() | {"noise": collected[0, 1, "noise"]}
    by_noise = dataclasses.replace(TINY.learner, acted_log_prob=True)
    found = rows.annotated(by_noise, actor, data)["log_prob"]
    np.testing.assert_allclose(found, rollout.log_prob, rtol=1e-4, atol=1e-4)
    other = eqx.tree_at(lambda one: one.trunk.experts.head.bias, actor, replace_fn=lambda bias: bias + 10)
    np.testing.assert_array_equal(rows.annotated(by_noise, other, data)["log_prob"], found)
    far = rows.annotated(TINY.learner, other, data)["log_prob"]
    one = jax.tree.map(lambda leaf: leaf[0], actor)

    def kl(log_prob):
        flat = (rollout.obs[0], rollout.action[0], log_prob[0], rollout.reward[0], rollout.reward[0])
        batch = Minibatch(*(jnp.asarray(part).reshape(-1, *part.shape[2:]) for part in flat))
        return float(actor_loss(one, batch, 0.2)[1].kl)

    assert kl(far) > 1e8
    assert kl(found) < 1e-5
