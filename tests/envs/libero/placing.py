"""Reaches a LIBERO task's goal directly: places objects, and sets doors and knobs, as the
predicates require.

Nothing here knows what a predicate computes: an object is set down in or on its target in the ways
that a person would try, one after the other, and the benchmark's own predicate is asked once
everything has come to rest.
"""

import itertools

import mujoco
import numpy as np

from envs.libero.expert.script import in_order
from envs.libero.libero_simulator import WAIT
from envs.libero.scene import level_heading, object_speed

REST_STEPS = 12  # control steps, 0.6 s
CLEARANCE_M = 0.003
JOINT_VALUES = {
    ("wooden_cabinet", "open"): -0.155,
    ("wooden_cabinet", "close"): 0.008,
    ("white_cabinet", "open"): -0.155,
    ("white_cabinet", "close"): 0.008,
    ("microwave", "open"): -1.8,
    ("microwave", "close"): 0.0,
    ("flat_stove", "turnon"): 1.0,
    ("flat_stove", "turnoff"): -0.004,
}
YAWS = np.radians([0, 90, 180, 270, 45])  # against the target
UPRIGHT, ON_ITS_SIDE, ON_ITS_BACK = (
    [1, 0, 0, 0],
    [np.sqrt(0.5), 0, np.sqrt(0.5), 0],
    [np.sqrt(0.5), np.sqrt(0.5), 0, 0],
)
POSES = (UPRIGHT, ON_ITS_SIDE, ON_ITS_BACK)
SIDES = [(0.045, 0.0), (-0.045, 0.0), (0.0, 0.045), (0.0, -0.045)]  # for two things on one target
SHIFTS = [
    (0.0, 0.0),
    (0.0, -0.03),
    (0.0, 0.03),
    (-0.03, 0.0),
    (0.03, 0.0),
    (0.0, -0.06),
    (0.0, 0.06),
    (-0.06, 0.0),
    (0.06, 0.0),
]


def fulfil_goal(simulator) -> bool:
    """Whether the goal can be put into effect in the simulator, which must be in a settled start."""
    goal = simulator.env.parsed_problem["goal_state"]
    for predicate in goal:
        if len(predicate) == 2:
            _set_joint(simulator, *predicate)
    parts = {name: region.parent_name for name, region in simulator.env.object_sites_dict.items()}
    placed = in_order([predicate for predicate in goal if len(predicate) == 3], parts)
    wanted = {name for _, name in (predicate for predicate in goal if len(predicate) == 2)}
    for target in {target for _, _, target in placed} - wanted:
        _open_around(simulator, target)
    return _place_all(simulator, placed) and simulator.success


def rest(simulator, steps=REST_STEPS) -> float:
    """Let everything come to rest; returns the largest speed of a free object afterwards, metres or
    radians a second.
    """
    for _ in range(steps):
        simulator._advance(WAIT)
    return object_speed(simulator)


def _set_joint(simulator, verb, name):
    env = simulator.env
    fixture = next(fixture for fixture in env.fixtures_dict if name.startswith(fixture))
    value = JOINT_VALUES[env.fixtures_dict[fixture].category_name, verb]
    joints = (
        env.object_sites_dict[name].joints
        if name in env.object_sites_dict
        else env.fixtures_dict[name].joints
    )
    for joint in joints:
        simulator.data.joint(joint).qpos[0] = value
    mujoco.mj_forward(simulator.model, simulator.data)


def _open_around(simulator, target):
    """Open the drawer that a target lies in, where it lies in one that the goal leaves free: things
    fall into it from above.
    """
    region = simulator.env.object_sites_dict.get(target)
    if region is not None and region.joints and "cabinet" in target:
        _set_joint(simulator, "open", target)


def _place_all(simulator, predicates) -> bool:
    """Place the objects of `predicates` one after the other; each must stay where it belongs."""
    targets = [target for _, _, target in predicates]
    for predicate in predicates:
        before = simulator._snapshot()
        shifts = [*SIDES, *SHIFTS] if targets.count(predicate[2]) > 1 else SHIFTS
        for yaw, pose, shift in itertools.product(YAWS, POSES, shifts):
            simulator._restore(before)
            if _place(simulator, predicate, yaw=yaw, pose=pose, shift=shift):
                break
        else:
            return False
    return True


