"""The MetaWorld package itself: where models, resets, goals and pictures come from."""

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from sphere.envs.metaworld_scene import Start
from sphere.envs.offscreen import renderer

Row = Float[np.ndarray, " k"]

FRAME_SKIP = 5
HAND_STEPS = 50 * FRAME_SKIP
"""Physics steps in which a reset brings the hand to its first position."""

FRAME = 480
"""Height and width of a picture."""

CAMERA = "corner2"  # hangs upside down in the package's scenes


class EpisodeStart(NamedTuple):
    """The start of an episode."""

    physics: Row
    observation: Row
    draw: Row  # what the package's random vector was
    placed: Row  # position of the body that a reset places
    start: Start


@functools.cache
def simulator() -> tuple[Any, Any]:
    """The package's environment classes by name, and mujoco."""
    try:
        import mujoco
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    except ImportError as error:
        raise ImportError(
            f"MetaWorld cannot be imported ({error}); install it with: pip install 'sphere-rl[metaworld]'"
        ) from error
    return ALL_V3_ENVIRONMENTS, mujoco


class Origin:
    """One environment of the package, in which all episodes of a batch begin.

    The package's reset goes twice over the scene, draws again each time, and moves the hand for 50 steps before every
    draw, among what the draw before has placed. With a given goal that is: place, then from rest move the hand, then
    everything else. So it is done here, once; and where nothing is placed, the hand's way is always the same, and is
    kept.
    """

    def __init__(self, task: str, placed: str, other: str) -> None:
        classes, self.mujoco = simulator()
        self.env = env = classes[f"{task}-v3"]()
        self.placed, self.other = placed, other
        self.model, self.data = env.model, env.data
        self.spec = self.mujoco.mjtState.mjSTATE_INTEGRATION.value
        self.state_size = self.mujoco.mj_stateSize(self.model, self.spec)
        self.slot = self.model.body(placed).pos if placed else None
        self.goal_bounds = env.goal_space.low, env.goal_space.high
        self.mocap_bounds = env.mocap_low, env.mocap_high
        (self.target,) = np.flatnonzero(
            self.model.body_mocapid >= 0
        ).tolist()  # what the hand is drawn to; it meets nothing
        self.draw_size = env._random_reset_space.low.size
        self.hand: tuple[np.ndarray, ...] | None = None
        self.renderer: Any = None
        env._partially_observable = False
        env.init_tcp = env.tcp_center
        self._place(np.random.default_rng(0))  # some scenes are brought to their place by the first reset
        trim()

    def simulation(self) -> Any:
        return self.mujoco.MjData(self.model)

    def reset(self, rng: np.random.Generator) -> EpisodeStart:
        """A new episode, by draws from `rng`."""
        if self.placed:
            self._place(rng)
            self.env._get_state_rand_vec = lambda: self.draw
        else:
            self.env._get_state_rand_vec = lambda: self._draw(rng)
        self.mujoco.mj_resetData(self.model, self.data)
        self.env._reset_hand = self._move_hand
        observation = self.env.reset_model()
        observation[18:36] = observation[:18]
        other = getattr(self.env, self.other) if self.other else np.zeros(3)
        start = Start(self.env._target_pos, self.env.obj_init_pos, self.env.init_tcp, other)
        placed = np.zeros(3) if self.slot is None else self.slot.copy()
        return EpisodeStart(self.get_state(self.data), observation, self.draw, placed, start)

    def _draw(self, rng: np.random.Generator) -> Row:
        """The package asks again until the goal is far enough from the object."""
        space = self.env._random_reset_space
        self.draw = rng.uniform(space.low, space.high)
        return self.draw

    def _place(self, rng: np.random.Generator) -> None:
        """Draw, and set the scene's parts accordingly."""
        self.env._get_state_rand_vec = lambda: self._draw(rng)
        self.env._reset_hand = lambda: None
        self.env.reset_model()

    def _move_hand(self) -> None:
        # Some resets read positions before these are computed again: then they are those before the last physics step.
        stale = (self.data.xpos, self.data.geom_xpos, self.data.site_xpos)
        if self.hand is None:
            self.data.mocap_pos[:] = self.env.hand_init_pos
            self.data.mocap_quat[:] = (1, 0, 1, 0)
            self.data.ctrl[:] = (-1, 1)
            self.mujoco.mj_step(self.model, self.data, HAND_STEPS)
            if not self.placed:
                self.hand = (self.get_state(self.data), *(array.copy() for array in stale))
        else:
            self.set_state(self.data, self.hand[0])
            for array, kept in zip(stale, self.hand[1:], strict=True):
                array[:] = kept
        self.env.init_tcp = self.env.tcp_center

    def step_after_forward(self, data: Any) -> None:
        """`mj_step` where `mj_forward` came before it, for a new `ctrl` and a new `mocap_pos` that is in `xpos`
        already: the weld that draws the hand there, and what follows from it. Contacts, inertias and forces of motion
        are as they were.
        """
        self.mujoco.mj_makeConstraint(self.model, data)
        self.mujoco.mj_referenceConstraint(self.model, data)
        self.mujoco.mj_step2(self.model, data)

    def get_state(self, data: Any) -> Row:
        """All that a simulation's future depends on."""
        state = np.empty(self.state_size)
        self.mujoco.mj_getState(self.model, data, state, self.spec)
        return state

    def set_state(self, data: Any, state: Row) -> None:
        self.mujoco.mj_setState(self.model, data, state, self.spec)

    def render(self, data: Any, placed: Row, target: Row) -> np.ndarray:
        """A frame from a corner of the room, right side up."""
        if self.renderer is None:
            self.renderer = renderer(self.mujoco, self.model, FRAME, FRAME)
        if self.slot is not None:
            self.slot[:] = placed
        for site in range(self.model.nsite):
            if self.model.site(site).name in ("goal", "goal_close") and self.model.site_bodyid[site] == 0:
                self.model.site_pos[site] = target
        # In the package's own data: mj_forward renews the warm start, and a picture must not change the episode.
        self.set_state(self.data, self.get_state(data))
        self.mujoco.mj_forward(self.model, self.data)
        self.renderer.update_scene(self.data, camera=CAMERA)
        return self.renderer.render()[::-1, ::-1].copy()

    def close(self) -> None:
        """Free the model now: the package's environment has functions of ours, a cycle that would keep it alive."""
        if self.renderer is not None:
            self.renderer.close()
        self.env.close()
        self.env.__dict__.clear()
        self.renderer = self.env = self.model = self.data = self.slot = None


def trim() -> None:
    """Give back to the system the 60 MB that compiling a model has used, and glibc would keep."""
    if hasattr(c_library(), "malloc_trim"):
        c_library().malloc_trim(0)


@functools.cache
def c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
