"""Initial states that begin with one thing inside another, on stand-ins.

A few of the benchmark's 6,500 states do: bowl and plate of spatial tasks 0 and 2 overlap by 6 to 8 mm with the benchmark's own shapes too.
Contacts as stiff as theirs then throw things off the table at metres a second. Stand-ins are put beside one another instead, so that
every state settles; with the benchmark's assets a state is what its file says.
"""

from typing import Any

import mujoco
import numpy as np

TOUCHING_M = 0.0001  # what is deeper makes a bowl stand tilted against a plate, or flies off
GAP_M = 0.002  # room to fall and come to rest beside one another
LEVEL = 0.7  # level part of a normal above which a thing stands in a fixture's side, and not on it
PASSES = 50  # of pushing; what stands close may be pushed into the next one


def part_objects(model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    """Move free bodies that overlap with one another or stand in a fixture's side apart, level; returns whether any was moved.

    Two free bodies give way along the line between their origins, half each; a fixture stays, and what stands in it leaves by its side.
    Positions, contacts and what follows from positions are those of the new state afterwards; velocities stay.
    """
    places = {int(model.jnt_bodyid[j]): int(model.jnt_qposadr[j]) for j in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)}
    moved = False
    for _ in range(PASSES):
        mujoco.mj_fwdPosition(model, data)
        deepest: dict[tuple[int, int], Any] = {}
        for contact in data.contact:
            pair = _pair(model, contact)
            level = all(body in places for body in pair) or np.hypot(*contact.frame[:2]) > LEVEL
            if level and any(body in places for body in pair) and contact.dist < -TOUCHING_M:
                deepest[pair] = min(deepest.get(pair, contact), contact, key=lambda found: found.dist)
        if not deepest:
            break
        moved = True
        for pair, contact in deepest.items():
            free = [body for body in pair if body in places]
            away = data.xpos[pair[1], :2] - data.xpos[pair[0], :2] if len(free) == 2 else contact.frame[:2]
            push = away / np.linalg.norm(away) * (GAP_M - contact.dist) / len(free)
            for body in free:
                data.qpos[places[body] : places[body] + 2] += push if body == pair[1] else -push
    return moved


def _pair(model: mujoco.MjModel, contact: Any) -> tuple[int, int]:
    """The bodies of a contact, with all that hangs on them; its normal points from the first to the second."""
    first, second = (int(model.body_rootid[model.geom_bodyid[geom]]) for geom in (contact.geom1, contact.geom2))
    return first, second
