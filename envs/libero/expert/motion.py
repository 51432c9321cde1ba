"""Motions of the scripted expert: a servo from true poses to the benchmark's actions.

A motion is a generator of actions: it reads the simulator before each action, and ends at its
target or after a number of steps. Left out: goals.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from envs.libero.libero_simulator import LiberoSimulator
from envs.libero.scene import Vector, gripper_pose, rotation_vector

Action = NDArray[np.float32]
Motion = Iterator[Action]

OPEN, CLOSED = -1.0, 1.0
# full actions per metre: a full action at 2 cm, and still a tenth at 2 mm, where friction would
# stop a weaker one
POSITION_GAIN = 50.0
# steps: the controller alone is damped for a gain of 20; at 50 the hand overshot its target by a
# centimetre
LOOK_AHEAD = 1.0
ROTATION_GAIN = 4.0  # a radian
REACHED_M = 0.006
PASSED_M = 0.02
REACHED_RAD = 0.15  # with action noise, a tighter tolerance is never reached
MOVE_LIMIT = 60  # steps of one motion
GRIP_LIMIT = 20
STILL_STEPS = 3
STILL_M = 0.0005
# of the point between the tips; the fingers close along y
DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])


def pointing_down(yaw: float) -> Vector:
    """Return the hand's rotation [3, 3], fingers down, closing along y turned by `yaw`."""
    return turned(yaw) @ DOWN


def leaning(opening: Vector, angle: float) -> Vector:
    """Return the hand's rotation [3, 3], fingers down, tilted by `angle` against `opening`."""
    forwards = np.array([0.0, 0.0, -np.cos(angle)]) - np.sin(angle) * opening
    across = np.cross([0.0, 0.0, 1.0], opening)
    return np.column_stack([across, np.cross(forwards, across), forwards])


def turned(yaw: float) -> Vector:
    """The rotation [3, 3] by `yaw` about the vertical."""
    cosine, sine = np.cos(yaw), np.sin(yaw)
    return np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])


def nearest_yaw(yaw: float) -> float:
    """Return the equivalent yaw of the fingers within a quarter turn."""
    return float((yaw + np.pi / 2) % np.pi - np.pi / 2)


def nearest_roll(simulator: LiberoSimulator, rotation: Vector) -> Vector:
    """`rotation` or the one with the two fingers exchanged, whichever turns the hand less."""
    _, now = gripper_pose(simulator)
    choices = (rotation, rotation @ np.diag([-1.0, -1.0, 1.0]))
    return min(choices, key=lambda choice: float(np.linalg.norm(rotation_vector(choice @ now.T))))


def move(
    simulator: LiberoSimulator,
    position: Vector,
    rotation: Vector,
    fingers: float,
    *,
    near: float = REACHED_M,
    limit: int = MOVE_LIMIT,
) -> Motion:
    """Move the finger tips' centre to within `near` metres of `position`, hand at `rotation`."""
    before, _ = gripper_pose(simulator)
    for _ in range(limit):
        hand, now = gripper_pose(simulator)
        way, turn = position - hand, rotation_vector(rotation @ now.T)
        if np.linalg.norm(way) < near and (np.linalg.norm(turn) < REACHED_RAD or near > REACHED_M):
            return
        yield action(
            (way - LOOK_AHEAD * (hand - before)) * POSITION_GAIN, turn * ROTATION_GAIN, fingers
        )
        before = hand


def hold(fingers: float, steps: int) -> Motion:
    """Stay, and open or close the fingers."""
    for _ in range(steps):
        yield action(np.zeros(3), np.zeros(3), fingers)


def grip(simulator: LiberoSimulator) -> Motion:
    """Close the fingers until they stop: a bottle takes 5 steps, a bowl's wall 12."""
    still, before = 0, np.inf
    for _ in range(GRIP_LIMIT):
        yield action(np.zeros(3), np.zeros(3), CLOSED)
        between = float(np.ptp(simulator.proprioception[6:]))
        still = still + 1 if before - between < STILL_M else 0
        if still == STILL_STEPS:
            return
        before = between


def action(motion: Vector, turn: Vector, fingers: float) -> Action:
    """Return the benchmark's action [7]; a motion beyond one action is scaled down."""
    motion = motion / max(1.0, float(np.abs(motion).max()))
    return np.concatenate([motion, np.clip(turn, -1.0, 1.0), [fingers]]).astype(np.float32)
