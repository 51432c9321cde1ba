"""A scripted expert on true poses, in the benchmark's own actions: it picks things up and sets them down in or on what the goal names.

It plans from the colliding shapes of whatever assets are loaded: a thing that fits between the fingers is held across its narrow side, a
vessel at its rim. One predicate of the goal after the other; those that hold already are left alone. Doors, drawers and knobs are left
out: `can_do` says which tasks it tries, docs/libero.md how often it succeeds.

    policy = expert(task_name)
    action = policy(env)     # float32 [7]; a new plan begins with each episode
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from envs.libero.environment import LiberoEnv
from envs.libero.scene import Extent, Vector, gripper_pose, is_region, object_body, region_half, rotation_vector
from envs.libero.simulator import TaskSimulator

Action = NDArray[np.float32]

PLACING = ("in", "on")
OPEN, CLOSED = -1.0, 1.0
POSITION_GAIN = 50.0  # of the full action a metre: at 2 cm it is full, and at a rest of 2 mm still a tenth
ROTATION_GAIN = 4.0  # a radian
REACHED_M, REACHED_RAD = 0.006, 0.05
MOVE_LIMIT = 60  # steps of one motion; then the plan goes on, as a person would
GRASP_STEPS, RELEASE_STEPS, WAIT_STEPS = 8, 6, 40
MOUTH_M = 0.072  # what is held across is at most this wide: the fingers open to 8 cm
FINGER_DEPTH_M = 0.035  # how far below its top a tall thing is held: the palm is 5 cm above the finger tips
TIP_M = 0.012  # the tips reach this far below the point between them
APPROACH_M, CARRY_M, DROP_M = 0.10, 0.12, 0.012
RIM_DEPTH_M = 0.012  # how deep the fingers reach over a rim
WALL_M = 0.002  # half of a vessel's wall
DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])  # of the point between the tips; the fingers close along y


def expert(task: str) -> Callable[[LiberoEnv], Action]:
    """The expert for a task of the environment; it reads `env.simulator`, which no policy may.

    Raises:
        ValueError: When it is first called: the task's goal is of a kind that it cannot do.
    """
    plan: Iterator[Action] = iter(())

    def policy(env: LiberoEnv) -> Action:
        nonlocal plan
        if env.steps == 0:
            if not can_do(env.simulator):
                raise ValueError(f"The scripted expert cannot do {task!r}: it only puts things in and on others (docs/libero.md).")
            plan = _pursue_goal(env.simulator)
        return next(plan)

    return policy


def can_do(simulator: TaskSimulator) -> bool:
    """Whether the goal consists of things to be put in or on others."""
    return all(len(predicate) == 3 and predicate[0] in PLACING for predicate in simulator.env.parsed_problem["goal_state"])


def _pursue_goal(simulator: TaskSimulator) -> Iterator[Action]:
    """Actions without end: each predicate in turn, again and again until the environment sees success."""
    while True:
        for predicate in simulator.env.parsed_problem["goal_state"]:
            if not simulator.env._eval_predicate(predicate):
                yield from _place(simulator, predicate[1], predicate[2])
        yield from _hold(simulator, OPEN, WAIT_STEPS)


def _place(simulator: TaskSimulator, name: str, target: str) -> Iterator[Action]:
    body = object_body(simulator, name)
    point, yaw = _grasp(simulator, body)
    yield from _move(simulator, _above(point, APPROACH_M), yaw, OPEN)
    yield from _move(simulator, point, yaw, OPEN)
    yield from _hold(simulator, CLOSED, GRASP_STEPS)
    place, surface = _destination(simulator, target)
    carried = max(surface + CARRY_M, Extent(simulator, body).bottom + APPROACH_M)
    rise = carried - Extent(simulator, body).bottom
    yield from _move(simulator, _above(point, rise), yaw, CLOSED)
    for height in (carried, surface + DROP_M):  # the thing's lowest point is brought there, wherever the fingers hold it
        hand, _ = gripper_pose(simulator)
        offset = hand - [*simulator.data.subtree_com[body][:2], Extent(simulator, body).bottom]
        yield from _move(simulator, np.array([*place, height]) + offset, yaw, CLOSED)
    yield from _hold(simulator, OPEN, RELEASE_STEPS)
    hand, _ = gripper_pose(simulator)
    yield from _move(simulator, _above(hand, APPROACH_M), yaw, OPEN)


def _grasp(simulator: TaskSimulator, body: int) -> tuple[Vector, float]:
    """Where to hold a thing, and the hand's yaw, with which the fingers close along y."""
    rotation = simulator.data.xmat[body].reshape(3, 3)
    axes = rotation[:, np.argsort(np.abs(rotation[2]))[:2]]  # the thing's two level axes
    heading = float(np.arctan2(axes[1, 0], axes[0, 0]))
    extent = Extent(simulator, body, yaw=heading)
    narrow = int(np.argmin(extent.size[:2]))
    height = max(extent.top - FINGER_DEPTH_M, extent.bottom + TIP_M, (extent.bottom + extent.top) / 2 if extent.size[2] < 0.05 else 0.0)
    if extent.size[narrow] <= MOUTH_M:
        return np.array([*extent.centre[:2], height]), _nearest_yaw(heading + (np.pi / 2 if narrow == 0 else 0.0))
    return _rim(simulator, body, Extent(simulator, body))


