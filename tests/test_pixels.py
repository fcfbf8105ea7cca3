"""MetaWorld from pixels: the state suite's physics, and pictures in which one sees what matters."""

import os

import numpy as np
import pytest
from suites import begun, rngs

from sphere import envs
from sphere.envs import heldout, offscreen
from sphere.envs.frame_stack import Stack, with_numbers
from sphere.errors import UserError
from sphere.presets import preset

pytest.importorskip("metaworld")

from sphere.envs.metaworld import MetaWorld
from sphere.envs.metaworld_pixels import CAMERAS, MetaWorldPixels

pytestmark = pytest.mark.usefixtures("models_compiled_once")

GOALS = ("push", "push-wall", "push-back", "stick-pull", "shelf-place")
"""Tasks whose goal is a site that a reset moves."""


@pytest.fixture(scope="module", autouse=True)
def pictures():
    try:
        return offscreen.platform()
    except offscreen.NoPictures as error:
        pytest.skip(str(error))


def picture(batch, i=0):
    """What the newest picture of an environment would be now."""
    return batch._frames(np.array([i]), batch.world.last[[i]])[0].astype(int)


def greenish(pixels):
    return (pixels[..., 1] > pixels[..., 0] + 60) & (pixels[..., 1] > pixels[..., 2] + 60)


@pytest.mark.parametrize("task", MetaWorld.tasks)
def test_states_rewards_success_and_goals_are_those_of_the_state_suite(task):
    """Bit for bit, with drawing in between, over the end of an episode."""
    (plain, _), (drawn, first) = begun(MetaWorld, task), begun(MetaWorldPixels, task, image_size=16)
    assert first.shape == (2, 16, 16, 9)
    rng = np.random.default_rng(1)
    for step in range(8):
        action = rng.uniform(-1, 1, (2, 4)).astype(np.float32)
        want, came = plain.step(action), drawn.step(action)
        for name, one, other in zip(("reward", "terminated", "success"), want[1:], came[1:], strict=True):
            np.testing.assert_array_equal(one, other, name)
        np.testing.assert_array_equal(want[0][:, 36:39], drawn.world.last[:, 36:39], "goal")
        if step == 4:
            for batch in (plain, drawn):
                batch.reset(np.array([1]), rngs(0, 3)[1:])
    state = drawn.get_state()
    for name, array in plain.get_state().items():
        np.testing.assert_array_equal(array, state[name], name)
    plain.close()
    drawn.close()


@pytest.mark.parametrize("task", GOALS)
def test_a_moved_goal_is_seen_to_move(task):
    batch, _ = begun(MetaWorldPixels, task, num_envs=1)
    before = picture(batch)
    assert greenish(before).any(), "the goal is a green ball"
    where = batch.world.placed if task == "shelf-place" else batch.world.start.target
    where[0, 1] += 0.08
    after = picture(batch)
    centres = [np.argwhere(greenish(shown)).mean(axis=0) for shown in (before, after)]
    # the camera looks from the near right: what is further along y stands further up and left
    assert np.abs(centres[1] - centres[0]).max() > 2
    batch.close()


def test_a_moved_object_is_seen_to_move():
    batch, _ = begun(MetaWorldPixels, "push", num_envs=1)
    before = picture(batch)
    data = batch.world.data[0]
    puck = batch.world.origin.model.joint("objjoint").qposadr[0]
    data.qpos[puck : puck + 2] += (0.15, 0.1)
    after = picture(batch)
    changed = np.argwhere(np.abs(after - before).max(axis=-1) > 30)
    assert 2 < len(changed) < 400, "the puck, where it was and where it is"
    batch.close()


def test_pictures_are_right_side_up_and_the_hand_is_above_the_table():
    batch, first = begun(MetaWorldPixels, "push", num_envs=1)
    newest = first[0, ..., -3:].astype(int)
    red = np.argwhere(newest[..., 0] > newest[..., 1] + 60)
    sky = newest[:10].mean(axis=(0, 1))
    assert np.ptp(sky) < 15, "grey above"
    assert red[:, 0].min() < 30, "the arm comes from above"
    assert newest[60:, 30:].mean(axis=(0, 1))[0] > newest[60:, 30:].mean(axis=(0, 1))[2] + 10, "wood below"
    batch.close()


def test_an_episode_begins_with_copies_and_the_newest_frame_stands_last():
    stack = Stack(2, (4, 4, 3), 3)
    frame = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((4, 4, 4, 3), np.uint8)
    stack.restart(np.array([0, 1]), frame[:2])
    stack.push(frame[2:])
    np.testing.assert_array_equal(stack.seen[:, 0, 0], [[0] * 6 + [2] * 3, [1] * 6 + [3] * 3])
    stack.restart(np.array([1]), frame[:1])
    np.testing.assert_array_equal(stack.seen[:, 0, 0], [[0] * 6 + [2] * 3, [0] * 9])


