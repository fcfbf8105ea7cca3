"""HumanoidBench's H1 without hands: stand, walk, run, pole, slide and stair, as the package has them.

The models are the package's own, from `assets`; the rest is ours, because the package neither installs beside MetaWorld
nor starts under its mujoco. `humanoidbench_verify` compares with traces that were recorded from it.

Contacts make a fall chaotic, so numbers are equal only if the same physics calls come in the same order: a reset is
keyframe, forward, state, forward; the action is mapped to controls in float32; a step is ten physics steps in one call
and no forward after it, so that rewards see positions, velocities and forces of before the last of them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sphere.envs import assets
from sphere.envs import humanoidbench_rewards as rewards
from sphere.envs.batch import State, Stepped
from sphere.envs.humanoidbench_rewards import Readings
from sphere.envs.metaworld_origin import FRAME, trim
from sphere.envs.offscreen import renderer
from sphere.errors import unknown

FRAME_SKIP = 10
NOISE = 0.01
"""A reset draws every entry of qpos, quaternion included, from so far around the keyframe's."""

HEIGHT_ENTRY = 2  # of qpos
CAMERA = "cam_default"  # goes with the robot
SHADOWS = 2048  # pixels; the models ask for 16384, 1 GB where there is no GPU


class Task(NamedTuple):
    reward: Callable[[Readings], Any]
    success_bar: float
    """Return of an episode from which on it is a success."""
    least: tuple[str, float]
    """The measurement below which an episode terminates."""

    def terminated(self, measured: Readings) -> Any:
        """Of every environment."""
        name, least = self.least
        return getattr(measured, name) < least


TASKS = {
    "stand": Task(rewards.stand, 800, ("height", 0.2)),
    "walk": Task(rewards.walk, 700, ("height", 0.2)),
    "run": Task(rewards.run, 700, ("height", 0.2)),
    "pole": Task(rewards.pole, 700, ("height", 0.5)),
    "slide": Task(rewards.climb, 700, ("upright", 0.1)),
    "stair": Task(rewards.climb, 700, ("upright", 0.1)),
}


@functools.cache
def simulator() -> Any:
    """mujoco; only the version that the traces were recorded with gives their numbers."""
    try:
        import mujoco
    except ImportError as error:
        raise ImportError(
            f"mujoco cannot be imported ({error}); install it with: pip install 'sphere-rl[humanoidbench]'"
        ) from error
    return mujoco


class ModelIndices(NamedTuple):
    """Where in a model's arrays the measurements are."""

    torso: int  # body
    velocity: int  # first entry of the sensor
    sites: tuple[int, ...]  # head, left foot, right foot
    poles: np.ndarray  # of every geom: is it a pole


def places(model: Any) -> ModelIndices:
    sites = tuple(model.site(name).id for name in ("head", "left_foot", "right_foot"))
    poles = np.array(["pole_r" in model.geom(i).name for i in range(model.ngeom)])
    return ModelIndices(model.body("torso_link").id, int(model.sensor("pelvis_subtreelinvel").adr[0]), sites, poles)


def check(task: str, horizon: int) -> None:
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    if horizon < 1:
        raise ValueError(f"horizon={horizon}; want a positive number of steps, the package's own is 1000")


def model_of(task: str) -> Any:
    return simulator().MjModel.from_xml_path(str(assets.find("humanoidbench") / "envs" / f"h1_pos_{task}.xml"))


