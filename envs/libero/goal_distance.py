"""Remaining distance of an episode to its task's goal, for benchmarks and oracles only."""

import numpy as np

from envs.libero.libero_simulator import LiberoSimulator
from envs.libero.scene import Vector, gripper_pose, is_region, object_body


def goal_distance(simulator: LiberoSimulator) -> float:
    """Metres from the fingers to the nearest object that is not in its place, plus from each such
    object to its place; 0 at success.

    The goal must consist of placements (`LiberoTask.only_places`). Positions are those of the
    objects' root bodies and of the regions' centres.
    """
    left = [
        (_position(simulator, thing), _position(simulator, place))
        for verb, thing, place in simulator.env.parsed_problem["goal_state"]
        if not simulator.env._eval_predicate((verb, thing, place))
    ]
    if not left:
        return 0.0
    fingers, _ = gripper_pose(simulator)
    reach = min(np.linalg.norm(thing - fingers) for thing, _ in left)
    return float(reach + sum(np.linalg.norm(place - thing) for thing, place in left))


def _position(simulator: LiberoSimulator, name: str) -> Vector:
    data = simulator.data
    if is_region(simulator, name):
        return np.asarray(data.site(name).xpos, np.float64)
    return np.asarray(data.xpos[object_body(simulator, name)], np.float64)
