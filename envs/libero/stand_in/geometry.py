"""Builds things from boxes, cylinders and capsules, and writes the MJCF text that LIBERO's object
classes read.

A `Thing` has the content of one file of the benchmark's assets: solids, the named boxes ("regions")
that its predicates test, and moving parts. Every solid becomes two geoms, as robosuite requires:
one that collides (group 0, never drawn) and one that is drawn (group 1). Lengths in metres, angles
in radians, quaternions w x y z. The output is plain text; MuJoCo is not imported.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

Vector = tuple[float, float, float]
Colour = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]

UPRIGHT: Quaternion = (1.0, 0.0, 0.0, 0.0)
ALONG_Y: Quaternion = (
    math.sqrt(0.5),
    math.sqrt(0.5),
    0.0,
    0.0,
)  # turns a cylinder's axis from z to y
# Contact of the benchmark's objects (their asset files): stiff, and rubber-like friction that lets
# two fingers hold a bottle.
CONTACT = {"friction": "0.95 0.3 0.1", "solref": "0.001 1", "solimp": "0.998 0.998 0.001"}


@dataclass(frozen=True)
class Solid:
    """One primitive; `size` is MuJoCo's (half lengths of a box; radius and half length of a
    cylinder or capsule).
    """

    kind: str
    size: tuple[float, ...]
    at: Vector
    colour: Colour
    turned: Quaternion = UPRIGHT
    collides: bool = True
    """False: paint only."""

    @property
    def volume(self) -> float:
        """Cubic metres."""
        if self.kind == "box":
            return 8 * self.size[0] * self.size[1] * self.size[2]
        radius, half = self.size
        ends = 4 / 3 * math.pi * radius**3 if self.kind == "capsule" else 0.0
        return 2 * math.pi * radius**2 * half + ends


@dataclass(frozen=True)
class Region:
    """A box that predicates test: whether an object is in it, or on it."""

    name: str
    at: Vector
    half: Vector
    turned: Quaternion = UPRIGHT


@dataclass(frozen=True)
class Lamp:
    """A disc that the benchmark shows when a stove is on: its opacity is toggled."""

    name: str
    at: Vector
    radius: float
    colour: Colour


@dataclass(frozen=True)
class Joint:
    """Motion of a part relative to its parent."""

    name: str
    kind: str
    """`slide` (metres) or `hinge` (radians)."""
    axis: Vector
    limits: tuple[float, float]
    damping: float


@dataclass(frozen=True)
class ThingPart:
    """A body within a thing: a drawer, a door, a knob, or the fixed frame around them."""

    name: str
    solids: tuple[Solid, ...] = ()
    regions: tuple[Region, ...] = ()
    joint: Joint | None = None
    mass: float = 0.0
    """Kilograms, with the inertia `inertia`; 0: the mass of the solids."""
    inertia: float = 0.0
    """Kilogram square metres about every axis."""
    at: Vector = (0.0, 0.0, 0.0)
    turned: Quaternion = UPRIGHT
    parts: "tuple[ThingPart, ...]" = ()
    lamps: tuple[Lamp, ...] = ()


@dataclass(frozen=True)
class Thing:
    """One object or fixture of the benchmark."""

    name: str
    root: ThingPart
    mass: float
    """Kilograms of all solids of the root together."""
    bottom: float = -0.06
    top: float = 0.04
    radius: float = 0.025
    """The height below and above the origin and the radius that LIBERO's placement uses. They
    determine its random draws, and so the places of fixtures; they are therefore the values of the
    benchmark's assets, even if the shape differs.
    """


def box(
    half: Vector, at: Vector, colour: Colour, *, turned: Quaternion = UPRIGHT, collides: bool = True
) -> Solid:
    """A box of half lengths `half`."""
    return Solid("box", half, at, colour, turned, collides)


def block(low: Vector, high: Vector, colour: Colour) -> Solid:
    """The box between two corners."""
    half = tuple((b - a) / 2 for a, b in zip(low, high, strict=True))
    middle = tuple((b + a) / 2 for a, b in zip(low, high, strict=True))
    return Solid("box", half, middle, colour)  # type: ignore[arg-type]  # zip forgets the length


def upright(
    radius: float, low: float, high: float, colour: Colour, *, x: float = 0.0, y: float = 0.0
) -> Solid:
    """A cylinder from height `low` to `high`."""
    return Solid("cylinder", (radius, (high - low) / 2), (x, y, (low + high) / 2), colour)


def lying(radius: float, low: float, high: float, colour: Colour) -> Solid:
    """A cylinder along y: bottles and cans whose own upward axis is y."""
    return Solid(
        "cylinder", (radius, (high - low) / 2), (0.0, (low + high) / 2, 0.0), colour, ALONG_Y
    )


def wall_ring(
    *,
    low: float,
    high: float,
    radius_low: float,
    radius_high: float,
    thickness: float,
    colour: Colour,
    sides: int = 12,
    x: float = 0.0,
) -> list[Solid]:
    """A cup's wall: `sides` flat boxes between the circles of outer radius `radius_low` at height
    `low` and `radius_high` at `high`.
    """
    lean = math.atan2(radius_high - radius_low, high - low)
    half_height = math.hypot(radius_high - radius_low, high - low) / 2
    middle = (radius_low + radius_high) / 2 - thickness / 2
    half_width = max(radius_low, radius_high) * math.tan(math.pi / sides)
    solids = []
    for side in range(sides):
        angle = 2 * math.pi * side / sides
        at = (x + middle * math.cos(angle), middle * math.sin(angle), (low + high) / 2)
        half = (thickness / 2, half_width, half_height)
        solids.append(Solid("box", half, at, colour, _turn(about_z=angle, then_about_y=lean)))
    return solids


def bowl(
    *,
    low: float,
    high: float,
    foot: float,
    rim: float,
    thickness: float,
    colour: Colour,
    x: float = 0.0,
    sides: int = 12,
) -> list[Solid]:
    """An open vessel: a round floor of radius `foot` and a wall that widens to radius `rim`."""
    floor = upright(foot, low, low + thickness, colour, x=x)
    return [
        floor,
        *wall_ring(
            low=low,
            high=high,
            radius_low=foot,
            radius_high=rim,
            thickness=thickness,
            colour=colour,
            sides=sides,
            x=x,
        ),
    ]


def tray(low: Vector, high: Vector, *, thickness: float, colour: Colour) -> list[Solid]:
    """An open box between two outer corners: a floor and four walls."""
    (x0, y0, z0), (x1, y1, z1) = low, high
    floor_top = z0 + thickness
    return [
        block(low, (x1, y1, floor_top), colour),
        block((x0, y0, floor_top), (x0 + thickness, y1, z1), colour),
        block((x1 - thickness, y0, floor_top), (x1, y1, z1), colour),
        block((x0 + thickness, y0, floor_top), (x1 - thickness, y0 + thickness, z1), colour),
        block((x0 + thickness, y1 - thickness, floor_top), (x1 - thickness, y1, z1), colour),
    ]


def mjcf(thing: Thing) -> str:
    """The text of the file that LIBERO's class for `thing` reads."""
    model = ET.Element("mujoco", model=thing.name)
    ET.SubElement(model, "asset")
    outer = ET.SubElement(ET.SubElement(model, "worldbody"), "body")
    volume = sum(solid.volume for solid in _solids(thing.root) if solid.collides)
    _append(outer, thing.root, density=thing.mass / volume)
    for name, at in (
        ("bottom_site", (0.0, 0.0, thing.bottom)),
        ("top_site", (0.0, 0.0, thing.top)),
        ("horizontal_radius_site", (thing.radius, thing.radius, 0.0)),
    ):
        ET.SubElement(outer, "site", name=name, pos=numbers(at), size="0.005", rgba="0 0 0 0")
    ET.indent(model)
    return ET.tostring(model, encoding="unicode")


