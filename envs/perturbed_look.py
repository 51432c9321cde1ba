"""Perturbed images of a MuJoCo scene: camera, lights, surfaces and distractors of one episode.

A `Look` changes only a renderer's scene. The physics is unchanged, so the arm passes through a
distractor. Ranges are those of `envs.perturbations`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.perturbations import CAMERA, DISTRACTORS, LIGHT, TEXTURE, Perturbation

ORBIT_DEG = 75.0
RISE_DEG = 15.0
TURN_DEG = 10.0
LARGEST_DISTANCE = 2.0
CAMERA_KINDS = {"orbit": 0.62, "distance": 0.20, "turn": 0.18}
"""Shares of LIBERO-Plus' camera variants."""
DIMMEST, BRIGHTEST = 0.4, 2.0
TINT = 0.1
LIGHT_DEG = 20.0
DARKEST_COLOUR = 0.25
BACKGROUND_SHARE = 0.43
"""Share of LIBERO-Plus' texture variants with another wall beside another table or floor."""
SURFACE_RADIUS_M = 0.4
TABLE_STEP_M = 0.15  # Meta-World's tables with a hole have pieces at up to 10 cm below the highest
ENDLESS = np.array([100.0, 100.0, 0.0])  # half extents of a plane, larger than any scene
MOST_DISTRACTORS = 5
DISTRACTOR_M = (0.015, 0.03)  # half extents: from a cherry to a mug
CLEARANCE_M = 0.05  # the table is flat and empty this far around a distractor's centre, and the
# centres of two are at least twice as far apart
LEVEL_M = 0.003
SEEN_SHARE = 0.7  # distractors lie in this central part of the image
TRIES = 100  # on a table half covered with objects, nearly one try in ten finds a free place
UP = np.array([0.0, 0.0, 1.0])
VISIBLE_GROUPS = np.array([1, 1, 1, 0, 0, 0], np.uint8)


class View(NamedTuple):
    """A camera's pose in the world."""

    place: NDArray[np.float64]
    forward: NDArray[np.float64]
    up: NDArray[np.float64]
    slope: float
    """Half height of the image at distance 1."""

    @property
    def right(self) -> NDArray[np.float64]:
        """Unit vector to the right in the image."""
        return np.asarray(np.cross(self.forward, self.up), np.float64)


@dataclass(frozen=True)
class CameraMove:
    """A rotation and scaling about `pivot`, then a turn of the camera in place."""

    pivot: NDArray[np.float64]
    rotation: NDArray[np.float64]
    scale: float
    yaw: float
    pitch: float

    def move(self, camera: Any) -> None:
        """Move a camera of an `MjvScene`."""
        place, forward, up = (np.array(value) for value in (camera.pos, camera.forward, camera.up))
        forward, up = self.rotation @ forward, self.rotation @ up
        turn = _rotation(up, self.yaw) @ _rotation(np.cross(forward, up), self.pitch)
        camera.pos[:] = self.pivot + self.scale * (self.rotation @ (place - self.pivot))
        camera.forward[:], camera.up[:] = turn @ forward, turn @ up


@dataclass(frozen=True)
class LightChange:
    """A factor, an addition to each colour channel [3], and a rotation of the direction [3, 3]."""

    brightness: float
    tint: NDArray[np.float64]
    rotation: NDArray[np.float64]

    def change(self, light: Any) -> None:
        """Change a light of an `MjvScene`; a part that is black (no such light) stays black."""
        for part in (light.ambient, light.diffuse, light.specular):
            standard = np.array(part)
            if standard.any():
                part[:] = np.maximum(self.brightness * standard + self.tint, 0.0)
        light.dir[:] = self.rotation @ np.array(light.dir)


class Distractor(NamedTuple):
    """A solid that is drawn on the table."""

    shape: str
    place: NDArray[np.float64]
    half: float
    colour: NDArray[np.float32]


class Candidate(NamedTuple):
    """A solid that becomes a distractor if its place is free."""

    shape: str
    half: float
    colour: NDArray[np.float32]
    direction: NDArray[np.float64]
    """Of its place: right and up [2] in the standard image, whose edges are at -1 and 1."""


class Candidates(NamedTuple):
    """The first `wanted` of the `solids` with a free place become distractors."""

    wanted: int
    solids: tuple[Candidate, ...]


