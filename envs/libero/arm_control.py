"""robosuite's operational-space controller for LIBERO's arm, without repeated computations.

robosuite 1.4.0 computes the whole dynamics three times per physics step: before the controller, in
the controller, and in the step. Positions and velocities are the same each time; only the
constraint solver continues from its last solution, and torques enter at the end. Here positions and
velocities are computed once, and the solver runs as often as in robosuite. Names and matrices are
resolved once per simulator, and unread observables are not recorded. Matrices and torques come from
robosuite's compiled functions, on the same numbers in the same memory order, so positions are equal
to the last bit (tested).
"""

import importlib
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

POSE = 6  # entries of an action that move the hand; the seventh moves the fingers


class ArmControl:
    """Computes torques from an action, per physics step."""

    def __init__(self, robot: Any, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Resolve the constants of a model.

        Args:
            robot: robosuite's single arm; its controller and gripper keep their state.
            model: MuJoCo model of the simulator that holds the robot.
            data: State of that model.

        Raises:
            RuntimeError: The controller is not LIBERO's.
        """
        controller = robot.controller
        found = (
            controller.name,
            controller.impedance_mode,
            controller.uncoupling,
            controller.interpolator_pos,
            controller.interpolator_ori,
        )
        if found != ("OSC_POSE", "fixed", True, None, None):
            raise RuntimeError(
                "LIBERO's arm is moved by robosuite 1.4.0's OSC_POSE without interpolation; this "
                f"controller is {found}."
            )
        if type(robot.gripper).__name__ != "PandaGripper":
            raise RuntimeError(
                "LIBERO's fingers are robosuite's PandaGripper, not "
                f"{type(robot.gripper).__name__}."
            )
        self._model = model
        self._data = data
        self._controller = controller
        self._gripper = robot.gripper
        self._formulas: Any = importlib.import_module("robosuite.utils.control_utils")
        self._joints, self._positions = _span(controller.qvel_index), _span(controller.qpos_index)
        self._stiffness, self._damping = controller.kp, controller.kd  # of "fixed" impedance
        self._motors = np.asarray(robot._ref_joint_actuator_indexes)
        self._lowest, self._highest = robot.torque_limits
        self._finger_motors = np.asarray(
            [model.actuator(name).id for name in robot.gripper.actuators]
        )
        low, high = model.actuator_ctrlrange[self._finger_motors].T
        self._finger_middle = 0.5 * (high + low)
        self._finger_half = 0.5 * (high - low)
        self._site = int(robot.eef_site_id)
        self._hand_position, self._hand_rotation = (
            data.site_xpos[self._site],
            data.site_xmat[self._site].reshape(3, 3),
        )
        self._moves, self._turns = np.empty((3, model.nv)), np.empty((3, model.nv))
        self._masses = np.empty((model.nv, model.nv))
        self._goal: NDArray[Any] | None = None  # goal of an action that has not started
        self._closing = np.zeros(2)
        # In the column order of robosuite's indexing: rounding of matrix products depends on memory
        # order.
        joints = len(controller.qvel_index)
        self._matrices = [np.empty((rows, joints), order="F") for rows in (3, 3, 6, joints)]

    def command(self, action: NDArray[Any]) -> None:
        """Set the action [7]: hand motion relative to the next physics step's pose, and fingers."""
        self._goal = action[:POSE]
        # As the gripper's `format_action`.
        self._closing = np.array([-1.0, 1.0]) * self._gripper.speed * np.sign(action[POSE:])

    def run(self, physics_steps: int) -> None:
        """Execute the action for `physics_steps` steps.

        Raises:
            LinAlgError: The state is not finite.
        """
        model = self._model
        data = self._data
        controller = self._controller
        gripper = self._gripper
        for _ in range(physics_steps):
            mujoco.mj_step1(model, data)  # positions and velocities
            self._solve()
            # not in the first step after a reset: the controller still holds the arm's home pose
            if controller.new_update:
                self._solve()
                self._look()
            if self._goal is not None:
                controller.set_goal(self._goal)
                self._goal = None
            data.ctrl[self._motors] = _bounded(self._torques(), self._lowest, self._highest)
            gripper.current_action = _bounded(gripper.current_action + self._closing, -1.0, 1.0)
            data.ctrl[self._finger_motors] = (
                self._finger_middle + self._finger_half * gripper.current_action
            )
            mujoco.mj_step2(model, data)  # torques, accelerations, integration

    def _solve(self) -> None:
        """Runs the constraint solver from its last solution, with the last step's torques."""
        # 1: no sensors
        mujoco.mj_forwardSkip(self._model, self._data, mujoco.mjtStage.mjSTAGE_VEL, 1)

    def _look(self) -> None:
        """robosuite's `Controller.update`, from computed dynamics."""
        model = self._model
        data = self._data
        controller = self._controller
        joints = self._joints
        mujoco.mj_jacSite(model, data, self._moves, self._turns, self._site)
        controller.ee_pos, controller.ee_ori_mat = (
            self._hand_position.copy(),
            self._hand_rotation.copy(),
        )
        velocities = data.qvel
        controller.ee_pos_vel, controller.ee_ori_vel = (
            np.dot(self._moves, velocities),
            np.dot(self._turns, velocities),
        )
        controller.joint_pos, controller.joint_vel = (
            data.qpos[self._positions].copy(),
            velocities[joints].copy(),
        )
        moves, turns, both, masses = self._matrices
        moves[:], turns[:] = self._moves[:, joints], self._turns[:, joints]
        both[:3], both[3:] = moves, turns
        mujoco.mj_fullM(model, self._masses, data.qM)
        masses[:] = self._masses[joints, joints]
        controller.J_pos, controller.J_ori, controller.J_full, controller.mass_matrix = (
            self._matrices
        )
        controller.new_update = False  # so that `set_goal` does not compute it again

    def _torques(self) -> NDArray[np.float64]:
        """Torques [7] towards the controller's goal: its `run_controller` (Khatib, 1987)."""
        arm = self._controller
        stiffness = self._stiffness
        damping = self._damping
        away = self._formulas.orientation_error(arm.goal_ori, arm.ee_ori_mat)
        force = (arm.goal_pos - arm.ee_pos) * stiffness[:3] + -arm.ee_pos_vel * damping[:3]
        torque = away * stiffness[3:] + -arm.ee_ori_vel * damping[3:]
        _, along, about, nullspace = self._formulas.opspace_matrices(
            arm.mass_matrix, arm.J_full, arm.J_pos, arm.J_ori
        )
        wrench = np.concatenate([np.dot(along, force), np.dot(about, torque)])
        arm.torques = np.dot(arm.J_full.T, wrench) + self._data.qfrc_bias[self._joints]
        arm.torques += self._formulas.nullspace_torques(
            arm.mass_matrix, nullspace, arm.initial_joint, arm.joint_pos, arm.joint_vel
        )
        arm.new_update = True
        torques: NDArray[np.float64] = arm.torques
        return torques


def _span(indices: Sequence[int]) -> slice:
    """Returns an arm's joints as a slice; indexing by a list is many times slower."""
    first, last = indices[0], indices[-1]
    if list(indices) != list(range(first, last + 1)):
        raise RuntimeError(
            f"The arm's joints do not lie side by side in this model: {list(indices)}."
        )
    return slice(first, last + 1)


def _bounded(values: NDArray[Any], low: Any, high: Any) -> NDArray[Any]:
    """`np.clip` for few numbers, several times as fast."""
    return np.minimum(np.maximum(values, low), high)
