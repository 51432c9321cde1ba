"""Inserts an object with a handle below a roof: into a microwave or a shelf's compartment.

The hand points down and does not fit below a roof. It holds the object by its handle, turns the
handle to the open side, moves in horizontally, stops before the roof, releases, and pushes with its
finger tips. An object without a handle cannot be inserted this way.
"""

from typing import NamedTuple

import mujoco
import numpy as np

from envs.libero.expert.grasps import PALM_HALF_M, Grasp, by_handle
from envs.libero.expert.motion import (
    CLOSED,
    OPEN,
    PASSED_M,
    Motion,
    hold,
    move,
    pointing_down,
    turned,
)
from envs.libero.expert.skills import (
    APPROACH_M,
    DROP_M,
    PUSH_LIMIT,
    RELEASE_STEPS,
    SKIM_M,
    above,
    retreat,
    take,
)
from envs.libero.libero_simulator import UNSEEN_GROUP, LiberoSimulator
from envs.libero.scene import (
    BoundingBox,
    Vector,
    boxes,
    gripper_pose,
    is_region,
    object_body,
    region_parent,
)

# Between the palm and the roof's edge; a larger gap leaves a mug outside of a microwave's region.
MARGIN_M = 0.004
SAME_LEVEL_M = 0.01
BACK_M = 0.05  # from the handle, before the fingers are closed
CLEAR_M = 0.03  # between the thing and the roof's edge when it is lowered in front of it


class Cave(NamedTuple):
    """A region under a roof."""

    outwards: Vector
    """Level direction [3] to its open side."""
    middle: Vector
    """Point [3] half way between its left and right walls, at the region's own depth and height.
    """
    edge: float
    """Place of the roof's edge along `outwards`."""
    floor: float
    """Height of the surface below `middle`."""


def cave(simulator: LiberoSimulator, target: str) -> Cave | None:
    """The region `target` as a cave; None if it is open at its top, or closed all around."""
    parent = region_parent(simulator, target) if is_region(simulator, target) else None
    if parent is None:
        return None
    body = object_body(simulator, parent)
    rotation = simulator.data.xmat[body].reshape(3, 3)
    # columns: the fixture's axes in the world's
    axes = turned(float(np.arctan2(rotation[1, 0], rotation[0, 0])))
    lows, highs = boxes(simulator, [body], yaw=float(np.arctan2(axes[1, 0], axes[0, 0])))
    centre = axes.T @ simulator.data.site(target).xpos
    over = np.all((lows[:, :2] < centre[:2]) & (centre[:2] < highs[:, :2]), axis=1) & (
        lows[:, 2] > centre[2]
    )
    free = [
        (axis, sign)
        for axis in (0, 1)
        for sign in (1.0, -1.0)
        if not len(_walls(lows, highs, centre, axis, sign))
    ]
    if not over.any() or not free:
        return None
    axis, sign = free[0]
    sides = [_walls(lows, highs, centre, 1 - axis, side) for side in (-1.0, 1.0)]
    if all(len(walls) for walls in sides):
        centre[1 - axis] = (sides[0].max() + sides[1].min()) / 2
    edge = (highs if sign > 0 else -lows)[over, axis].max()
    middle = axes @ centre
    return Cave(axes[:, axis] * sign, middle, float(edge), _floor(simulator, middle))


def insert(simulator: LiberoSimulator, name: str, place: Cave) -> Motion:
    """Move a thing by its handle under the roof; does nothing without a handle."""
    body = object_body(simulator, name)
    held = by_handle(simulator, body)
    if held is None:
        return
    turn = float(np.arctan2(np.cross(held.away, place.outwards)[2], held.away @ place.outwards))
    # the same to the fingers
    starts = [held.grasp.yaw + half_turns * np.pi for half_turns in (-1, 0, 1)]
    # the rotation that keeps the wrist near the middle of its range
    yaw = min(starts, key=lambda start: max(abs(start), abs(start + turn)))
    yield from take(simulator, Grasp(held.grasp.point, yaw), body)
    stop = place.middle + place.outwards * (
        place.edge + PALM_HALF_M + MARGIN_M - place.middle @ place.outwards
    )
    before = stop + place.outwards * (held.depth + CLEAR_M)
    rotation, resting = pointing_down(yaw + turn), BoundingBox(simulator, body).bottom
    if abs(place.floor - resting) < SAME_LEVEL_M:
        # dragged over the table: a heavy thing tilts down from its handle when it is lifted
        for point in (before, stop):
            yield from move(
                simulator, np.array([*point[:2], held.grasp.point[2] + SKIM_M]), rotation, CLOSED
            )
    else:
        yield from _carry(
            simulator, body, before, stop, resting=resting, floor=place.floor, rotation=rotation
        )
    yield from hold(OPEN, RELEASE_STEPS)
    yield from _push(simulator, stop, place.outwards)


def _carry(
    simulator: LiberoSimulator,
    body: int,
    before: Vector,
    stop: Vector,
    *,
    resting: float,
    floor: float,
    rotation: Vector,
) -> Motion:
    """Lift the held thing, turn it in front of the roof, and move it in at floor height."""
    carried = max(floor, resting) + APPROACH_M
    hand, now = gripper_pose(simulator)
    yield from move(simulator, above(hand, carried - resting), now, CLOSED, near=PASSED_M)
    for point, bottom in ((before, carried), (before, floor + DROP_M), (stop, floor + DROP_M)):
        hand, _ = gripper_pose(simulator)
        height = bottom + float(hand[2]) - BoundingBox(simulator, body).bottom
        yield from move(simulator, np.array([*point[:2], height]), rotation, CLOSED)


def _push(simulator: LiberoSimulator, stop: Vector, outwards: Vector) -> Motion:
    """Push the released thing further in with the finger tips, then leave."""
    hand, rotation = gripper_pose(simulator)
    yield from move(simulator, hand + BACK_M * outwards, rotation, OPEN, near=PASSED_M)
    yield from hold(CLOSED, RELEASE_STEPS)
    yield from move(simulator, np.array([*stop[:2], hand[2]]), rotation, CLOSED, limit=PUSH_LIMIT)
    yield from retreat(simulator, away=outwards)


def _walls(lows: Vector, highs: Vector, centre: Vector, axis: int, sign: float) -> Vector:
    """Near faces, along `axis`, of the boxes that a ray from `centre` in direction `sign` meets."""
    others = [other for other in range(3) if other != axis]
    met = np.all((lows[:, others] < centre[others]) & (centre[others] < highs[:, others]), axis=1)
    near = (lows if sign > 0 else highs)[:, axis]
    return near[met & (sign * (near - centre[axis]) > 0)]


def _floor(simulator: LiberoSimulator, point: Vector) -> float:
    groups = np.zeros(mujoco.mjNGROUP, np.uint8)
    groups[UNSEEN_GROUP] = 1  # what collides
    geom = np.zeros(1, np.int32)
    return float(
        point[2]
        - mujoco.mj_ray(
            simulator.model, simulator.data, point, np.array([0.0, 0.0, -1.0]), groups, 1, -1, geom
        )
    )