def numbers(values: Iterable[float]) -> str:
    """Numbers in MJCF form, to a hundredth of a millimetre."""
    return " ".join(f"{value:.6g}" for value in values)


def geoms(
    solid: Solid, *, density: float, contact: dict[str, str] = CONTACT
) -> list[dict[str, str]]:
    """Attributes of the geom that collides and of the one that is seen."""
    shape = {
        "type": solid.kind,
        "size": numbers(solid.size),
        "pos": numbers(solid.at),
        "quat": numbers(solid.turned),
    }
    shape["rgba"] = numbers((*solid.colour, 1.0))
    seen = shape | {"group": "1", "contype": "0", "conaffinity": "0", "mass": "0"}
    return (
        [shape | contact | {"group": "0", "density": numbers((density,))}, seen]
        if solid.collides
        else [seen]
    )


def _append(parent: ET.Element, part: ThingPart, *, density: float) -> None:
    body = ET.SubElement(
        parent, "body", name=part.name, pos=numbers(part.at), quat=numbers(part.turned)
    )
    if part.mass:
        ET.SubElement(
            body,
            "inertial",
            pos="0 0 0",
            mass=numbers((part.mass,)),
            diaginertia=numbers((part.inertia,) * 3),
        )
    if part.joint:
        joint = part.joint
        attributes = {
            "name": joint.name,
            "type": joint.kind,
            "axis": numbers(joint.axis),
            "damping": numbers((joint.damping,)),
        }
        ET.SubElement(
            body, "joint", attributes | {"limited": "true", "range": numbers(joint.limits)}
        )
    for region in part.regions:
        attributes = {
            "name": region.name,
            "pos": numbers(region.at),
            "quat": numbers(region.turned),
            "size": numbers(region.half),
        }
        ET.SubElement(body, "site", attributes | {"type": "box", "group": "0", "rgba": "0.8 0 0 0"})
    for lamp in part.lamps:
        attributes = {
            "name": lamp.name,
            "pos": numbers(lamp.at),
            "size": numbers((lamp.radius, 0.0005)),
        }
        ET.SubElement(
            body,
            "site",
            attributes | {"type": "cylinder", "group": "0", "rgba": numbers((*lamp.colour, 0.0))},
        )
    for solid in part.solids:
        for attributes in geoms(solid, density=density):
            ET.SubElement(body, "geom", attributes)
    for inner in part.parts:
        _append(body, inner, density=density)


def _solids(part: ThingPart) -> list[Solid]:
    """Solids that get their mass from the thing: those of parts that state no mass."""
    own = [] if part.mass else list(part.solids)
    return own + [solid for inner in part.parts for solid in _solids(inner)]


def _turn(*, about_z: float, then_about_y: float) -> Quaternion:
    """The rotation about z and then about the new y axis: w x y z."""
    cz = math.cos(about_z / 2)
    sz = math.sin(about_z / 2)
    cy = math.cos(then_about_y / 2)
    sy = math.sin(then_about_y / 2)
    return (cz * cy, -sz * sy, cz * sy, sz * cy)


def single(
    name: str,
    solids: Sequence[Solid],
    *,
    mass: float,
    regions: Sequence[Region] = (),
    bottom: float = -0.06,
    top: float = 0.04,
    radius: float = 0.025,
) -> Thing:
    """A thing of one rigid body."""
    return Thing(
        name, ThingPart("object", tuple(solids), tuple(regions)), mass, bottom, top, radius
    )
