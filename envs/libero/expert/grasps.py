"""Grasps of the scripted expert: all top grasps that a thing's shape allows, least obstructed
first.

A thing that fits between the fingers is held across, a vessel at its rim, others by their handle.
The hand and the open fingers are two boxes; a grasp's obstruction is the volume that they share
with other things.
"""

from typing import NamedTuple

import numpy as np

from envs.libero.expert.motion import nearest_yaw, turned
from envs.libero.libero_simulator import LiberoSimulator
from envs.libero.scene import BoundingBox, Vector, boxes, colliding_geoms, level_heading

MOUTH_M = 0.072  # largest width of a thing held across: the fingers open to 8 cm
# Distance from the top at which a tall thing is held: the palm is 5 cm above the finger tips.
FINGER_DEPTH_M = 0.035
TIP_M = 0.012  # the tips reach this far below the point between them
FLAT_M = 0.05  # lower things are held at half their height
RIM_DEPTH_M = 0.012  # depth of the fingers below a rim
WALL_M = 0.002  # half of a vessel's wall
# between the hand and an object that it must not touch: a motion ends this close to its target
SLACK_M = 0.006
HANDLE_SHARE = 1.5  # the sides of the narrowest mug are twice as wide as its handle
SHIFTS = (0.0, 0.5, -0.5, 0.25, -0.25)  # shares of half the length of a thing held across
# Half sizes of the open hand, across and along the closing fingers, and its heights above the point
# between the tips: measured on Panda.
HAND = (
    (np.array([0.012, 0.055]), (-TIP_M, 0.05)),  # fingers
    (np.array([0.035, 0.105]), (0.045, 0.16)),  # palm
)
FINGER_HALF_M, PALM_HALF_M = (
    float(HAND[0][0][0]),
    float(HAND[1][0][0]),
)  # across the closing fingers
# Clearance below a palm over a thing; with less, its edge touched a mug's rim.
PALM_OVER_M = 0.03


class Grasp(NamedTuple):
    """Position between the finger tips, and the hand's yaw; at 0 they close along y."""

    point: Vector
    yaw: float


class Hold(NamedTuple):
    """A grasp across a handle."""

    grasp: Grasp
    away: Vector
    """Level direction [3] from the thing to the hand."""
    depth: float
    """Extent of the object from the hand in the other direction."""


def grasps(simulator: LiberoSimulator, body: int) -> list[Grasp]:
    """Return a thing's grasps, least obstructed first, then the central and least turned."""
    candidates = _across(simulator, body) or (
        _rim(simulator, body) if _hollow(simulator, body) else _handle(simulator, body)
    )
    around = [other for other in simulator.env.obj_body_id.values() if other != body]
    # sorted keeps the order of equals
    return sorted(candidates, key=lambda grasp: round(obstruction(simulator, grasp, around) * 1e6))


def by_handle(simulator: LiberoSimulator, body: int) -> Hold | None:
    """Return a grasp across a thing's handle, close to the thing; None without a handle."""
    middle = simulator.data.subtree_com[body]
    geoms = colliding_geoms(simulator, body)
    offsets = simulator.data.geom_xpos[geoms][:, :2] - middle[:2]
    furthest = int(np.argmax(np.linalg.norm(offsets, axis=1)))
    yaw = float(np.arctan2(offsets[furthest, 1], offsets[furthest, 0]))
    lows, highs = boxes(simulator, [body], yaw=yaw)
    low, high = lows[furthest], highs[furthest]
    width = highs[:, 1] - lows[:, 1]
    wider = width > HANDLE_SHARE * width[furthest]  # equally narrow parts belong to the handle
    free_from = float(highs[wider, 0].max(initial=-np.inf)) + FINGER_HALF_M + SLACK_M
    if width[furthest] > MOUTH_M or free_from > high[0]:
        return None
    along = max(free_from, min(low[0] + FINGER_HALF_M, (low[0] + high[0]) / 2))
    height = max((low[2] + high[2]) / 2, highs[:, 2].max() - PALM_OVER_M, lows[:, 2].min() + TIP_M)
    point = turned(yaw) @ np.array([along, (low[1] + high[1]) / 2, height])
    return Hold(
        Grasp(point, nearest_yaw(yaw)),
        np.array([np.cos(yaw), np.sin(yaw), 0.0]),
        along - float(lows[:, 0].min()),
    )


def obstruction(simulator: LiberoSimulator, grasp: Grasp, bodies: list[int]) -> float:
    """Return the volume in m^3 that the open hand shares with boxes around `bodies`."""
    low, high = boxes(simulator, bodies, yaw=grasp.yaw)
    point = turned(grasp.yaw).T @ grasp.point
    volume = 0.0
    for half, (bottom, top) in HAND:
        from_low = np.maximum(low, [*(point[:2] - half), point[2] + bottom])
        to_high = np.minimum(high, [*(point[:2] + half), point[2] + top])
        volume += float(np.prod(np.clip(to_high - from_low, 0.0, None), axis=1).sum())
    return volume


def _across(simulator: LiberoSimulator, body: int) -> list[Grasp]:
    heading = level_heading(simulator.data.xmat[body].reshape(3, 3))
    extent = BoundingBox(simulator, body, yaw=heading)
    middle = (extent.bottom + extent.top) / 2 if extent.size[2] < FLAT_M else 0.0
    height = max(extent.top - FINGER_DEPTH_M, extent.bottom + TIP_M, middle)
    found = []
    for narrow in np.argsort(extent.size[:2], kind="stable"):
        if extent.size[narrow] > MOUTH_M:
            continue
        long = 1 - int(narrow)
        along = turned(heading)[:2, long] * max(0.0, extent.size[long] / 2 - TIP_M)
        yaw = nearest_yaw(heading + (np.pi / 2 if narrow == 0 else 0.0))
        found += [
            Grasp(np.array([*(extent.centre[:2] + shift * along), height]), yaw) for shift in SHIFTS
        ]
    return found


def _rim(simulator: LiberoSimulator, body: int) -> list[Grasp]:
    """Grasps at a vessel's rim: first at the side towards the middle of the table, where the arm
    reaches best, then at other sides.
    """
    extent, axis = BoundingBox(simulator, body), simulator.data.subtree_com[body][:2]
    radius = min(extent.size[0], extent.size[1]) / 2 - WALL_M
    height = max(extent.top - RIM_DEPTH_M, extent.bottom + TIP_M)
    near = -1.0 if axis[1] > 0 else 1.0
    sides = [
        ((0.0, near), 0.0),
        ((0.0, -near), 0.0),
        ((-1.0, 0.0), np.pi / 2),
        ((1.0, 0.0), np.pi / 2),
    ]
    return [
        Grasp(np.array([axis[0] + x * radius, axis[1] + y * radius, height]), yaw)
        for (x, y), yaw in sides
    ]


def _hollow(simulator: LiberoSimulator, body: int) -> bool:
    """Whether a thing is lower at its middle than at its rim."""
    middle = simulator.data.subtree_com[body][:2]
    lows, highs = boxes(simulator, [body])
    over = np.all((lows[:, :2] < middle) & (middle < highs[:, :2]), axis=1)
    return bool(highs[over, 2].max(initial=-np.inf) < highs[:, 2].max() - RIM_DEPTH_M)


def _handle(simulator: LiberoSimulator, body: int) -> list[Grasp]:
    held = by_handle(simulator, body)
    return _rim(simulator, body) if held is None else [held.grasp]
