"""MuJoCo Warp as the renderer: the same scenes as MuJoCo's own, in a pool that cannot be told from one of its own."""

import os

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from sphere import envs
from sphere.envs import drawn, offscreen, warp_process
from sphere.errors import UserError

pytest.importorskip("metaworld")

from sphere.envs.metaworld import MetaWorld
from sphere.envs.metaworld_pixels import POSE

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (7, 2, 4)).astype(np.float32)


@pytest.fixture
def both():
    """Needs both renderers."""
    try:
        drawn.check_renderer(drawn.interpreter())
        offscreen.platform()
    except (UserError, offscreen.NoPictures) as error:
        pytest.skip(str(error))


def similarity(one, other, window=7):
    """SSIM of Wang et al. (2004) with a flat window, mean over positions and colours."""
    x, y = (sliding_window_view(image.astype(float), (window, window), axis=(0, 1)) for image in (one, other))
    mean_x, mean_y, var_x, var_y = x.mean((-2, -1)), y.mean((-2, -1)), x.var((-2, -1)), y.var((-2, -1))
    covariance = (x * y).mean((-2, -1)) - mean_x * mean_y
    small, larger = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    alike = (2 * mean_x * mean_y + small) * (2 * covariance + larger)
    return float((alike / ((mean_x**2 + mean_y**2 + small) * (var_x + var_y + larger))).mean())


def test_similarity_is_one_for_the_same_and_falls_for_the_shifted_and_the_swapped():
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    assert similarity(image, image) == pytest.approx(1)
    assert similarity(image, image[::-1]) < 0.3
    smooth = np.linspace(0, 255, 20)[:, None, None] * np.array([1, 0.5, 0]) * np.ones((1, 20, 1))
    assert similarity(smooth, smooth[..., ::-1]) < 0.7


@pytest.mark.usefixtures("both")
def test_both_renderers_draw_the_same_scenes():
    """All ten tasks, after some steps, in one pool each that goes from task to task."""
    seen = {}
    for renderer in ("mujoco", "warp"):
        with envs.make("metaworld-pixels/hammer", 2, workers=0, renderer=renderer) as pool:
            for task in MetaWorld.tasks:
                pool.switch(task) if pool.task != task else pool.reset()
                for action in ACTIONS:
                    images = pool.step(action)[0]
                seen[renderer, task] = images[..., -3:]
    for task in MetaWorld.tasks:
        found = [similarity(a, b) for a, b in zip(seen["mujoco", task], seen["warp", task], strict=True)]
        assert min(found) >= 0.9, (task, found)
        turned = similarity(seen["mujoco", task][0], seen["warp", task][0][::-1, ::-1])
        swapped = similarity(seen["mujoco", task][0], seen["warp", task][0][..., ::-1])
        assert max(turned, swapped) < 0.9, "rows and colours are in order"


@pytest.mark.usefixtures("both")
def test_a_drawn_pool_is_one_of_images_and_goes_on_exactly():
    settings = {"horizon": 4, "image_size": 24, "proprioception": True}
    played = {}
    for renderer in ("mujoco", "warp"):
        with envs.make("metaworld-pixels/push", 2, workers=1, renderer=renderer, **settings) as pool:
            first, _ = pool.reset()
            played[renderer] = [(first, *pool.step(action)) for action in ACTIONS]
            space, sizes = pool.single_observation_space, pool.sizes
            if renderer == "warp":
                pool.reset(seed=0)
                for action in ACTIONS[:2]:
                    pool.step(action)
                state = pool.get_state()
                straight = [pool.step(action) for action in ACTIONS[2:]]
                images = [name for name, array in state.items() if array.dtype == np.uint8]
                assert images == ["seen"], "a checkpoint holds a picture once"
                assert pool.render(1)[0].shape == (480, 480, 3)
        assert (space.shape, space.dtype, sizes.frames, sizes.numbers) == ((25, 24, 9), np.uint8, 3, 4)
    for own, other in zip(played["mujoco"], played["warp"], strict=True):
        for i in (2, 3, 4):
            np.testing.assert_array_equal(own[i], other[i], "rewards and flags")
        np.testing.assert_array_equal(own[1][:, 24], other[1][:, 24], "numbers below the picture")
        np.testing.assert_array_equal(own[5]["success"], other[5]["success"])
    with envs.make("metaworld-pixels/push", 2, workers=0, renderer="warp", **settings) as pool:
        np.testing.assert_array_equal(pool.set_state(state), state["seen"])
        again = [pool.step(action) for action in ACTIONS[2:]]
    for one, other in zip(straight, again, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[4]["final_obs"], other[4]["final_obs"])


def test_a_pose_has_room_for_every_task():
    mujoco = pytest.importorskip("mujoco")
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    for task in MetaWorld.tasks:
        env = ALL_V3_ENVIRONMENTS[f"{task}-v3"]
        model = warp_process.staged(mujoco, env.model_name.fget(object.__new__(env)))
        assert warp_process.pose_size(model) <= POSE


def test_without_mujoco_warp_a_sentence_says_how_to_get_it(monkeypatch, tmp_path):
    for python in (str(tmp_path / "none"), os.environ.get("SHELL", "/bin/sh")):
        monkeypatch.setenv("SPHERE_RENDERER", python)
        with pytest.raises(UserError, match=r"renderer=warp needs an interpreter with MuJoCo Warp.*pip install"):
            envs.make("metaworld-pixels/push", renderer="warp")
    with pytest.raises(UserError, match="there is no renderer 'vulkan'"):
        envs.make("metaworld-pixels/push", renderer="vulkan")


def test_more_worlds_than_fit_are_refused_with_a_number():
    warp_process.check_room(80, 84, POSE, 2**30)
    with pytest.raises(ValueError, match=r"100,000 worlds of 84 x 84 pixels take 11\.0 GiB or more, and 1\.0 are free"):
        warp_process.check_room(100_000, 84, POSE, 2**30)


@pytest.mark.usefixtures("both")
def test_what_the_renderer_refuses_comes_as_a_sentence_before_training():
    renderer = drawn.Renderer(1, 8)
    try:
        with pytest.raises(UserError, match=r"the renderer says: .*no/such\.xml"):
            renderer.load({"path": "/no/such.xml", "camera": "corner4", "geoms": [], "lights": 0, "upside_down": False})
    finally:
        renderer.close()
