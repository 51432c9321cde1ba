"""One action of LIBERO's arm: robosuite's operational-space controller, run for the physics steps
of an action without what repeats itself.

robosuite 1.4.0 computes the whole dynamics three times a physics step: before the controller is
asked, again when the controller looks at the arm, and in the step itself. Positions and velocities
are the same each time; only the constraint solver goes on from its last answer, and torques enter
at the end. So positions and velocities are computed once here, and the solver is run as often as
there. Names are looked up and matrices made once a simulator, and what robosuite records for
observables that nobody reads is left out. Matrices and torques come from robosuite's own compiled
functions, on the same numbers in the same order in memory: positions are equal to the last bit (a
test).
"""

import importlib
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

POSE = 6  # numbers of an action that move the hand; the seventh moves the fingers


class ArmControl:
    """Turns an action into torques, physics step by physics step."""

    def __init__(self, robot: Any, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Look up what is fixed in a model.

        Args:
            robot: robosuite's single arm with its controller and gripper, whose memory stays
                theirs.
            model: The model of the same simulator.
            data: Its state.

        Raises:
            RuntimeError: The controller is not the one that LIBERO asks for.
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
        self._model, self._data, self._controller, self._gripper = (
            model,
            data,
            controller,
            robot.gripper,
        )
        self._formulas: Any = importlib.import_module("robosuite.utils.control_utils")
        self._joints, self._positions = _span(controller.qvel_index), _span(controller.qpos_index)
        self._stiffness, self._damping = controller.kp, controller.kd  # of "fixed" impedance
        self._motors = np.asarray(robot._ref_joint_actuator_indexes)
        self._lowest, self._highest = robot.torque_limits
        self._finger_motors = np.asarray(
            [model.actuator(name).id for name in robot.gripper.actuators]
        )
        low, high = model.actuator_ctrlrange[self._finger_motors].T
        self._finger_middle, self._finger_half = 0.5 * (high + low), 0.5 * (high - low)
        self._site = int(robot.eef_site_id)
        self._hand_position, self._hand_rotation = (
            data.site_xpos[self._site],
            data.site_xmat[self._site].reshape(3, 3),
        )
        self._moves, self._turns = np.empty((3, model.nv)), np.empty((3, model.nv))
        self._masses = np.empty((model.nv, model.nv))
        self._goal: NDArray[Any] | None = None  # of an action that was not begun yet
        self._closing = np.zeros(2)
        # In the order of columns that robosuite's indexing gives them: products of matrices round
        # as their order in memory has it.
        joints = len(controller.qvel_index)
        self._matrices = [np.empty((rows, joints), order="F") for rows in (3, 3, 6, joints)]

    def command(self, action: NDArray[Any]) -> None:
        """Take up an action [7]: a motion from the hand's place at the next physics step, and
        fingers.
        """
        self._goal = action[:POSE]
        # As the gripper's `format_action`.
        self._closing = np.array([-1.0, 1.0]) * self._gripper.speed * np.sign(action[POSE:])

    def run(self, physics_steps: int) -> None:
        """Follow the action for some physics steps.

        Raises:
            LinAlgError: The state is not finite.
        """
        model, data, controller, gripper = self._model, self._data, self._controller, self._gripper
        for _ in range(physics_steps):
            mujoco.mj_step1(model, data)  # positions and velocities
            self._solve()
            # not in the first step after a reset: the controller then has the arm's home pose in
            # mind
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
            mujoco.mj_step2(model, data)  # torques, accelerations, and on

    def _solve(self) -> None:
        """One pass of the constraint solver from where the last one ended, with the torques of the
        last physics step.
        """
        mujoco.mj_forwardSkip(
            self._model, self._data, mujoco.mjtStage.mjSTAGE_VEL, 1
        )  # 1: no sensors

    def _look(self) -> None:
        """robosuite's `Controller.update`, from a state whose dynamics are there."""
        model, data, controller, joints = self._model, self._data, self._controller, self._joints
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
        """Torques [7] towards the controller's goal: its `run_controller` without interpolation
        (Khatib, 1987).
        """
        arm, stiffness, damping = self._controller, self._stiffness, self._damping
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
    """The joints of an arm as a slice; a list of numbers costs many times as much."""
    first, last = indices[0], indices[-1]
    if list(indices) != list(range(first, last + 1)):
        raise RuntimeError(
            f"The arm's joints do not lie side by side in this model: {list(indices)}."
        )
    return slice(first, last + 1)


def _bounded(values: NDArray[Any], low: Any, high: Any) -> NDArray[Any]:
    """`np.clip`, which takes several times as long on seven numbers."""
    return np.minimum(np.maximum(values, low), high)
