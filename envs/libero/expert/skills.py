"""Skills of the scripted expert: place or slide things, open and close parts, turn knobs.

Each skill is a generator of actions that plans from the true state when it begins. A skill that
fails ends like one that succeeds; the expert looks at the goal's predicates and tries again.
"""

from typing import NamedTuple

import mujoco
import numpy as np

from envs.libero.expert.clearance import free_place, pass_over
from envs.libero.expert.grasps import MOUTH_M, TIP_M, Grasp, grasps
from envs.libero.expert.motion import (
    CLOSED,
    OPEN,
    PASSED_M,
    Motion,
    grip,
    hold,
    leaning,
    move,
    nearest_roll,
    nearest_yaw,
    pointing_down,
)
from envs.libero.libero_simulator import LiberoSimulator
from envs.libero.scene import (
    BoundingBox,
    Vector,
    boxes,
    colliding_geoms,
    gripper_pose,
    is_region,
    level_heading,
    object_body,
    region_half,
    region_parent,
)

RELEASE_STEPS = 6
APPROACH_M = 0.10
CARRY_M = 0.12
DROP_M = 0.012
NEAR_M = 0.01  # above a thing, before the fingers go down beside it
LIFTED_M = 0.02  # a thing that has not risen by this much is not in the hand
FLAT_REGION_M = 0.01
THIN_M = 0.025  # a lower wide thing slips from the fingers when it is lifted at its rim
SKIM_M = 0.002  # height of the finger tips over the table while a thing is dragged
FIST_M = 0.015  # half the thickness of the closed fingers
# tilt of the hand that pushes a drawer: an upright palm would hit the handles above
LEAN_RAD = np.pi / 6
# distance of a push's target beyond the end, because the controller yields before a drawer with
# friction
PUSH_M = 0.02
PUSH_LIMIT = 25  # steps at the end of a push: a part that is shut by then stays shut
OPENED = 0.97  # share of the way to the open end at which a pull may stop
TURNED_RAD = 1.0  # a knob is turned on by this much; the benchmark asks for 0.5
STRIDE_M = 0.03  # distance between two waypoints of a handle


class MovingPart(NamedTuple):
    """A drawer, door or knob."""

    joint: str
    body: int
    hinge: bool
    axis: Vector
    anchor: Vector
    value: float
    closed: float
    """Joint value of closed or off: the end of its range that lies nearer to 0."""
    open: float


def place(simulator: LiberoSimulator, name: str, target: str, *, attempt: int) -> Motion:
    """Grasp a thing and place it in or on `target`; later attempts use other grasps."""
    body = object_body(simulator, name)
    grasp = _chosen(simulator, body, attempt)
    yield from take(simulator, grasp, body)
    spot, surface = destination(simulator, target)
    resting = BoundingBox(simulator, body).bottom
    carried = max(surface + CARRY_M, resting + APPROACH_M)
    yield from move(
        simulator,
        above(grasp.point, carried - resting),
        pointing_down(grasp.yaw),
        CLOSED,
        near=PASSED_M,
    )
    if BoundingBox(simulator, body).bottom < resting + LIFTED_M:
        return
    yaw = grasp.yaw + turn_to_fit(simulator, body, target)
    parent = region_parent(simulator, target) if is_region(simulator, target) else None
    if (
        parent is not None
        # on the table only one place is tried: a mug's origin is beside its axis, so an edge would
        # be outside
    ):
        spot = free_place(simulator, body, target, parent, surface=surface, yaw=yaw)
    for height, near in (
        (carried, PASSED_M),
        (carried, 0.5 * PASSED_M),
        (surface + DROP_M, 0.5 * PASSED_M),
    ):
        hand, _ = gripper_pose(simulator)
        # The object's lowest point is moved there, independent of the grasp.
        offset = hand - [*simulator.data.subtree_com[body][:2], BoundingBox(simulator, body).bottom]
        to = np.array([*spot, height]) + offset
        if height == carried:
            yield from pass_over(
                simulator, to, pointing_down(yaw), CLOSED, thing=body, held=True, near=near
            )
        else:
            yield from move(simulator, to, pointing_down(yaw), CLOSED, near=near)
    yield from hold(OPEN, RELEASE_STEPS)
    yield from retreat(simulator)


