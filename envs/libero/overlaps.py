"""Separates overlapping things in initial states on stand-ins.

Things overlap in a few of the benchmark's 6,500 states: bowl and plate of spatial tasks 0 and 2
overlap by 6 to 8 mm even with the benchmark's own shapes. Such stiff contacts then throw things off
the table at several metres per second. Stand-ins are therefore moved apart, so that every state
settles; with the benchmark's assets, states are unchanged. A thing that lies on another stays
there.
"""

from collections.abc import Collection
from typing import Any

import mujoco
import numpy as np

TOUCHING_M = 0.0001  # deeper contacts tilt a bowl against a plate, or make it fly off
GAP_M = 0.002  # room for things to fall and come to rest side by side
LEVEL = 0.7  # horizontal part of a normal above which a thing is in another's side, not on it
# share of the height between the things' bottoms: a thing that lies on another is sunk into it by
# less
SUNK = 0.5
PASSES = 50  # several, because a thing may be pushed into the next one


def part_objects(model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    """Move apart free bodies that overlap sideways with each other or a fixture; returns whether
    any moved.

    Two free bodies move apart along the line between their origins, half each. A fixture stays, and
    a body inside it leaves through the fixture's side. Afterwards positions, contacts and derived
    quantities belong to the new state; velocities are unchanged.
    """
    places = {
        int(model.jnt_bodyid[j]): int(model.jnt_qposadr[j])
        for j in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    }
    moved = False
    for _ in range(PASSES):
        mujoco.mj_fwdPosition(model, data)
        overlaps = _overlaps(model, data, places.keys())
        if not overlaps:
            break
        moved = True
        for pair, contact in overlaps.items():
            free = [body for body in pair if body in places]
            away = (
                data.xpos[pair[1], :2] - data.xpos[pair[0], :2]
                if len(free) == 2
                else contact.frame[:2]
            )
            if not away.any():
                away = np.array([1.0, 0.0])  # at the same place, so any direction works
            push = away / np.linalg.norm(away) * (GAP_M - contact.dist) / len(free)
            for body in free:
                data.qpos[places[body] : places[body] + 2] += push if body == pair[1] else -push
    return moved


def _overlaps(
    model: mujoco.MjModel, data: mujoco.MjData, free: Collection[int]
) -> dict[tuple[int, int], Any]:
    """Deepest contact of each pair of bodies to move apart."""
    deepest: dict[tuple[int, int], Any] = {}
    stacked: set[frozenset[int]] = set()
    for contact in data.contact:
        pair, level = _pair(model, contact), np.hypot(*contact.frame[:2]) > LEVEL
        both = all(body in free for body in pair)
        if both and not level and _lies_on(model, data, pair, contact):
            stacked.add(frozenset(pair))
        if (both or level) and any(body in free for body in pair) and contact.dist < -TOUCHING_M:
            deepest[pair] = min(deepest.get(pair, contact), contact, key=lambda found: found.dist)
    return {pair: contact for pair, contact in deepest.items() if frozenset(pair) not in stacked}


def _lies_on(
    model: mujoco.MjModel, data: mujoco.MjData, pair: tuple[int, int], contact: Any
) -> bool:
    """Whether one body lies on the other at this steep contact; a contact deep in a thing's side is
    also steep.
    """
    first, second = (_lowest(model, data, body) for body in pair)
    return bool(abs(first - second) * SUNK > max(-contact.dist, TOUCHING_M))


def _lowest(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> float:
    """Height in metres of the lowest point of a body with its attached bodies, from the boxes
    around its shapes.
    """
    shapes = model.body_rootid[model.geom_bodyid] == body
    upward, boxes = (
        data.geom_xmat[shapes, 6:],
        model.geom_aabb[shapes],
    )  # height gained by a step along a shape's own axes
    return float(
        np.min(
            data.geom_xpos[shapes, 2]
            + np.sum(upward * boxes[:, :3] - np.abs(upward) * boxes[:, 3:], axis=1)
        )
    )


def _pair(model: mujoco.MjModel, contact: Any) -> tuple[int, int]:
    """The bodies of a contact, with their attached bodies; its normal points from the first to the
    second.
    """
    first, second = (
        int(model.body_rootid[model.geom_bodyid[geom]]) for geom in (contact.geom1, contact.geom2)
    )
    return first, second
