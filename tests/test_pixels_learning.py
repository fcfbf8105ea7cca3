"""Images from the renderer to the network: kept once, as bytes, and learned from as if they were kept whole."""

import dataclasses

import dots
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import TINY, changed, cut_after, final_arrays, numbers, write
from test_resume_suites import assert_same

import sphere
from sphere import registry
from sphere.algos import rows, shared_encoder
from sphere.algos.frames import Frames, capacity
from sphere.algos.learner import Clock, DataSpec, made_up
from sphere.algos.ppo import PPO
from sphere.algos.ppo_equations import Rollout, actor_loss, by_time, critic_loss, gae, prepare, values_of_frames
from sphere.algos.td3 import TD3
from sphere.envs.frame_log import FrameLog, check_room, sampled
from sphere.errors import UserError
from sphere.methods import Sphere
from sphere.nets import NetConfig
from sphere.nets.encoders import Impala
from sphere.training.fleet import Fleet
from sphere.training.loop import train
from sphere.training.settings import Evaluation

SMALL = NetConfig(kind="top-k", width=8, depth=1, experts=3, encoder="impala")
VALUE = NetConfig(kind="mlp", width=8, depth=1, encoder="impala")
SPEC = DataSpec((dots.SIDE, dots.SIDE, 9), 2, (-1.0,) * 2, (1.0,) * 2, frames=3)


def config(**changes):
    sizes = {"num_envs": 3, "rollout_steps": 8, "batch_size": 12, "epochs": 1}
    learner = dataclasses.replace(TINY.learner, **sizes, actor=SMALL, critic=VALUE)
    plain = {"normalise_observations": False, "workers": 0}
    start = changed(TINY, tasks=("dots/red", "dots/blue"), seeds=(0,), rho=(0.1,), learner=learner, **plain)
    fewer = {"steps_per_task": 2 * 24, "evaluation": Evaluation(every=48, episodes=1, heldout=4), "checkpoint_every": 1}
    return changed(start, **(fewer | changes))