def slide(simulator: LiberoSimulator, name: str, target: str, *, attempt: int) -> Motion:
    """Grasp a thin thing at its rim and slide it over the table to `target`."""
    body = object_body(simulator, name)
    grasp = _chosen(simulator, body, attempt)
    yield from take(simulator, grasp, body)
    spot, _ = destination(simulator, target)
    to = grasp.point + np.append(spot - simulator.data.subtree_com[body][:2], SKIM_M)
    yield from move(simulator, to, pointing_down(grasp.yaw), CLOSED)
    yield from hold(OPEN, RELEASE_STEPS)
    yield from retreat(simulator)


def take(simulator: LiberoSimulator, grasp: Grasp, body: int) -> Motion:
    """Come down on a thing from above with open fingers, and close them."""
    rotation = pointing_down(grasp.yaw)
    yield from pass_over(simulator, above(grasp.point, APPROACH_M), rotation, OPEN, thing=body)
    yield from move(simulator, above(grasp.point, 0.5 * APPROACH_M), rotation, OPEN, near=NEAR_M)
    yield from move(simulator, grasp.point, rotation, OPEN)
    yield from grip(simulator)


def _chosen(simulator: LiberoSimulator, body: int, attempt: int) -> Grasp:
    choices = grasps(simulator, body)
    return choices[attempt % len(choices)]


def slides(simulator: LiberoSimulator, name: str, target: str) -> bool:
    """Whether a thing slides to `target` instead of being lifted: a plate, on the table."""
    size = BoundingBox(simulator, object_body(simulator, name)).size
    on_the_table = is_region(simulator, target) and region_parent(simulator, target) is None
    return bool(on_the_table and size[2] < THIN_M and size[:2].min() > MOUTH_M)


def turn_to_fit(simulator: LiberoSimulator, body: int, target: str) -> float:
    """Return the turn of a long thing to fit a narrow region, at most a quarter; 0 if it fits."""
    if not is_region(simulator, target):
        return 0.0
    half = np.asarray(simulator.env.object_sites_dict[target].size[:2])
    region = simulator.data.site(target).xmat.reshape(3, 3)
    heading = level_heading(simulator.data.xmat[body].reshape(3, 3))
    size = BoundingBox(simulator, body, yaw=heading).size[:2]
    if size.max() < 2 * half.min():
        return 0.0
    along = float(np.arctan2(region[1, 0], region[0, 0])) + np.pi / 2 * float(np.argmax(half))
    return nearest_yaw(along - heading - np.pi / 2 * float(np.argmax(size)))


def destination(simulator: LiberoSimulator, target: str) -> tuple[Vector, float]:
    """Position to set an object down: x, y and the height of the surface."""
    if not is_region(simulator, target):
        extent = BoundingBox(simulator, object_body(simulator, target))
        return simulator.data.xpos[object_body(simulator, target)][:2].copy(), (
            extent.bottom + extent.top
        ) / 2
    centre, half = simulator.data.site(target).xpos, region_half(simulator, target)
    # A flat region is a surface. Into a deep region things are dropped from its upper part, because
    # the palm is wider than a basket.
    return centre[:2].copy(), float(
        centre[2] + (half[2] if half[2] < FLAT_REGION_M else 0.3 * half[2])
    )


def close(simulator: LiberoSimulator, name: str) -> Motion:
    """Push a drawer or door shut with the closed fingers, from the outside of its handle."""
    part = moving_part(simulator, name)
    start = _handle(simulator, part)
    opening = _opening(part, start)
    lean = 0.0 if part.hinge else LEAN_RAD
    outside = start + opening * (
        FIST_M * np.cos(lean) + TIP_M * np.sin(lean) + _reach(simulator, part, opening)
    )
    # Closed fingers are widest along y; that side is set square to the push.
    rotation = nearest_roll(simulator, leaning(opening, lean))
    far = outside + opening * 0.05
    yield from move(simulator, _over(simulator, part, far), rotation, CLOSED, near=PASSED_M)
    yield from move(simulator, far, rotation, CLOSED, near=PASSED_M)
    for value in _values(part, part.closed):
        yield from move(simulator, _carried(part, outside, value), rotation, CLOSED, near=PASSED_M)
    beyond = _carried(part, outside, part.closed)
    yield from move(
        simulator, beyond - _opening(part, beyond) * PUSH_M, rotation, CLOSED, limit=PUSH_LIMIT
    )
    yield from retreat(simulator, away=_opening(part, beyond))


