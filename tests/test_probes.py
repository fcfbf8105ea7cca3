"""The probes' known answers by Monte Carlo through the pool; the continual tasks, by random and best play."""

import numpy as np
import pytest

from sphere.envs import make, probes

GAMMA = 0.9


def returns_from_the_start(task, policy, gamma, steps, num_envs=64):
    """First observation and discounted return of every episode; a time limit goes on with the known value."""
    with make(f"probe/{task}", num_envs=num_envs, seed=11, workers=0) as pool:
        obs, _ = pool.reset()
        first, total, discount = obs.copy(), np.zeros(num_envs), np.ones(num_envs)
        firsts, totals, lengths = [], [], []
        for _ in range(steps):
            obs, reward, terminated, truncated, infos = pool.step(policy(obs))
            total += discount * reward
            discount *= gamma
            final = probes.optimal_value(task, infos["final_obs"].astype(float), gamma)
            total += np.where(truncated, discount * final, 0)
            done = terminated | truncated
            if done.any():
                firsts.append(first[done])
                totals.append(total[done])
                lengths.append(infos["episode"]["l"][done])
            first[done], total[done], discount[done] = obs[done], 0, 1
    return np.concatenate(firsts), np.concatenate(totals), np.concatenate(lengths)


@pytest.mark.parametrize(
    ("task", "steps", "value"),
    [
        ("constant-reward", 1, lambda obs: 1.0),
        ("observed-reward", 1, lambda obs: obs[:, 0]),
        ("delayed-reward", 2, lambda obs: GAMMA),
        ("best-action", 1, lambda obs: 1.0),
        ("observed-action", 1, lambda obs: 1.0),
        ("time-limit", 5, lambda obs: 1 / (1 - GAMMA)),
        ("termination", 5, lambda obs: 1 + GAMMA + GAMMA**2 + GAMMA**3 + GAMMA**4),
    ],
)
def test_the_optimal_policy_earns_the_known_value(task, steps, value):
    first, total, length = returns_from_the_start(task, lambda obs: probes.optimal_action(task, obs), GAMMA, 3 * steps)
    assert set(length) == {steps}
    assert len(total) == 3 * 64
    np.testing.assert_allclose(total, np.broadcast_to(value(first), total.shape), rtol=1e-6)
    np.testing.assert_allclose(probes.optimal_value(task, first.astype(float), GAMMA), total, rtol=1e-6)


@pytest.mark.parametrize("task", probes.PROBES)
def test_no_random_policy_earns_more(task):
    rng = np.random.default_rng(0)
    size = probes.PROBES[task].action_size
    _, best, _ = returns_from_the_start(task, lambda obs: probes.optimal_action(task, obs), GAMMA, 5)
    _, random, _ = returns_from_the_start(task, lambda obs: rng.uniform(-1, 1, (64, size)), GAMMA, 5)
    assert (random <= best + 1e-6).all()
    assert (random < best - 0.05).any() == (task in ("best-action", "observed-action"))


@pytest.mark.parametrize(("task", "truncates"), [("time-limit", True), ("termination", False)])
def test_the_twins_end_differently(task, truncates):
    with make(f"probe/{task}", num_envs=3, workers=0) as pool:
        pool.reset()
        for t in range(1, 11):
            _, reward, terminated, truncated, infos = pool.step(np.zeros((3, 1)))
            ends = t % 5 == 0
            np.testing.assert_array_equal(reward, 1.0)
            assert (truncated == (ends and truncates)).all()
            assert (terminated == (ends and not truncates)).all()
            assert (infos["_final_obs"] == ends).all()


def test_the_values_satisfy_the_bellman_equation_at_every_observation():
    time = np.arange(5.0)[:, None]
    value = probes.optimal_value("termination", time, GAMMA)
    np.testing.assert_allclose(value, 1 + GAMMA * np.append(value[1:], 0))
    np.testing.assert_allclose(probes.optimal_value("delayed-reward", time[:2], GAMMA), [GAMMA, 1])


def test_observations_of_both_signs_are_drawn():
    with make("probe/observed-reward", num_envs=200, workers=0) as pool:
        obs = np.concatenate([pool.reset()[0][:, 0] for _ in range(5)])
    assert set(obs) == {-1.0, 1.0}
    assert abs(obs.mean()) < 0.15  # five standard deviations of 1000 fair draws