@pytest.fixture(scope="module", autouse=True)
def suite():
    """Small images, and one stage of the encoder: what is learned from does not depend on how deep it is, and
    convolutions take longest to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.SUITES, "dots", dots.Dots)
        patch.setattr(Impala, "channels", (8,))
        yield


@pytest.fixture(scope="module")
def played():
    """Random play, by `FrameLog` and kept whole: observations and true successors, [run, time, env, ...]."""
    runs, envs, steps = 2, 3, 13
    rng = np.random.default_rng(0)
    with sphere.envs.make("dots/red", envs, seed=range(runs), workers=0) as pool:
        by_run = lambda array: array.reshape(runs, envs, *array.shape[1:]).copy()  # noqa: E731
        obs = by_run(pool.reset()[0])
        obs = by_run(pool.step(rng.uniform(-1, 1, (runs * envs, 2)))[0])  # in the middle of an episode
        log, whole = FrameLog(obs, 3, steps, dots.HORIZON), []
        for _ in range(steps):
            now, _, ended, cut, infos = pool.step(rng.uniform(-1, 1, (runs * envs, 2)))
            final, ended, cut = (by_run(one) for one in (infos["final_obs"], ended, cut))
            whole.append((obs, final, ended, cut))
            obs = by_run(now)
            log.add(obs, final, ended | cut, cut)
    return log.frames, [np.stack(column, axis=1) for column in zip(*whole, strict=True)], obs


def test_stacks_are_made_again_from_images_that_are_kept_once(played):
    frames, (obs, final, ended, cut), last = played
    assert ended.any()
    assert cut.any()
    runs, steps, envs = ended.shape
    for run in range(runs):
        own = Frames(*(leaf[run] for leaf in frames))
        assert own.stack == 3
        for t in range(steps + 1):
            want = obs[run, t] if t < steps else last[run]
            np.testing.assert_array_equal(own.observations(np.full(envs, t), np.arange(envs)), want)
        found = {}
        for k, env in np.argwhere(own.final_at < steps):
            t = own.final_at[k, env]
            found[int(t), int(env)] = own.finals(t[None], env[None], own.final[k, env][None])[0]
        assert found.keys() == {(int(t), int(env)) for t, env in np.argwhere(cut[run])}
        for (t, env), image in found.items():
            np.testing.assert_array_equal(image, final[run, t, env])
    images = sampled(frames, 5)
    flat = obs.reshape(runs, -1, *obs.shape[3:])
    np.testing.assert_array_equal(images, flat[:, np.linspace(0, flat.shape[1] - 1, 5).astype(int)])


def test_a_rollout_holds_every_image_once(played):
    frames, (obs, *_), _ = played
    images = frames.image.nbytes
    assert images == obs.nbytes * (13 + 3) // (13 * 3), "one for each step, those after the last and before the first"
    assert frames.final.nbytes <= images * capacity(13, dots.HORIZON) / 13


@pytest.fixture(scope="module")
def state():
    learner = config().learner
    given = {name: jnp.float32(value) for name, value in learner.numbers.items()}
    return learner, jax.jit(lambda: learner.init(SPEC, jnp.uint32(0), given))()


def test_advantages_equal_those_of_whole_observations(played, state):
    frames, (obs, final, ended, cut), _ = played
    _, made = state
    critic = made.nets["critic"]
    run = 1
    own = Frames(*(jnp.asarray(leaf[run]) for leaf in frames))
    value, following = eqx.filter_jit(values_of_frames)(critic, own)
    judge = eqx.filter_jit(lambda critic, x: critic(x)[0])
    flat = lambda x: judge(critic, jnp.asarray(x[run].reshape(-1, *x.shape[3:]))).reshape(x.shape[1:3])  # noqa: E731
    np.testing.assert_allclose(value, flat(obs), rtol=1e-5, atol=1e-6)
    met = ~ended[run]  # after a termination nothing is looked at
    np.testing.assert_allclose(np.asarray(following)[met], np.asarray(flat(final))[met], rtol=1e-5, atol=1e-6)
    reward = np.random.default_rng(1).normal(size=ended.shape).astype(np.float32)[run]
    done = (ended | cut)[run]
    rollout = Rollout(own, jnp.zeros((*done.shape, 2)), jnp.zeros(done.shape), reward, None, ended[run], done)
    batch = eqx.filter_jit(prepare)(critic, rollout, 0.99, 0.95)
    discount, lam = 0.99 * (1 - ended[run].astype(np.float32)), 0.95 * (1 - done.astype(np.float32))
    want = jax.jit(jax.vmap(gae, in_axes=1, out_axes=1))(reward, discount, flat(obs), flat(final), lam)
    np.testing.assert_allclose(batch.advantage, want.reshape(-1), rtol=1e-4, atol=1e-5)
    assert batch.obs.size == 0, "images are no part of the table of floats"


def test_log_probabilities_are_those_of_whole_observations(played, state):
    frames, (obs, _, ended, _), _ = played
    _, made = state
    actor = made.nets["actor"]
    own = Frames(*(jnp.asarray(leaf[0]) for leaf in frames))
    action = jnp.asarray(np.random.default_rng(2).normal(size=(*ended.shape[1:], 2)).astype(np.float32))
    judge = eqx.filter_jit(lambda actor, x, a: actor(x)[0].log_prob(a))
    log_prob = eqx.filter_jit(lambda actor: by_time(own, lambda x, a: actor(x)[0].log_prob(a), action))(actor)
    want = judge(actor, jnp.asarray(obs[0].reshape(-1, *obs.shape[3:])), action.reshape(-1, 2))
    np.testing.assert_allclose(log_prob.reshape(-1), want, rtol=1e-5, atol=1e-5)


def test_minibatches_see_the_images_of_their_rows(played):
    """Nothing is learned at a rate of all but zero: every minibatch's ratio is one, and the error is the rollout's."""
    frames, (_, _, ended, cut), _ = played
    learner = dataclasses.replace(config().learner, rollout_steps=13, batch_size=13, methods=())
    given = {name: jnp.full(2, value, jnp.float32) for name, value in learner.numbers.items()}
    given |= dict.fromkeys(("learning_rate", "final_learning_rate"), jnp.full(2, 1e-12, jnp.float32))
    seeds = np.arange(2, dtype=np.uint32)
    made = rows.init(learner, SPEC, seeds, given)
    rng = np.random.default_rng(3)
    columns = {"action": rng.normal(size=(*ended.shape, 2)), "reward": rng.normal(size=ended.shape)}
    data = {name: column.astype(np.float32) for name, column in columns.items()}
    data |= {"obs": frames, "next_obs": None, "terminated": ended, "done": ended | cut}
    data = rows.annotated(learner, rows.policy(learner, made), data)

    @eqx.filter_jit
    def error(critic, own):
        flat = prepare(critic, Rollout(**own), learner.gamma, learner.gae_lambda)
        value = by_time(own["obs"], lambda obs: critic(obs)[0])[:-1]
        return jnp.mean(jnp.square(flat.returns - value.reshape(-1)))

    both = made.nets["critic"], jax.tree.map(jnp.asarray, dict(data))
    wanted = [error(*jax.tree.map(lambda leaf, run=run: leaf[run], both)) for run in range(2)]
    _, metrics = rows.update(learner, made, given, data, seeds, Clock(np.int32(0), np.float32(0.1)))
    np.testing.assert_allclose(metrics["kl"], 0, atol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], wanted, rtol=1e-4)


@pytest.mark.parametrize("encoder", ["impala", "shared"])
def test_one_update_moves_encoder_mixture_and_critic(encoder):
    learner = dataclasses.replace(config().learner, critic=dataclasses.replace(VALUE, encoder=encoder), epochs=1)
    given = {name: jnp.array([value], jnp.float32) for name, value in (learner.numbers | {"rho": 0.1}).items()}
    seeds = np.zeros(1, np.uint32)
    before = rows.init(learner, SPEC, seeds, given)
    data = made_up(SPEC, 1, learner.rollout)
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, data["obs"].image.shape, np.uint8)
    reward = rng.normal(size=data["reward"].shape).astype(np.float32)
    data = {**data, "obs": data["obs"]._replace(image=image), "reward": reward}
    data = rows.annotated(learner, rows.policy(learner, before), data)
    kept = jax.tree.map(jnp.copy, before)
    after, metrics = rows.update(learner, before, given, data, seeds, Clock(np.int32(0), np.float32(0.1)))
    assert bool(np.all(metrics["finite"]))
    assert float(metrics["penalty"][0]) > 0
    for role, net in kept.nets.items():
        for (path, old), new in zip(
            jax.tree_util.tree_leaves_with_path(net), jax.tree.leaves(after.nets[role]), strict=True
        ):
            name = jax.tree_util.keystr(path)
            if "temperature" in name or "expert" in name:  # an expert may have had nothing to do
                continue
            assert not np.array_equal(old, new), (role, name)
    assert hasattr(after.nets["critic"].trunk, "encoder") == (encoder == "impala")


@pytest.mark.parametrize("name", registry.METHODS)
def test_every_method_takes_networks_of_images(name):
    """Traced, not run: a state whose types change would not pass the scan over minibatches."""
    deeper = {"actor": dataclasses.replace(SMALL, depth=2), "critic": dataclasses.replace(VALUE, depth=2)}
    learner = dataclasses.replace(config().learner, **deeper, methods=(registry.method(name)(),))
    given = {name: jnp.zeros((), jnp.float32) for name in [*learner.numbers, "rho"]}
    data = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), made_up(SPEC, 1, learner.rollout))
    data["log_prob"] = data["reward"]

    def iteration(seed):
        state = learner.init(SPEC, seed, given)
        return state, learner.update(state, given, data, seed, Clock(jnp.int32(0), jnp.float32(0.1)))[0]

    before, after = eqx.filter_eval_shape(iteration, jax.ShapeDtypeStruct((), jnp.uint32))
    assert jax.tree.structure(before) == jax.tree.structure(after)


def test_a_shared_encoder_gets_the_gradient_of_both_losses(state):
    """As if their sum were differentiated."""
    actor = state[1].nets["actor"]
    shared = dataclasses.replace(VALUE, encoder="shared")
    critic = sphere.nets.Value(shared_encoder.on_features(shared, actor.trunk, key=jax.random.key(5)))
    obs = jnp.asarray(np.random.default_rng(0).integers(0, 256, (6, dots.SIDE, dots.SIDE, 9), np.uint8))
    column = jnp.linspace(-1, 1, 6)
    batch = sphere.algos.ppo_equations.Minibatch(obs, jnp.zeros((6, 2)), column - 2, column, column**2)
    losses = {"actor": lambda net: actor_loss(net, batch, 0.2), "critic": lambda net: critic_loss(net, batch, 0.5)}
    joint = shared_encoder.jointly(losses, {"actor": actor, "critic": critic})

    def total(nets):
        whole = shared_encoder.whole(nets[1], nets[0])
        return losses["actor"](nets[0])[0] + losses["critic"](whole)[0]

    want = eqx.filter_jit(eqx.filter_grad(total))((actor, critic))
    found = eqx.filter_jit(
        lambda nets: tuple(
            eqx.filter_grad(lambda net, role=role: joint[role](net)[0])(net)
            for role, net in zip(("actor", "critic"), nets, strict=True)
        )
    )((actor, critic))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_fleet_of_images_trains_is_cut_off_and_goes_on_to_the_same_numbers(tmp_path):
    """Checkpoints hold images as bytes, the present ones once, and a saved policy acts on them."""
    train(config(), tmp_path / "straight", quiet=True)
    write(config(), tmp_path / "cut", SPEC._asdict())
    cut_after(4, config(), tmp_path / "cut")
    train(config(), tmp_path / "cut", resume=True, quiet=True)
    assert_same(tmp_path / "straight", tmp_path / "cut")
    arrays = final_arrays(tmp_path / "straight")
    images = {name: array for name, array in arrays.items() if array.ndim >= 4 and "state" not in name}
    assert sorted(name.rsplit("/", 1)[1] for name in images) == ["obs", "online"]
    assert {array.dtype for array in images.values()} == {np.dtype(np.uint8)}
    (lines,) = (found for name, found in numbers(tmp_path / "straight").items() if "metrics" in name)
    ranks = [value for line in lines for name, value in line.items() if name.endswith("heldout/ntk_rank")]
    assert ranks
    assert all(1 <= rank <= 4 for rank in ranks)
    policy = sphere.load(tmp_path / "straight")
    assert policy.act(np.zeros((2, dots.SIDE, dots.SIDE, 9), np.uint8)).shape == (2, 2)
    assert policy.evaluate(episodes=2)["length"] <= dots.HORIZON


def test_runs_do_not_depend_on_their_fleet(tmp_path):
    found = []
    for seeds in ((0, 1), (1,)):
        fleet = Fleet(config(seeds=seeds), tmp_path)
        fleet.begin_task()
        fleet.advance()
        found.append(jax.tree.map(lambda leaf: np.asarray(leaf)[-1], fleet.state.nets))
        fleet.close()
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learner": PPO(num_envs=2, rollout_steps=8, batch_size=8)}, "set the encoder of actor and critic to impala"),
        ({"normalise_observations": True}, r"normalise_observations reads vectors, not images of shape \(12, 12, 9\)"),
        ({"learner": TD3()}, r"TD3 reads vectors, not images of shape \(12, 12, 9\); use the learner ppo"),
    ],
)
def test_what_cannot_learn_from_images_is_refused_before_training(changes, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        train(config(**changes), tmp_path / "none", quiet=True)


def test_more_images_than_the_machine_holds_are_refused_with_a_number():
    check_room((84, 84, 9), 3, 1, (8, 2048))
    with pytest.raises(UserError, match=r"the images of one iteration .* take [\d,]+ GiB, and this machine has"):
        check_room((84, 84, 9), 3, 10, (8, 10**9))


def test_a_shared_encoder_needs_one_to_share_and_a_method_that_leaves_the_critic_alone(state):
    with pytest.raises(UserError, match="the critic's encoder is shared, and the actor has none"):
        shared_encoder.on_features(VALUE, state[1].nets["actor"].trunk.trunk, key=jax.random.key(0))
    with pytest.raises(UserError, match="sphere on the critic needs an encoder of the critic's own"):
        PPO(actor=SMALL, critic=dataclasses.replace(VALUE, encoder="shared"), methods=(Sphere(placement="both"),))