def pull_open(simulator: LiberoSimulator, name: str) -> Motion:
    """Take a drawer or door by its handle, the hand level and square to it, and pull."""
    part = moving_part(simulator, name)
    handle = _handle(simulator, part)
    opening = _opening(part, handle)
    # the handle's length: upright on a door, level on a drawer
    across = part.axis if part.hinge else np.array([0.0, 0.0, 1.0])
    fingers = np.cross(across, opening) if part.hinge else across
    rotation = nearest_roll(
        simulator, np.column_stack([fingers, np.cross(-opening, fingers), -opening])
    )
    far = handle + opening * APPROACH_M
    yield from move(simulator, above(far, 0.06), rotation, OPEN, near=PASSED_M)
    yield from move(simulator, far, rotation, OPEN)
    yield from move(simulator, handle, rotation, OPEN)
    yield from grip(simulator)
    for value in _values(part, part.value + OPENED * (part.open - part.value)):
        yield from move(
            simulator,
            _carried(part, handle, value),
            _carried_rotation(part, rotation, value),
            CLOSED,
            near=PASSED_M,
        )
    hand, _ = gripper_pose(simulator)
    yield from move(
        simulator,
        hand + _opening(part, hand) * PUSH_M,
        _carried_rotation(part, rotation, part.open),
        CLOSED,
    )
    yield from hold(OPEN, RELEASE_STEPS)
    yield from retreat(simulator, away=_opening(part, hand))


def turn(simulator: LiberoSimulator, name: str, *, on: bool) -> Motion:
    """Take a knob by its bar from above, and turn it."""
    part = moving_part(simulator, name)
    bar = _top_geom(simulator, part)
    wanted = part.closed + TURNED_RAD * np.sign(part.open - part.closed) if on else part.closed
    angle = float((wanted - part.value) * part.axis[2])
    thin = _thin_side(simulator, bar)
    half_turns = [thin + np.pi * k for k in (-1, 0, 1)]
    yaws = [yaw for yaw in half_turns if abs(yaw) <= np.pi]
    # keeps the wrist near the middle of its range
    yaw = min(yaws, key=lambda start: abs(start) + abs(start + angle))
    point = simulator.data.geom_xpos[bar].copy()
    yield from move(simulator, above(point, APPROACH_M), pointing_down(yaw), OPEN, near=PASSED_M)
    yield from move(simulator, point, pointing_down(yaw), OPEN)
    yield from grip(simulator)
    for share in (0.35, 0.7, 1.0, 1.2):
        yield from move(simulator, point, pointing_down(yaw + share * angle), CLOSED, limit=15)
    yield from hold(OPEN, RELEASE_STEPS)
    yield from retreat(simulator)


def retreat(simulator: LiberoSimulator, *, away: Vector | None = None) -> Motion:
    """Leave upwards, or first in the direction `away`, with open fingers."""
    hand, rotation = gripper_pose(simulator)
    if away is not None:
        hand = hand + away * 0.05
        yield from move(simulator, hand, rotation, OPEN, near=PASSED_M)
    yield from move(simulator, above(hand, APPROACH_M), rotation, OPEN, near=PASSED_M)


def moving_part(simulator: LiberoSimulator, name: str) -> MovingPart:
    """The part that a region of a fixture, or a fixture with one joint, names."""
    env = simulator.env
    model = simulator.model
    data = simulator.data
    joints = (
        env.object_sites_dict[name].joints
        if is_region(simulator, name)
        else env.fixtures_dict[name].joints
    )
    number = model.joint(joints[0]).id
    near, far = sorted(model.jnt_range[number], key=abs)
    return MovingPart(
        joint=joints[0],
        body=int(model.jnt_bodyid[number]),
        hinge=bool(model.jnt_type[number] == mujoco.mjtJoint.mjJNT_HINGE),
        axis=data.xaxis[number].copy(),
        anchor=data.xanchor[number].copy(),
        value=float(data.joint(number).qpos[0]),
        closed=float(near) if near * far >= 0 else 0.0,
        open=float(far),
    )


