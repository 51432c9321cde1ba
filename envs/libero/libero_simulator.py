"""One LIBERO task, built once and reset many times: physics and goal predicates, no images.

Physics, controller and predicates are LIBERO's and robosuite's. Left out are some forty unread
observables that they compute in each of an action's 25 physics steps, and robosuite's renderer;
repeated computations run once (`envs.libero.arm_control`). The same initial state and actions give
the same results as LIBERO's environment (tested).

Initial states do not contain the places of fixtures. With initial state i, fixtures stand as in
episode i of the published evaluation (`envs.libero.placements`), so task and state number determine
a start.

robosuite reads its sensors before an action's last physics step: it samples at the first physics
step of a sensor's period of 50 ms. Reset and initial state count as a step of 2 ms each, so the
period restarts after the 23rd of an action's 25 steps, and the sample is taken after the 24th, in
every action. Fingers are read at that moment. Poses, and so the images, are those that MuJoCo
computed at the beginning of that step.
"""

import importlib
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from envs.base import EpisodeFailed
from envs.libero.arm_control import ArmControl
from envs.libero.assets import HOW_TO, Assets
from envs.libero.folders import import_libero
from envs.libero.initial_states import read_initial_states
from envs.libero.overlaps import part_objects
from envs.libero.placements import draw_placements, published_seed
from envs.libero.suites import SETTLE_STEPS, LiberoTask
from envs.mujoco_state import STATE, divergence, state_of

# no motion, gripper open: the published protocol's action while objects settle
WAIT = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
COLLISION_GROUP, UNSEEN_GROUP = 0, 5  # robosuite draws group 1 only; MuJoCo draws 0 to 2

AS_STORED = np.zeros(2)

SAMPLED_STEP = 24
"""Physics step of an action, from 1, after which the sensors are read."""


class SensorReading(NamedTuple):
    """One reading of the sensors."""

    positions: NDArray[np.float64]
    """MuJoCo's `qpos`, the source of poses and images."""
    felt: NDArray[np.float32]
    """[8]: gripper position (3, metres), axis times angle (3, radians), fingers (2, metres)."""
    lamps: NDArray[np.float32]
    """Colours of the model's sites [sites, 4]; a stove that is on glows."""


