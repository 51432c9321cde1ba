"""Timing of LIBERO's observations: robosuite reads sensors before an action's last physics step.

robosuite 1.4.0 samples at the first physics step of a sensor's period of 50 ms. Reset and initial
state count as a step of 2 ms each, so that the period begins anew after the 23rd of an action's 25
steps and the sample is taken after the 24th, in every action alike. Fingers are read as they are
then. Poses, and so the images, are those that MuJoCo computed at the beginning of that step.
"""

import importlib
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

SAMPLED_STEP = 24
"""Physics step of an action, from 1, after which the sensors are read."""


class Sample(NamedTuple):
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

    def read(self, positions: NDArray[np.float64]) -> Sample:
        """Read the sensors; the simulator's poses were computed from `positions`."""
        place = self._data.site_xpos[self._site]
        quaternion = np.roll(self._data.xquat[self._hand], -1)  # to x y z w
        turn = self._transforms.quat2axisangle(quaternion)
        felt = np.concatenate([place, turn, self._data.qpos[self._fingers]]).astype(np.float32)
        return Sample(positions, felt, self._model.site_rgba.copy())
