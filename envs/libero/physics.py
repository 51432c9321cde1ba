"""Checks once per process that MuJoCo and robosuite behave like the pinned versions.

Scores on LIBERO depend on the physics: the same policy fell from 98 % to 12 % on one task between
MuJoCo 3.3 and 3.8. The check drops known objects and applies known actions, and compares resting
heights and arm motion with those of the pinned versions. A different version or result causes a
warning, not an error: the run continues, but its numbers should mention the difference.
"""

import importlib.metadata
import warnings
from xml.etree import ElementTree as ET

import mujoco
import numpy as np
from numpy.typing import NDArray

from envs.libero.libero_simulator import LiberoSimulator
from envs.libero.stand_in.geometry import ALONG_Y, Thing, geoms, numbers
from envs.libero.stand_in.objects import HOPE_OBJECTS, SCANNED_OBJECTS

PINNED = {"mujoco": "3.8.1", "robosuite": "1.4.0", "hf-libero": "0.1.4"}
TOLERANCE_M = 0.001  # processors differ by 1e-9 m here; a changed contact model by millimetres
DROPPED = {"ketchup": (0.0, 0.035), "akita_black_bowl": (0.3, 0.07), "cream_cheese": (0.6, 0.0)}
"""Maps a stand-in to its place along x and the height of its origin, as in LIBERO's initial states.
"""
DROP_STEPS = 500  # a second
RECORDED_HEIGHTS_M = {"ketchup": 0.0724, "akita_black_bowl": -0.0008, "cream_cheese": 0.0089}
"""Heights at which they come to rest, with the pinned versions."""
PEAK_STEP = 60
RECORDED_PEAK_M = 0.1357
"""Height of the rising bottle, which starts 3.7 cm deep in the floor, as in libero_object.
"""
MOTION = np.array([0.5, 0.3, 0.6, 0.1, 0.0, 0.2, -1.0])
MOTION_STEPS = 10
RECORDED_MOTION_M = (0.0488, 0.0409, 0.0648)
"""Displacement of the gripper from the arm's home pose by `MOTION_STEPS` times `MOTION`."""

_checked: list[bool] = []


class PhysicsWarning(UserWarning):
    """The physics differs from that behind the project's numbers."""


def check_physics(simulator: LiberoSimulator) -> list[str]:
    """Return and warn of differences from the pinned versions; `simulator` then needs a reset."""
    differences = [*version_differences(), *drop_differences(), *motion_differences(simulator)]
    if differences:
        warnings.warn(
            "The physics of env=libero differs from that of siirl's published numbers: "
            + " ".join(differences)
            + " Success rates of the same policy can change by tens of percent; "
            "install requirements.lock, or state the versions.",
            PhysicsWarning,
            stacklevel=2,
        )
    return differences


def check_physics_once(simulator: LiberoSimulator) -> None:
    """`check_physics` for the first simulator of a process."""
    if not _checked:
        _checked.append(True)
        check_physics(simulator)


def version_differences() -> list[str]:
    """Installed versions that are not the pinned ones."""
    installed = {name: importlib.metadata.version(name) for name in PINNED}
    return [
        f"{name} is {installed[name]} instead of {pinned}."
        for name, pinned in PINNED.items()
        if installed[name] != pinned
    ]


def drop_differences() -> list[str]:
    """Return dropped objects whose recorded height differs, including the rising bottle."""
    heights, peak = drop()
    expected = {**RECORDED_HEIGHTS_M, "ketchup on its way up": RECORDED_PEAK_M}
    found = {**heights, "ketchup on its way up": peak}
    return [
        f"A dropped object ({name}) is at {found[name]:.4f} m instead of {expected[name]:.4f} m."
        for name in expected
        if not abs(found[name] - expected[name]) <= TOLERANCE_M  # so that NaN differs
    ]


def motion_differences(simulator: LiberoSimulator) -> list[str]:
    """Whether the arm's controller moves the gripper as recorded."""
    moved = arm_motion(simulator)
    if np.abs(moved - RECORDED_MOTION_M).max() <= TOLERANCE_M:
        return []
    return [
        f"Known actions move the gripper by {moved.round(4).tolist()} m instead of "
        f"{list(RECORDED_MOTION_M)} m."
    ]


def drop() -> tuple[dict[str, float], float]:
    """Drop stand-ins; returns resting heights, and the bottle's height after `PEAK_STEP` steps."""
    model = mujoco.MjModel.from_xml_string(_drop_scene())
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, PEAK_STEP)
    peak = float(data.body("ketchup").xpos[2])
    mujoco.mj_step(model, data, DROP_STEPS - PEAK_STEP)
    return {name: float(data.body(name).xpos[2]) for name in DROPPED}, peak


def arm_motion(simulator: LiberoSimulator) -> NDArray[np.float64]:
    """Return the gripper's displacement [3] in metres by known actions from the home pose."""
    state = simulator.states[0].copy()
    state[1 + np.array(simulator.robot._ref_joint_pos_indexes)] = simulator.robot.init_qpos
    simulator.set_state(state)
    start = simulator.data.site_xpos[simulator.robot.eef_site_id].copy()
    for _ in range(MOTION_STEPS):
        simulator.step(MOTION)
    return np.asarray(simulator.data.site_xpos[simulator.robot.eef_site_id] - start)


def _drop_scene() -> str:
    things = {thing.name: thing for thing in (*HOPE_OBJECTS, *SCANNED_OBJECTS)}
    model = ET.Element("mujoco")
    ET.SubElement(model, "option", timestep="0.002", cone="elliptic", impratio="20")  # robosuite's
    world = ET.SubElement(model, "worldbody")
    ET.SubElement(world, "geom", type="plane", size="3 3 0.125", condim="3")
    for name, (x, height) in DROPPED.items():
        body = ET.SubElement(
            world,
            "body",
            name=name,
            pos=numbers((x, 0.0, height)),
            quat=numbers(ALONG_Y if name == "ketchup" else (1, 0, 0, 0)),
        )
        ET.SubElement(body, "freejoint")
        for attributes in _solids(things[name]):
            ET.SubElement(body, "geom", attributes)
    return ET.tostring(model, encoding="unicode")


def _solids(thing: Thing) -> list[dict[str, str]]:
    return [geoms(solid, density=500.0)[0] for solid in thing.root.solids if solid.collides]
