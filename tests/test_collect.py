"""What a rollout holds, against the textbook's Gaussian: actions, log-probabilities, and whose random numbers they
are."""

import equinox as eqx
import numpy as np
import pytest
from fleets import TINY, changed
from scipy import stats

from sphere.algos import fleet as rows
from sphere.algos.ppo_equations import Rollout
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
        found[seeds] = actor, [Rollout(**rows.annotated(fleet.learner, actor, one)) for one in data]
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