def _place(simulator, predicate, *, yaw, pose, shift) -> bool:
    env, model, data = simulator.env, simulator.model, simulator.data
    _, name, target = predicate
    joint = data.joint(env.objects_dict[name].joints[-1])
    centre, top = _target(simulator, target)
    # Along the world's axes first, whichever way it stood; then on its side; then along the
    # target's axes.
    quaternion = joint.qpos[3:].copy()
    for turn in (
        _about_z(-level_heading(data.xmat[env.obj_body_id[name]].reshape(3, 3))),
        pose,
        _about_z(_target_heading(simulator, target) + yaw),
    ):
        mujoco.mju_mulQuat(quaternion, np.asarray(turn, np.float64), quaternion.copy())
    joint.qpos[:3], joint.qpos[3:], joint.qvel[:] = (0.0, 0.0, 50.0), quaternion, 0.0
    mujoco.mj_forward(model, data)
    low, high = _extent(simulator, env.obj_body_id[name])
    middle = data.subtree_com[env.obj_body_id[name]]  # of mass: a cup's axis and not its handle's
    at = centre[:2] + shift
    surface = _surface(simulator, at, (high - low)[:2] / 2, top)
    if surface is None:
        return False
    joint.qpos[:3] = [at[0] - middle[0], at[1] - middle[1], 50.0 + surface - low[2] + CLEARANCE_M]
    mujoco.mj_forward(model, data)
    rest(simulator)
    return bool(env._eval_predicate(predicate))


def _target(simulator, name):
    """Centre of an object or region, and the height from which to look down for a surface."""
    env, data = simulator.env, simulator.data
    if name in env.object_sites_dict:
        half = np.abs(data.site(name).xmat.reshape(3, 3) @ env.object_sites_dict[name].size)
        # A region on top of something is flat: look from above it. A hollow one may reach into what
        # lies over it, as a microwave's does.
        return data.site(name).xpos.copy(), data.site(name).xpos[2] + max(
            0.75 * half[2], 0.06 if half[2] < 0.02 else 0.0
        )
    low, high = _extent(simulator, env.obj_body_id[name])
    return (low + high) / 2, high[2] + 0.01


def _target_heading(simulator, name):
    env, data = simulator.env, simulator.data
    rotation = (
        data.site(name).xmat if name in env.object_sites_dict else data.xmat[env.obj_body_id[name]]
    )
    return level_heading(rotation.reshape(3, 3))


def _about_z(angle):
    return np.array([np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)])


def _extent(simulator, body):
    """Corners of the box around a body's colliding geoms."""
    model, data = simulator.model, simulator.data
    bodies = [other for other in range(model.nbody) if _below(model, other, body)]
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for geom in np.flatnonzero(np.isin(model.geom_bodyid, bodies) & (model.geom_contype > 0)):
        turned = data.geom_xmat[geom].reshape(3, 3)
        centre = data.geom_xpos[geom] + turned @ model.geom_aabb[geom, :3]
        half = np.abs(turned) @ model.geom_aabb[geom, 3:]
        low, high = np.minimum(low, centre - half), np.maximum(high, centre + half)
    return low, high


def _below(model, body, ancestor):
    while body not in (0, ancestor):
        body = model.body_parentid[body]
    return body == ancestor


def _surface(simulator, at, half, top):
    """Height of what lies below a rectangle around `at`, seen from height `top`; None where there
    is nothing.
    """
    model, data, geom, heights = simulator.model, simulator.data, np.zeros(1, np.int32), []
    groups = np.array([0, 0, 0, 0, 0, 1], np.uint8)  # colliding geoms only
    for dx, dy in itertools.product((-0.6, 0.0, 0.6), repeat=2):
        start = np.array([at[0] + dx * half[0], at[1] + dy * half[1], top])
        distance = mujoco.mj_ray(
            model, data, start, np.array([0.0, 0.0, -1.0]), groups, 1, -1, geom
        )
        if distance > 0:
            heights.append(top - distance)
    return max(heights, default=None)