def control_range(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """The controls for an action of -1, and how much more those for 1 are; in float32, as the package has them."""
    low, high = model.actuator_ctrlrange.astype(np.float32).T.copy()
    return low, high - low


class HumanoidBench:
    """A `Batch` of one of these tasks. Observed are qpos (26) and qvel (25); an action sets 19 joint targets.

    Success at a step: the episode's return so far has reached the task's bar. Rewards are never negative, so it stays.

    horizon: steps of an episode; the bars are meant for 1000.
    """

    tasks: ClassVar[tuple[str, ...]] = tuple(TASKS)
    same_sizes: ClassVar[bool] = True
    mujoco_version: ClassVar[str] = "3.3.0"

    def __init__(self, task: str, num_envs: int, horizon: int = 1000) -> None:
        check(task, horizon)
        self.task, self.horizon, self.mujoco = TASKS[task], horizon, simulator()
        self.model = model = model_of(task)
        trim()
        self.spec = self.mujoco.mjtState.mjSTATE_INTEGRATION.value
        self.state_size = self.mujoco.mj_stateSize(model, self.spec)
        self.observation_size = model.nq + model.nv
        self.action_low, self.action_high = np.full(model.nu, -1.0), np.full(model.nu, 1.0)
        self.control_low, self.control_range = control_range(model)
        self.places = places(model)
        self.data = [self.mujoco.MjData(model) for _ in range(num_envs)]
        self.renderer: Any = None
        self._measurements()

    def _measurements(self) -> None:
        """The arrays that are copied out of the simulations, and the views by which they are."""
        n, model = len(self.data), self.model
        self.observation, self.returned = np.zeros((n, self.observation_size)), np.zeros(n)
        self.control = np.zeros((n, model.nu))
        scalars = np.zeros((4, n))
        height = self.observation[:, HEIGHT_ENTRY]
        force, velocity, touched = np.zeros((n, model.nu)), np.zeros((n, 3)), np.zeros(n, bool)
        head, left, right, upright = scalars
        self.measured = Readings(height, head, left, right, upright, force, velocity, touched)
        torso, sensor, sites, _ = self.places
        self.simulations = []
        for i, data in enumerate(self.data):
            heights = [(scalars[k, i : i + 1], data.site_xpos[site, 2:]) for k, site in enumerate(sites)]
            reads = [
                (self.observation[i, : model.nq], data.qpos),
                (self.observation[i, model.nq :], data.qvel),
                (force[i], data.actuator_force),
                (velocity[i], data.sensordata[sensor : sensor + 3]),
                (scalars[3, i : i + 1], data.xmat[torso, 8:]),
                *heights,
            ]
            self.simulations.append((data, data.ctrl, self.control[i], reads))

    def reset(self, where: Int[np.ndarray, " k"], rngs: Sequence[np.random.Generator]) -> Float[np.ndarray, "k obs"]:
        qpos, qvel = self.model.key_qpos[0], self.model.key_qvel[0]
        for i, rng in zip(where.tolist(), rngs, strict=True):
            self.start(i, np.concatenate([qpos + rng.uniform(-NOISE, NOISE, qpos.size), qvel]))
        return self.observation[where]

    def start(self, index: int, state: Float[np.ndarray, " obs"]) -> None:
        """A new episode of one environment from these qpos and qvel."""
        model, data = self.model, self.data[index]
        self.mujoco.mj_resetDataKeyframe(model, data, 0)
        self.mujoco.mj_forward(model, data)  # leaves the solver's warm start for what follows
        data.qpos[:], data.qvel[:] = state[: model.nq], state[model.nq :]
        self.mujoco.mj_forward(model, data)
        self.observation[index] = np.concatenate([data.qpos, data.qvel])
        self.returned[index] = 0.0

    def step(self, action: Float[np.ndarray, "env act"]) -> Stepped:
        self._simulate(action)
        terminated, reward = self.task.terminated(self.measured), self.task.reward(self.measured)
        self.returned += reward
        return self.observation.copy(), reward, terminated, self.returned >= self.task.success_bar

    def _simulate(self, action: Float[np.ndarray, "env act"]) -> None:
        """Move all simulations on, and copy out where things are."""
        self.control[:] = (action.astype(np.float32) + 1) / 2 * self.control_range + self.control_low
        model, mj_step = self.model, self.mujoco.mj_step
        for data, ctrl, control, reads in self.simulations:
            ctrl[:] = control
            mj_step(model, data, FRAME_SKIP)
            for to, value in reads:
                to[:] = value
        poles = self.places.poles
        if poles.any():
            touched = self.measured.touched
            for i, data in enumerate(self.data):
                # Poles stand still and so does the floor: what touches one is the robot.
                touched[i] = data.ncon > 0 and poles[data.contact.geom].any()

    def get_state(self) -> State:
        """A step begins from these alone: mujoco computes the rest again, and rewards keep only their sum."""
        physics = np.empty((len(self.data), self.state_size))
        for data, row in zip(self.data, physics, strict=True):
            self.mujoco.mj_getState(self.model, data, row, self.spec)
        return {"physics": physics, "return": self.returned.copy()}

    def set_state(self, state: State) -> None:
        for data, row in zip(self.data, state["physics"], strict=True):
            self.mujoco.mj_setState(self.model, data, row, self.spec)
        self.returned[:] = state["return"]

    def render(self, index: int) -> np.ndarray:
        """A frame of one environment as it is now: uint8 [480, 480, 3]."""
        if self.renderer is None:
            self.model.vis.quality.shadowsize = SHADOWS
            self.renderer = renderer(self.mujoco, self.model, FRAME, FRAME)
            self.scratch = self.mujoco.MjData(self.model)
        # In data of its own: mj_forward renews the warm start, and a picture must not change the episode.
        state = np.empty(self.state_size)
        self.mujoco.mj_getState(self.model, self.data[index], state, self.spec)
        self.mujoco.mj_setState(self.model, self.scratch, state, self.spec)
        self.mujoco.mj_forward(self.model, self.scratch)
        self.renderer.update_scene(self.scratch, camera=CAMERA)
        return self.renderer.render().copy()

    def close(self) -> None:
        if self.renderer is not None:
            self.renderer.close()
        self.renderer = self.scratch = self.model = None
        self.simulations, self.data = [], []
