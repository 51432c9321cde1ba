"""Collision avoidance of the scripted expert's hand: paths over obstacles, and free places in
regions.

The hand, its open fingers and a held thing are modelled as boxes. If an obstacle blocks the
straight path, the hand passes over it: up, across, down. An unobstructed path stays straight, and
an unobstructed region is used at its middle.
"""

from typing import NamedTuple

import numpy as np

from envs.libero.expert.grasps import HAND
from envs.libero.expert.motion import PASSED_M, Motion, move, turned
from envs.libero.libero_simulator import LiberoSimulator
from envs.libero.scene import Vector, boxes, gripper_pose, object_body, region_half

SAMPLES = 16  # points of a path, 1 to 4 cm apart; a packet is 4 cm across
# between a moving object and the obstacle below it; covers the error at a motion's end and a
# slightly tilted hand
OVER_M = 0.03
PLACES = (0.0, 0.85, -0.85)  # of a region's half length: its middle and near its edges


class HandBoxes(NamedTuple):
    """Boxes around hand and held thing, relative to the finger tips' centre, in the hand's axes."""

    low: Vector
    """Lower corners [N, 3]."""
    high: Vector
    """Upper corners [N, 3]."""


def pass_over(
    simulator: LiberoSimulator,
    to: Vector,
    rotation: Vector,
    fingers: float,
    *,
    thing: int,
    held: bool = False,
    near: float = PASSED_M,
) -> Motion:
    """Move to `to`, first up and across if the straight path meets a body other than `thing`.

    Fixtures do not count, because they do not move, and an open drawer would keep the hand from
    objects in front of it.
    """
    hand, now = gripper_pose(simulator)
    hand_boxes = around_hand(simulator, held=thing if held else None)
    others = [
        body
        for name in simulator.env.objects_dict
        if (body := object_body(simulator, name)) != thing
    ]
    top = highest_met(simulator, hand_boxes, hand, to, yaw=hand_yaw(rotation), bodies=others)
    if top is not None:
        over = max(top + OVER_M - float(hand_boxes.low[:, 2].min()), float(to[2]))
        yield from move(
            simulator, np.array([hand[0], hand[1], max(over, hand[2])]), now, fingers, near=PASSED_M
        )
        yield from move(simulator, np.array([to[0], to[1], over]), rotation, fingers, near=PASSED_M)
    yield from move(simulator, to, rotation, fingers, near=near)


def around_hand(simulator: LiberoSimulator, *, held: int | None = None) -> HandBoxes:
    """Return boxes of the hand with open fingers, and of the body `held` between them."""
    lows = [np.array([*-half, bottom]) for half, (bottom, _) in HAND]
    highs = [np.array([*half, top]) for half, (_, top) in HAND]
    if held is not None:
        hand, rotation = gripper_pose(simulator)
        yaw = hand_yaw(rotation)
        low, high = boxes(simulator, [held], yaw=yaw)
        point = turned(yaw).T @ hand
        lows.append(low.min(axis=0) - point)
        highs.append(high.max(axis=0) - point)
    return HandBoxes(np.array(lows), np.array(highs))


def highest_met(
    simulator: LiberoSimulator,
    hand_boxes: HandBoxes,
    start: Vector,
    end: Vector,
    *,
    yaw: float,
    bodies: list[int],
) -> float | None:
    """Return the height of the highest shape of `bodies` on the straight path; None if free."""
    low, high = boxes(simulator, bodies, yaw=yaw)
    points = [start + share * (end - start) for share in np.linspace(0.0, 1.0, SAMPLES)[1:]]
    met = np.any(
        [_shared(hand_boxes, turned(yaw).T @ point, low, high) > 0 for point in points], axis=0
    )
    return float(high[met, 2].max()) if met.any() else None


def free_place(
    simulator: LiberoSimulator, thing: int, target: str, parent: str, *, surface: float, yaw: float
) -> Vector:
    """Return a place [2] in a region of `parent` for the held `thing`: the middle if free."""
    centre = simulator.data.site(target).xpos[:2].copy()
    half = region_half(simulator, target)[:2]
    own = {thing, object_body(simulator, parent)}
    low, high = boxes(
        simulator, [body for body in simulator.env.obj_body_id.values() if body not in own], yaw=yaw
    )
    hand, _ = gripper_pose(simulator)
    hand_boxes = around_hand(simulator, held=thing)
    offset = np.array([*(hand - simulator.data.subtree_com[thing])[:2], -hand_boxes.low[-1, 2]])

    def shared(place: Vector) -> Vector:
        return _shared(
            hand_boxes, turned(yaw).T @ (np.array([*place, surface]) + offset), low, high
        )

    met = shared(centre) > 0
    if not met.any():
        return centre
    standing = turned(yaw)[:2, :2] @ ((low + high)[met, :2] / 2).mean(axis=0)

    def cost(place: Vector) -> tuple[float, float]:
        return round(float(shared(place).sum()) * 1e6), -float(np.linalg.norm(place - standing))

    places = [centre + half * (x, y) for x in PLACES for y in PLACES]
    return np.asarray(min(places, key=cost))


def hand_yaw(rotation: Vector) -> float:
    """Return the yaw of a downward hand's rotation [3, 3]; its first column is y at yaw 0."""
    return float(np.arctan2(-rotation[0, 0], rotation[1, 0]))


def _shared(hand_boxes: HandBoxes, point: Vector, low: Vector, high: Vector) -> Vector:
    """Shared volume [M] in m^3 of `hand_boxes` at `point` with each of M boxes, same axes."""
    from_low = np.maximum(low[:, None], hand_boxes.low + point)
    to_high = np.minimum(high[:, None], hand_boxes.high + point)
    return np.asarray(np.prod(np.clip(to_high - from_low, 0.0, None), axis=2).sum(axis=1))