@dataclass(frozen=True)
class Look:
    """Changes to one episode's images; None or empty: no change."""

    camera: CameraMove | None = None
    light: LightChange | None = None
    surfaces: dict[int, NDArray[np.float32]] | None = None
    """Colours of geoms by id; their textures are hidden."""
    distractors: tuple[Distractor, ...] = ()

    def from_another_camera(self) -> "Look":
        """The same scene for cameras that do not move, such as the one on the wrist."""
        return Look(None, self.light, self.surfaces, self.distractors)

    def colour(self, model: Any) -> None:
        """Colour the surfaces of a renderer's own `model`."""
        for geom, colour in (self.surfaces or {}).items():
            model.geom_matid[geom], model.geom_rgba[geom] = -1, colour

    def change(self, scene: Any) -> None:
        """Change an `MjvScene` after its update: cameras, lights, distractors."""
        import mujoco

        self.move_cameras(scene)
        for light in range(scene.nlight if self.light is not None else 0):
            assert self.light is not None
            self.light.change(scene.lights[light])
        shapes = {
            "box": mujoco.mjtGeom.mjGEOM_BOX,
            "ball": mujoco.mjtGeom.mjGEOM_SPHERE,
            "can": mujoco.mjtGeom.mjGEOM_CYLINDER,
        }
        for solid in self.distractors:
            mujoco.mjv_initGeom(
                scene.geoms[scene.ngeom],
                shapes[solid.shape],
                np.full(3, solid.half),
                solid.place,
                np.eye(3).reshape(-1),
                solid.colour,
            )
            scene.ngeom += 1

    def move_cameras(self, scene: Any) -> None:
        """Move both eyes of an `MjvScene`."""
        if self.camera is not None:
            for camera in scene.camera:
                self.camera.move(camera)


STANDARD = Look()


def draw_look(perturbation: Perturbation, *, model: Any, data: Any, view: View) -> Look:
    """The look of an episode that starts at `data`.

    Args:
        perturbation: Factors, strength and seed.
        model: The simulator's model.
        data: The simulator's state, with poses computed.
        view: The first camera's standard pose.
    """
    strength = perturbation.strength
    camera = light = surfaces = None
    distractors: tuple[Distractor, ...] = ()
    if (generator := perturbation.generator(CAMERA)) is not None:
        pivot = _first_hit(model, data, view.place, view.forward)
        camera = _camera(generator, strength, pivot=pivot, right=view.right)
    if (generator := perturbation.generator(LIGHT)) is not None:
        light = _light(generator, strength)
    if (generator := perturbation.generator(TEXTURE)) is not None:
        surfaces = _surfaces(generator, strength, model, data)
    if (generator := perturbation.generator(DISTRACTORS)) is not None:
        distractors = _distractors(generator, strength, model, data, view)
    return Look(camera, light, surfaces, distractors)


def _camera(
    generator: np.random.Generator,
    strength: float,
    *,
    pivot: NDArray[np.float64],
    right: NDArray[np.float64],
) -> CameraMove:
    kind = generator.choice(list(CAMERA_KINDS), p=list(CAMERA_KINDS.values()))
    rotation = np.eye(3)
    scale = 1.0
    yaw = 0.0
    pitch = 0.0
    if kind == "orbit":
        angle = math.radians(ORBIT_DEG * strength) * generator.uniform(-1, 1)
        rise = math.radians(RISE_DEG * strength) * float(generator.random() < 0.5)
        rotation = _rotation(UP, angle) @ _rotation(right, -rise)
    elif kind == "distance":
        scale = 1 + (LARGEST_DISTANCE - 1) * strength * generator.random()
    else:
        yaw, pitch = np.radians(TURN_DEG * strength) * generator.uniform(-1, 1, 2)
    return CameraMove(pivot, rotation, scale, yaw, pitch)


def _light(generator: np.random.Generator, strength: float) -> LightChange:
    brightness = 1 + strength * (generator.uniform(DIMMEST, BRIGHTEST) - 1)
    tint = TINT * strength * generator.uniform(-1, 1, 3)
    axis = generator.normal(size=3)
    angle = math.radians(LIGHT_DEG * strength) * generator.random()
    return LightChange(brightness, tint, _rotation(axis / np.linalg.norm(axis), angle))


def _surfaces(
    generator: np.random.Generator, strength: float, model: Any, data: Any
) -> dict[int, NDArray[np.float32]]:
    """Colours of the work surface and, in some episodes, of the other large surfaces.

    Each keeps its texture with probability 1 - strength.
    """
    others_too = generator.random() < BACKGROUND_SHARE
    surfaces = large_surfaces(model)
    pieces = work_surface(model, data, surfaces)
    colours: dict[int, NDArray[np.float32]] = {}
    for geom in surfaces:
        colour = np.append(generator.uniform(DARKEST_COLOUR, 1.0, 3), 1.0).astype(np.float32)
        changes = generator.random() < strength and (geom in pieces or others_too)
        if geom in pieces[1:]:  # a table has the colour of its first piece
            changes, colour = pieces[0] in colours, colours.get(pieces[0], colour)
        if changes:
            colours[geom] = colour
    return colours