class Sensors:
    """The sensors of one simulator."""

    def __init__(self, robot: Any, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Look up hand and fingers of robosuite's arm."""
        self._model, self._data = model, data
        self._hand, self._site = model.body(robot.robot_model.eef_name).id, int(robot.eef_site_id)
        self._fingers = list(robot._ref_gripper_joint_pos_indexes)
        self._transforms: Any = importlib.import_module("robosuite.utils.transform_utils")

    def read(self, positions: NDArray[np.float64]) -> SensorReading:
        """Read the sensors; the simulator's poses were computed from `positions`."""
        place = self._data.site_xpos[self._site]
        quaternion = np.roll(self._data.xquat[self._hand], -1)  # to x y z w
        turn = self._transforms.quat2axisangle(quaternion)
        felt = np.concatenate([place, turn, self._data.qpos[self._fingers]]).astype(np.float32)
        return SensorReading(positions, felt, self._model.site_rgba.copy())


class Start(NamedTuple):
    """Simulator state that an episode changes."""

    state: NDArray[np.float64]
    controller: dict[str, Any]
    """State of robosuite's arm controller: goals, and the last poses."""
    gripper: NDArray[np.float64]
    """Commanded opening of robosuite's gripper."""
    sample: SensorReading
    """The last reading of the sensors."""


class LiberoSimulator:
    """Physics and success of one task."""

    def __init__(self, task: LiberoTask, assets: Assets) -> None:
        """Build the task's model with `assets`; takes one to three seconds.

        Raises:
            ValueError: The initial states do not fit the model built from the assets.
            RuntimeError: A package is missing.
        """
        self.task = task
        self._stand_in = assets.stand_in
        self.states = read_initial_states(task.initial_states)
        libero = import_libero()
        _use(assets)
        with published_seed():
            control = libero.env_wrapper.ControlEnv(
                bddl_file_name=str(task.definition),
                use_camera_obs=False,
                has_offscreen_renderer=False,
                hard_reset=False,
                ignore_done=True,
            )
            control.reset()
        self.env: Any = control.env
        self.robot: Any = self.env.robots[0]
        self.model: mujoco.MjModel = self.env.sim.model._model
        self.data: mujoco.MjData = self.env.sim.data._data
        self.model.geom_group[self.model.geom_group == COLLISION_GROUP] = UNSEEN_GROUP
        width = 1 + self.model.nq + self.model.nv
        if self.states.shape[1] != width:
            raise ValueError(
                f"The initial states of LIBERO task {task.name!r} have {self.states.shape[1]} "
                f"numbers but its model has {width} (time, {self.model.nq} positions, "
                f"{self.model.nv} velocities): the assets in {assets.folder} are not those of "
                f"hf-libero 0.1.4, or another version of it is installed. {HOW_TO}"
            )
        self._arm = ArmControl(self.robot, self.model, self.data)
        self._sensors = Sensors(self.robot, self.model, self.data)
        self._substeps = int(self.env.control_timestep / self.env.model_timestep)
        self._sample = self._sensors.read(self.data.qpos.copy())
        self._settled: dict[int, Start] = {}
        self._displaced: tuple[tuple[int, bytes], Start] | None = None
        self._made = self._snapshot()
        self._placements = draw_placements(self.env, len(self.states))
        self._place(0)

    def reset(self, number: int, *, displacement: NDArray[np.float64] = AS_STORED) -> None:
        """Start from initial state `number` after the benchmark's settling; caches the start.

        `displacement` [2] moves all movable objects in x and y, in metres. Of displaced starts,
        only the last one is cached.

        Raises:
            ValueError: The task has no initial state with this number.
            EpisodeFailed: The simulation diverged, and would diverge again: neither the policy nor
                the server has failed.
        """
        if not 0 <= number < len(self.states):
            raise ValueError(
                f"LIBERO task {self.task.name!r} has no initial state {number}: it has "
                f"{len(self.states)}, numbered from 0."
            )
        self._place(number)
        if displacement.any():
            key = (number, displacement.tobytes())
            if self._displaced is None or self._displaced[0] != key:
                self._displaced = (key, self._settle(number, displacement))
            self._restore(self._displaced[1])
            return
        if number not in self._settled:
            self._settled[number] = self._settle(number, displacement)
        self._restore(self._settled[number])

    def _settle(self, number: int, displacement: NDArray[np.float64]) -> Start:
        """Set a stored state, displace its objects, and let them come to rest."""
        self.set_state(self.states[number], displacement=displacement)
        if self._stand_in and part_objects(self.model, self.data):
            self._recall(self._made)
        for _ in range(SETTLE_STEPS):
            self._advance(WAIT)
        return self._snapshot()

    def _place(self, number: int) -> None:
        """Place the fixtures for initial state `number`; a forward pass must follow."""
        self.model.body_pos[:], self.model.body_quat[:] = self._placements[number]

    def set_state(
        self, state: NDArray[np.float64], *, displacement: NDArray[np.float64] = AS_STORED
    ) -> None:
        """Set a state [1 + nq + nv] of the benchmark's files, without settling.

        `displacement` [2] is added to x and y of every movable object.

        The controller is in the state of LIBERO's reset. It still holds the arm's home pose, so the
        first action is relative to that pose, and during settling the arm moves from the state's
        pose towards it, as in the published protocol.
        """
        mujoco.mj_resetData(self.model, self.data)
        self.data.time = state[0]
        self.data.qpos[:] = state[1 : 1 + self.model.nq]
        for place in self.model.jnt_qposadr[self.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]:
            self.data.qpos[place : place + 2] += displacement
        self.data.qvel[:] = state[1 + self.model.nq :]
        self._recall(self._made)

    def step(self, action: NDArray[np.float32]) -> bool:
        """Apply one action [7] for 50 ms; returns whether the task's goal is reached.

        Raises:
            EpisodeFailed: The simulation diverged, and would diverge again: neither the policy nor
                the server has failed.
        """
        self._advance(action)
        return self.success

    @property
    def success(self) -> bool:
        """Return whether the benchmark's goal predicates hold."""
        return bool(self.env._check_success())

    @property
    def proprioception(self) -> NDArray[np.float32]:
        """Return float32 [8]: gripper position (m), axis times angle (rad), fingers (2, m)."""
        return self._sample.felt.copy()

    @property
    def sample(self) -> SensorReading:
        """Return the last reading of the sensors, which images show too."""
        return self._sample

    def _advance(self, action: NDArray[Any]) -> None:
        """One control step: robosuite's `step` without most of its observables."""
        self._check()
        try:
            self._arm.command(action)
            self._arm.run(SAMPLED_STEP - 1)
            positions = self.data.qpos.copy()
            self._arm.run(1)
            self._sample = self._sensors.read(positions)
            self._arm.run(self._substeps - SAMPLED_STEP)
        except np.linalg.LinAlgError as error:  # the controller inverts matrices with NaN
            raise EpisodeFailed(
                f"The simulation of LIBERO task {self.task.name!r} diverged ({error})."
            ) from error
        self.env._post_process()  # whether a stove glows
        self._check()

    def _snapshot(self) -> Start:
        state = state_of(self.model, self.data)
        controller = {
            name: _own(value)
            for name, value in vars(self.robot.controller).items()
            if _is_memory(value)
        }
        gripper = np.array(self.robot.gripper.current_action, np.float64)
        return Start(state, controller, gripper, self._sample)

    def _restore(self, start: Start) -> None:
        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_setState(self.model, self.data, start.state, STATE)
        self._recall(start)
        # the forward pass has changed the solver's warm start
        mujoco.mj_setState(self.model, self.data, start.state, STATE)
        self._sample = start.sample

    def _recall(self, start: Start) -> None:
        """Runs the forward pass, and restores controller and gripper from `start`."""
        mujoco.mj_forward(self.model, self.data)
        vars(self.robot.controller).update(
            {name: _own(value) for name, value in start.controller.items()}
        )
        self.robot.gripper.current_action = start.gripper.copy()
        self.env._post_process()
        self._check()
        self._sample = self._sensors.read(self.data.qpos.copy())

    def _check(self) -> None:
        diverged = divergence(self.data)
        if diverged or not (
            np.isfinite(self.data.qpos).all() and np.isfinite(self.data.qvel).all()
        ):
            raise EpisodeFailed(
                f"The simulation of LIBERO task {self.task.name!r} diverged "
                f"({', '.join(diverged) or 'not finite'})."
            )


def _use(assets: Assets) -> None:
    """Make LIBERO's classes load from `assets`, by setting the module variable with the folder."""
    package: Any = importlib.import_module("libero.libero")
    package._assets_path_cache = str(assets.folder)


def _is_memory(value: Any) -> bool:
    return value is None or isinstance(value, (np.ndarray, float, int, bool))


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