def test_the_wanted_action_uses_every_observation_and_stays_in_the_box():
    corners = np.array([[-1.0, -1.0], [-1, 1], [1, -1], [1, 1]])
    wanted = probes.optimal_action("observed-action", corners)
    assert np.abs(wanted).max() < 1
    assert len(np.unique(wanted.round(6), axis=0)) == 4
    middle = probes.optimal_action("observed-action", np.zeros((1, 2)))
    np.testing.assert_allclose(wanted.mean(0, keepdims=True), middle, atol=1e-12)  # affine


# The continual suite


def play(task, policy, episodes, num_envs=100):
    """Fractions of episodes with success at any step and at the last, and the mean return."""
    with make(f"probe/{task}", num_envs=num_envs, seed=3, workers=0) as pool:
        obs, _ = pool.reset()
        seen = []
        for _ in range(episodes * probes.REACH_STEPS):
            obs, *_, infos = pool.step(policy(obs))
            if "episode" in infos:
                assert infos["_episode"].all()
                seen.append([infos["episode"][name] for name in ("success_once", "success_at_end", "r")])
    return np.mean(seen, axis=(0, 2))


def test_the_continual_tasks_share_their_spaces():
    assert len(probes.CONTINUAL) >= 3
    spaces = set()
    for task in probes.CONTINUAL:
        with make(f"probe/{task}", workers=0) as pool:
            spaces.add((pool.single_observation_space.shape, pool.single_action_space.shape, pool.horizon))
    assert spaces == {((6,), (2,), 10)}


@pytest.mark.parametrize("task", probes.CONTINUAL)
def test_optimal_play_always_succeeds_and_random_play_rarely(task):
    rng = np.random.default_rng(0)
    once, at_end, best = play(task, lambda obs: probes.optimal_action(task, obs), episodes=20)
    assert (once, at_end) == (1, 1)
    once, at_end, random = play(task, lambda obs: rng.uniform(-1, 1, (100, 2)), episodes=20)
    assert once < 0.15
    assert at_end < 0.05
    assert random < best - 3


@pytest.mark.parametrize("task", probes.CONTINUAL)
def test_the_tasks_contradict_each_other(task):
    for other in probes.CONTINUAL:
        if other != task:
            once, at_end, _ = play(task, lambda obs, other=other: probes.optimal_action(other, obs), episodes=5)
            assert once < 0.2
            assert at_end < 0.05


def test_no_neighbouring_action_sequence_is_better():
    rng = np.random.default_rng(0)
    for task in probes.CONTINUAL:

        def nearly(obs, task=task):
            return probes.optimal_action(task, obs) + rng.normal(scale=0.05, size=(100, 2))

        assert play(task, nearly, 5)[2] < play(task, lambda obs, task=task: probes.optimal_action(task, obs), 5)[2]


def test_forward_is_where_the_name_says():
    towards = {"north": [0, 1], "east": [1, 0], "south": [0, -1], "west": [-1, 0]}
    for task in probes.CONTINUAL:
        with make(f"probe/{task}", num_envs=4, workers=0) as pool:
            before, _ = pool.reset()
            after = pool.step(np.tile([0.0, 1.0], (4, 1)))[0]
        moved = after[:, :2] - before[:, :2]
        direction = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        np.testing.assert_allclose(direction, [towards[task.removeprefix("reach-")]] * 4, atol=1e-5)


@pytest.mark.parametrize("task", probes.Probes.tasks)
def test_the_number_of_environments_in_a_batch_does_not_change_a_bit(task):
    together, alone = probes.Probes(task, 7), [probes.Probes(task, 1) for _ in range(7)]

    def rngs():
        return [np.random.default_rng([1, i]) for i in range(7)]

    first = together.reset(np.arange(7), rngs())
    np.testing.assert_array_equal(
        first, np.concatenate([b.reset(np.array([0]), [rng]) for b, rng in zip(alone, rngs(), strict=True)])
    )
    for action in np.random.default_rng(0).uniform(-1, 1, (10, 7, len(together.action_low))).astype(np.float32):
        rows = [batch.step(row[None]) for batch, row in zip(alone, action, strict=True)]
        for whole, parts in zip(together.step(action), zip(*rows, strict=True), strict=True):
            np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="no task 'reach-nroth'; did you mean reach-north"):
        probes.optimal_action("reach-nroth", np.zeros((1, 6)))
    with pytest.raises(ValueError, match="no task 'best-acton'; did you mean best-action"):
        probes.Probes("best-acton", 1)
    with pytest.raises(ValueError, match="no probe with a known value 'reach-north'"):
        probes.optimal_value("reach-north", np.zeros((1, 6)), GAMMA)