def large_surfaces(model: Any) -> list[int]:
    """Fixed planes and boxes that are drawn: table, floor, walls. The robot's mount and furniture
    are meshes.
    """
    import mujoco

    fixed = model.body_weldid[model.geom_bodyid] == 0
    large = (model.geom_rbound == 0) | (model.geom_rbound > SURFACE_RADIUS_M)  # a plane has 0
    flat = np.isin(model.geom_type, [mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_BOX])
    drawn = (VISIBLE_GROUPS[model.geom_group] > 0) & (model.geom_rgba[:, 3] > 0)
    return [int(geom) for geom in np.flatnonzero(fixed & large & flat & drawn)]


def work_surface(model: Any, data: Any, surfaces: Sequence[int]) -> list[int]:
    """The highest of `surfaces` that lie flat: the pieces of a table top, or the floor where there
    is none.
    """
    tops = {}
    for geom in surfaces:
        half = model.geom_size[geom] if model.geom_rbound[geom] else ENDLESS
        half = np.abs(data.geom_xmat[geom].reshape(3, 3)) @ half
        if half[2] < half[:2].min():
            tops[geom] = data.geom_xpos[geom][2] + half[2]
    return [geom for geom in tops if tops[geom] > max(tops.values()) - TABLE_STEP_M]


def _distractors(
    generator: np.random.Generator, strength: float, model: Any, data: Any, view: View
) -> tuple[Distractor, ...]:
    candidates = draw_candidates(generator, strength)
    placed: list[Distractor] = []
    for shape, half, colour, (across, along) in candidates.solids:
        if len(placed) == candidates.wanted:
            break
        offset = view.slope * (across * view.right + along * view.up)
        place = _first_hit(model, data, view.place, view.forward + offset)
        if _is_free(model, data, place) and all(
            np.linalg.norm(place - other.place) > 2 * CLEARANCE_M for other in placed
        ):
            placed.append(Distractor(shape, place + half * UP, half, colour))
    return tuple(placed)


def draw_candidates(generator: np.random.Generator, strength: float) -> Candidates:
    """The solids of an episode, independent of its scene."""
    count = int(generator.integers(1, math.ceil(MOST_DISTRACTORS * strength) + 1))
    solids = []
    for _ in range(TRIES):
        direction = SEEN_SHARE * generator.uniform(-1, 1, 2)
        shape = str(generator.choice(["box", "ball", "can"]))
        half = generator.uniform(*DISTRACTOR_M)
        colour = np.append(generator.random(3), 1.0).astype(np.float32)
        solids.append(Candidate(shape, half, colour, direction))
    return Candidates(count, tuple(solids))


def _is_free(model: Any, data: Any, place: NDArray[np.float64]) -> bool:
    """Whether the surface around `place` is fixed, level and empty."""
    above = place + 4 * CLEARANCE_M * UP
    ring = [
        CLEARANCE_M * np.array([math.cos(angle), math.sin(angle), 0.0])
        for angle in np.linspace(0, 2 * math.pi, 8, endpoint=False)
    ]
    for offset in [np.zeros(3), *ring, *(part / 2 for part in ring)]:
        hit, geom = _cast(model, data, above + offset, -UP)
        fixed = geom >= 0 and model.body_weldid[model.geom_bodyid[geom]] == 0
        if not fixed or abs(hit[2] - place[2]) > LEVEL_M:
            return False
    return True


def _first_hit(
    model: Any, data: Any, place: NDArray[np.float64], direction: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The first visible point on a ray; a metre away if it meets nothing."""
    return _cast(model, data, place, direction / np.linalg.norm(direction))[0]


def _cast(
    model: Any, data: Any, place: NDArray[np.float64], direction: NDArray[np.float64]
) -> tuple[NDArray[np.float64], int]:
    import mujoco

    geom = np.array([[-1]], np.int32)
    distance = mujoco.mj_ray(
        model,
        data,
        place.reshape(3, 1),
        direction.reshape(3, 1),
        VISIBLE_GROUPS.reshape(6, 1),
        1,
        -1,
        geom,
    )
    return place + direction * (distance if geom[0, 0] >= 0 else 1.0), int(geom[0, 0])


def _rotation(axis: NDArray[np.float64], angle: float) -> NDArray[np.float64]:
    """Rotation by `angle` about the unit vector `axis` (Rodrigues' formula) [3, 3]."""
    x, y, z = axis
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    turned: NDArray[np.float64] = (
        np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross
    )
    return turned