def is_shut(simulator: LiberoSimulator, target: str) -> bool:
    """Whether `target` is a region inside a part that must be opened first."""
    if not is_region(simulator, target) or not simulator.env.object_sites_dict[target].joints:
        return False
    part = moving_part(simulator, target)
    return not part.hinge and abs(part.value - part.open) > abs(part.value - part.closed)


def above(point: Vector, height: float) -> Vector:
    """The point `height` metres higher."""
    return np.array([point[0], point[1], point[2] + height])


def _handle(simulator: LiberoSimulator, part: MovingPart) -> Vector:
    """Middle of the handle: the part of a drawer that protrudes furthest, or the part of a door
    furthest from its hinge.
    """
    return simulator.data.geom_xpos[_handle_geom(simulator, part)].copy()


def _handle_geom(simulator: LiberoSimulator, part: MovingPart) -> int:
    geoms = colliding_geoms(simulator, part.body)
    offsets = simulator.data.geom_xpos[geoms] - part.anchor
    if not part.hinge:
        return geoms[int(np.argmax(offsets @ _opening(part, part.anchor)))]
    return geoms[int(np.argmax(np.linalg.norm(np.cross(part.axis, offsets), axis=1)))]


def _top_geom(simulator: LiberoSimulator, part: MovingPart) -> int:
    """The bar of a knob: its highest geom."""
    return max(
        colliding_geoms(simulator, part.body),
        key=lambda geom: float(simulator.data.geom_xpos[geom][2]),
    )


def _thin_side(simulator: LiberoSimulator, geom: int) -> float:
    """Yaw with which the fingers close across a knob's bar."""
    rotation = simulator.data.geom_xmat[geom].reshape(3, 3)
    size = simulator.model.geom_size[geom]
    level = [axis for axis in range(3) if abs(rotation[2, axis]) < 0.7]
    thin = min(level, key=lambda axis: float(size[axis]))
    return float(np.arctan2(rotation[1, thin], rotation[0, thin]) - np.pi / 2)


def _opening(part: MovingPart, point: Vector) -> Vector:
    """Direction [3] in which `point` of the part moves when it opens."""
    along = np.cross(part.axis, point - part.anchor) if part.hinge else part.axis
    return along / np.linalg.norm(along) * np.sign(part.open - part.closed)


def _values(part: MovingPart, end: float) -> list[float]:
    """Joint values on the way to `end`, the last included."""
    # doors are a quarter of a metre wide
    length = abs(end - part.value) * (0.25 if part.hinge else 1.0)
    return list(np.linspace(part.value, end, max(2, int(length / STRIDE_M) + 1))[1:])


def _carried(part: MovingPart, point: Vector, value: float) -> Vector:
    """Position of a point of the part when its joint is at `value`."""
    if not part.hinge:
        return point + part.axis * (value - part.value)
    return part.anchor + _rotation(part.axis, value - part.value) @ (point - part.anchor)


def _carried_rotation(part: MovingPart, rotation: Vector, value: float) -> Vector:
    return _rotation(part.axis, value - part.value) @ rotation if part.hinge else rotation


def _rotation(axis: Vector, angle: float) -> Vector:
    quaternion, matrix = np.empty(4), np.empty(9)
    mujoco.mju_axisAngle2Quat(quaternion, axis, angle)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)


def _reach(simulator: LiberoSimulator, part: MovingPart, direction: Vector) -> float:
    """Extent of the handle from its middle in a horizontal direction."""
    lows, highs = boxes(simulator, [part.body], yaw=float(np.arctan2(direction[1], direction[0])))
    handle = colliding_geoms(simulator, part.body).index(_handle_geom(simulator, part))
    return float((highs - lows)[handle, 0] / 2)


def _over(simulator: LiberoSimulator, part: MovingPart, point: Vector) -> Vector:
    """The point above everything on the part, from which the hand comes down."""
    return np.array(
        [point[0], point[1], max(BoundingBox(simulator, part.body).top, point[2]) + APPROACH_M]
    )
