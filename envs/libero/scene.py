"""True poses, extents and speeds in a simulator, for the scripted expert and checks only."""

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from envs.libero.libero_simulator import LiberoSimulator

Vector = NDArray[np.float64]


class BoundingBox:
    """Bounding box of a body's colliding shapes, along axes turned by `yaw` about the vertical."""

    def __init__(self, simulator: LiberoSimulator, body: int, *, yaw: float = 0.0) -> None:
        """Measure the current pose; later motion is not tracked."""
        lows, highs = boxes(simulator, [body], yaw=yaw)
        low, high = lows.min(axis=0), highs.max(axis=0)
        self._to_world = _turned_axes(yaw).T
        self.size: Vector = high - low
        self.centre: Vector = self._to_world @ ((low + high) / 2)
        self.bottom, self.top = float(low[2]), float(high[2])


def boxes(
    simulator: LiberoSimulator, bodies: Sequence[int], *, yaw: float = 0.0
) -> tuple[Vector, Vector]:
    """Return lower and upper corners [N, 3] of boxes around the N colliding shapes of `bodies`."""
    model, data = simulator.model, simulator.data
    geoms = [geom for body in bodies for geom in colliding_geoms(simulator, body)]
    rotation = _turned_axes(yaw) @ data.geom_xmat[geoms].reshape(-1, 3, 3)
    centre = data.geom_xpos[geoms] @ _turned_axes(yaw).T + np.einsum(
        "nij,nj->ni", rotation, model.geom_aabb[geoms, :3]
    )
    half = np.einsum("nij,nj->ni", np.abs(rotation), model.geom_aabb[geoms, 3:])
    return centre - half, centre + half


def _turned_axes(yaw: float) -> Vector:
    """Rows are the axes turned by `yaw` about the vertical, in the world's."""
    return np.array(
        [[np.cos(yaw), np.sin(yaw), 0.0], [-np.sin(yaw), np.cos(yaw), 0.0], [0.0, 0.0, 1.0]]
    )


def colliding_geoms(simulator: LiberoSimulator, body: int) -> list[int]:
    """Geoms of a body and of the bodies attached to it."""
    model = simulator.model
    inside = [other for other in range(model.nbody) if _hangs_on(model, other, body)]
    return [
        int(geom)
        for geom in np.flatnonzero(np.isin(model.geom_bodyid, inside) & (model.geom_contype > 0))
    ]


def object_body(simulator: LiberoSimulator, name: str) -> int:
    """MuJoCo's number of an object's or fixture's root body."""
    return int(simulator.env.obj_body_id[name])


def is_region(simulator: LiberoSimulator, name: str) -> bool:
    """Whether `name` is a region of the task's definition, and not an object."""
    return name in simulator.env.object_sites_dict


def region_parent(simulator: LiberoSimulator, name: str) -> str | None:
    """The object or fixture that a region is a part of; None for a place on the table or floor."""
    parent: str | None = simulator.env.object_sites_dict[name].parent_name
    return parent


def region_half(simulator: LiberoSimulator, name: str) -> Vector:
    """Half lengths of a region along the world's axes."""
    rotation = simulator.data.site(name).xmat.reshape(3, 3)
    return np.asarray(
        np.abs(rotation)
        @ np.abs(np.asarray(simulator.env.object_sites_dict[name].size, np.float64))
    )


def level_heading(rotation: Vector) -> float:
    """Return the yaw of the first of a thing's two most level axes, from its rotation [3, 3]."""
    axis = rotation[:, int(np.argsort(np.abs(rotation[2]), kind="stable")[0])]
    return float(np.arctan2(axis[1], axis[0]))


def object_speed(simulator: LiberoSimulator) -> float:
    """Return the largest entry of the free objects' velocities, in m/s or rad/s."""
    free = simulator.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE
    entries = simulator.model.jnt_dofadr[free][:, None] + np.arange(6)
    return float(np.abs(simulator.data.qvel[entries]).max())


def gripper_pose(simulator: LiberoSimulator) -> tuple[Vector, Vector]:
    """Position [3] and rotation [3, 3] of the point between the finger tips."""
    site = simulator.robot.eef_site_id
    return simulator.data.site_xpos[site].copy(), simulator.data.site_xmat[site].reshape(
        3, 3
    ).copy()


def _hangs_on(model: Any, body: int, ancestor: int) -> bool:
    while body not in (0, ancestor):
        body = model.body_parentid[body]
    return bool(body == ancestor)


def rotation_vector(rotation: Vector) -> Vector:
    """Axis times angle [3] of a rotation matrix [3, 3]."""
    quaternion, vector = np.empty(4), np.empty(3)
    mujoco.mju_mat2Quat(quaternion, rotation.reshape(9))
    mujoco.mju_quat2Vel(vector, quaternion, 1.0)
    return vector