def _rim(simulator: TaskSimulator, body: int, extent: Extent) -> tuple[Vector, float]:
    """A vessel is held at the side of its rim that lies towards the middle of the table, where the arm reaches best."""
    axis = simulator.data.subtree_com[body][:2]
    side = -1.0 if axis[1] > 0 else 1.0
    radius = min(extent.size[0], extent.size[1]) / 2 - WALL_M
    height = max(extent.top - RIM_DEPTH_M, extent.bottom + TIP_M)
    return np.array([axis[0], axis[1] + side * radius, height]), 0.0


def _nearest_yaw(yaw: float) -> float:
    """The same grasp with the hand turned by at most a quarter."""
    return float((yaw + np.pi / 2) % np.pi - np.pi / 2)


def _destination(simulator: TaskSimulator, target: str) -> tuple[Vector, float]:
    """Where to set something down: x and y, and the height of the surface there."""
    if not is_region(simulator, target):
        extent = Extent(simulator, object_body(simulator, target))
        return simulator.data.xpos[object_body(simulator, target)][:2].copy(), (extent.bottom + extent.top) / 2
    centre, half = simulator.data.site(target).xpos, region_half(simulator, target)
    # A flat region is a surface; into a deep one things fall from its upper part, for the palm is wider than a basket.
    return centre[:2].copy(), float(centre[2] + (half[2] if half[2] < 0.01 else 0.3 * half[2]))


def _above(point: Vector, height: float) -> Vector:
    return np.array([point[0], point[1], point[2] + height])


def _move(simulator: TaskSimulator, position: Vector, yaw: float, fingers: float) -> Iterator[Action]:
    """Bring the point between the finger tips to `position`, with the hand pointing down and turned by `yaw`."""
    cosine, sine = np.cos(yaw), np.sin(yaw)
    wanted = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]]) @ DOWN
    for _ in range(MOVE_LIMIT):
        hand, rotation = gripper_pose(simulator)
        way, turn = position - hand, rotation_vector(wanted @ rotation.T)
        if np.linalg.norm(way) < REACHED_M and np.linalg.norm(turn) < REACHED_RAD:
            return
        yield _action(way * POSITION_GAIN, turn * ROTATION_GAIN, fingers)


def _hold(simulator: TaskSimulator, fingers: float, steps: int) -> Iterator[Action]:
    """Stay, and open or close the fingers."""
    for _ in range(steps):
        yield _action(np.zeros(3), np.zeros(3), fingers)


def _action(motion: Vector, turn: Vector, fingers: float) -> Action:
    # A longer way than one action goes keeps its direction.
    motion = motion / max(1.0, float(np.abs(motion).max()))
    return np.concatenate([motion, np.clip(turn, -1.0, 1.0), [fingers]]).astype(np.float32)