def test_the_hand_s_own_numbers_stand_below_the_picture():
    settings = {"image_size": 16, "frame_stack": 2, "proprioception": True}
    batch, _ = begun(MetaWorldPixels, "push", **settings)
    assert batch.image_shape == (17, 16, 6)
    seen, *_ = batch.step(np.ones((2, 4), np.float32))
    plain, before = begun(MetaWorld, "push")
    now, *_ = plain.step(np.ones((2, 4), np.float32))
    for frame, state in ((seen[..., :3], before), (seen[..., 3:], now)):
        row = np.ascontiguousarray(frame[:, 16]).reshape(2, -1)
        np.testing.assert_array_equal(row[:, :16].copy().view("<f4"), state[:, :4].astype(np.float32))
        assert not row[:, 16:].any()
    image = np.zeros((2, 16, 16, 3), np.uint8)
    np.testing.assert_array_equal(with_numbers(image, now[:, :4])[:, 16].reshape(2, -1)[:, :16], row[:, :16])
    batch.close()
    plain.close()


def test_images_go_on_exactly_from_a_captured_state_under_any_number_of_workers():
    """The stack too, and over the end of an episode."""
    settings = {"horizon": 5, "image_size": 16}
    actions = np.random.default_rng(0).uniform(-1, 1, (8, 3, 4)).astype(np.float32)

    def played(pool, some):
        return [pool.step(action) for action in some]

    with envs.make("metaworld-pixels/push", 3, workers=0, **settings) as pool:
        pool.reset()
        played(pool, actions[:3])
        state = pool.get_state()
        images = [name for name, array in state.items() if array.dtype == np.uint8]
        assert images == ["obs"], "a checkpoint holds a picture once"
        want = played(pool, actions[3:])
    with envs.make("metaworld-pixels/push", 3, workers=2, **settings) as pool:
        assert pool.single_observation_space.dtype == np.uint8
        assert pool.single_observation_space.shape == (16, 16, 9)
        np.testing.assert_array_equal(pool.set_state(state), state["obs"])
        came = played(pool, actions[3:])
    for one, other in zip(want, came, strict=True):
        for a, b in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(one[4]["final_obs"], other[4]["final_obs"])
    ended = want[1]
    assert ended[3].all(), "the horizon"
    assert (ended[0] != ended[4]["final_obs"]).any(), "the next episode, and how the last one ended"
    first = ended[0]
    np.testing.assert_array_equal(first[..., :3], first[..., 6:])


def test_the_shipped_images_are_those_that_the_preset_compares_on():
    config = preset("metaworld-pixels-crl")
    states = heldout.fixed_states(config.tasks[0], config.evaluation.heldout, (84, 84, 9), {})
    assert (states.shape, states.dtype) == ((64, 84, 84, 9), np.uint8)
    assert states.reshape(64, -1).std(axis=0).mean() > 5, "of different scenes"


def test_cameras_are_the_package_s():
    batch, _ = begun(MetaWorldPixels, "push", num_envs=1, image_size=8)
    model = batch.stage.model
    assert tuple(model.camera(i).name for i in range(model.ncam)) == CAMERAS
    batch.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"camera": "corner5"}, "there is no camera 'corner5'; did you mean corner"),
        ({"image_size": 4}, "image_size=4; want 8 pixels or more"),
        ({"frame_stack": 0}, "frame_stack=0; want 1 or more"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        envs.make("metaworld-pixels/push", **settings)


def test_without_a_renderer_a_sentence_names_the_packages(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "nothing")
    monkeypatch.setattr(offscreen, "platform", offscreen.platform.__wrapped__)
    with pytest.raises(offscreen.NoPictures, match=r"MUJOCO_GL is 'nothing'; unset it, or .*libegl1.*libosmesa6"):
        envs.make("metaworld-pixels/push")
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(offscreen, "PROBE", "raise SystemExit('no driver for {name}')")
    with pytest.raises(offscreen.NoPictures, match=r"\(egl: no driver for egl; osmesa: no driver .*install PyOpenGL"):
        envs.make("metaworld-pixels/push")


def test_where_one_platform_fails_the_other_is_taken(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setattr(offscreen, "PROBE", "assert '{name}' == 'osmesa'; print('some device')")
    assert offscreen.platform.__wrapped__() == ("osmesa", "some device")
    assert os.environ["MUJOCO_GL"] == "osmesa", "workers follow"
