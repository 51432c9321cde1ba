"""Initial states that begin with one thing inside another, on stand-ins.

A few of the benchmark's 6,500 states do: bowl and plate of spatial tasks 0 and 2 overlap by 6 to 8 mm with the benchmark's own shapes too.
Contacts as stiff as theirs then throw things off the table at metres a second. Stand-ins are put beside one another instead, so that
every state settles; with the benchmark's assets a state is what its file says.
"""

import mujoco
import numpy as np

TOUCHING_M = 0.001  # contacts that are no deeper push things apart gently enough to settle
GAP_M = 0.0005  # what is moved is moved this much too far, or rounding would ask for another pass
PASSES = 50  # of pushing; what stands close may be pushed into the next one


def part_objects(model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    """Move free bodies that overlap apart, level, along the line between their origins; returns whether any was moved.

    Positions, contacts and what follows from positions are those of the new state afterwards; velocities stay.
    """
    addresses = {int(model.jnt_bodyid[j]): int(model.jnt_qposadr[j]) for j in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)}
    moved = False
    for _ in range(PASSES):
        mujoco.mj_fwdPosition(model, data)
        depths: dict[tuple[int, int], float] = {}
        for contact in data.contact:
            first, second = sorted(int(model.body_rootid[model.geom_bodyid[geom]]) for geom in (contact.geom1, contact.geom2))
            if first != second and first in addresses and second in addresses:
                depths[first, second] = max(depths.get((first, second), 0.0), -contact.dist)
        deep = {pair: depth for pair, depth in depths.items() if depth > TOUCHING_M}
        if not deep:
            break
        moved = True
        for (first, second), depth in deep.items():
            apart = data.xpos[second, :2] - data.xpos[first, :2]
            push = apart / np.linalg.norm(apart) * (depth + GAP_M) / 2
            data.qpos[addresses[first] : addresses[first] + 2] -= push
            data.qpos[addresses[second] : addresses[second] + 2] += push
    return moved
