"""Stand-ins for the benchmark's seven fixtures: cabinets, microwave, stove, wine rack, shelf and
desk caddy.

Figures from the benchmark's assets (github.com/Lifelong-Robot-Learning/LIBERO,
libero/libero/assets, MIT): outer dimensions, regions, and for moving parts the joint's name, axis,
range, damping, mass and inertia, to which the initial states and the predicates refer. A fixture
does not move, so MuJoCo lets its drawers and doors collide with its frame: they keep a millimetre
or more of clearance.
"""

import math

from envs.libero.stand_in.geometry import (
    Colour,
    Joint,
    Lamp,
    Region,
    Solid,
    Thing,
    ThingPart,
    block,
    box,
    single,
    tray,
    upright,
)
from envs.libero.stand_in.objects import BLACK, RED, STEEL, WHITE, WOOD

LEVELS = {
    "top": (0.1511, 0.2157, 0.18563),
    "middle": (0.0814, 0.1459, 0.1169),
    "bottom": (0.0128, 0.0774, 0.04701),
}
"""Drawers of a cabinet: floor, rim, and middle of the containing region above the cabinet's origin.
"""
NARROWER = 0.008
"""Metres by which a drawer is narrower than the benchmark's on each side. Otherwise, in some
initial states of kitchen scene 4, the wine bottle falls on the open drawer's corner, topples, and
still rolls after settling."""
RACK_TILT = math.asin(0.52)
"""The wine rack's plank rises to the back by 31 degrees."""


def cabinet(name: str, colour: Colour, handle: Colour) -> Thing:
    """A chest of three drawers, 24 cm wide, that open towards -y."""
    frame = ThingPart(
        "base",
        solids=(
            block((-0.1173, -0.0790, 0.0084), (-0.1070, 0.1117, 0.2201), colour),
            block((0.1138, -0.0790, 0.0084), (0.1242, 0.1117, 0.2201), colour),
            block((-0.1070, 0.1074, 0.0084), (0.1138, 0.1117, 0.2201), colour),
            *(
                block((-0.1070, -0.0707, z - 0.0009), (0.1138, 0.1074, z + 0.0009), colour)
                for z in (0.0093, 0.0793, 0.1494)
            ),
            block((-0.1234, -0.0783, 0.2201), (0.1312, 0.1099, 0.2230), colour),
        ),
        regions=(Region("top_side", (0.00354, 0.01567, 0.22152), (0.12534, 0.09438, 0.00147)),),
        parts=tuple(_drawer(level, colour, handle) for level in LEVELS),
    )
    return Thing(
        name, ThingPart("object", parts=(frame,)), mass=2.0, bottom=-0.045, top=0.045, radius=0.045
    )


def _drawer(level: str, colour: Colour, handle: Colour) -> ThingPart:
    low, high, middle = LEVELS[level]
    solids = [
        *tray(
            (-0.1043 + NARROWER, -0.0725, low),
            (0.1110 - NARROWER, 0.0940, high),
            thickness=0.005,
            colour=colour,
        ),
        block(
            (-0.1060 + NARROWER, -0.0779, low - 0.0010), (0.1127 - NARROWER, -0.0725, high), colour
        ),
        block(
            (-0.0472, -0.1098, (low + high) / 2 - 0.0077),
            (0.0417, -0.0934, (low + high) / 2 + 0.0077),
            handle,
        ),
        block(
            (-0.0407, -0.0934, (low + high) / 2 - 0.0055),
            (-0.0305, -0.0779, (low + high) / 2 + 0.0055),
            handle,
        ),
        block(
            (0.0241, -0.0934, (low + high) / 2 - 0.0055),
            (0.0342, -0.0779, (low + high) / 2 + 0.0055),
            handle,
        ),
    ]
    return ThingPart(
        f"cabinet_{level}",
        solids=tuple(solids),
        regions=(
            Region(f"{level}_region", (0.00328, 0.01128, middle), (0.10224, 0.07561, 0.02993)),
        ),
        joint=Joint(f"{level}_level", "slide", (0.0, 1.0, 0.0), (-0.16, 0.01), damping=50.0),
        mass=3.0,
        inertia=1.0,
    )


def microwave() -> Thing:
    """An oven with a door that swings out by 120 degrees; its hinge is at the left."""
    shell = (
        block((-0.1725, -0.0880, 0.0), (-0.1435, 0.1110, 0.1870), WHITE),
        block((0.0635, -0.0880, 0.0), (0.1725, 0.1110, 0.1870), WHITE),
        block((-0.1435, 0.0805, 0.0), (0.0635, 0.1110, 0.1870), WHITE),
        block((-0.1435, -0.0880, 0.1680), (0.0635, 0.0805, 0.1870), WHITE),
        block((-0.1435, -0.0880, 0.0), (0.0635, 0.0805, 0.0240), STEEL),
        block((0.0875, -0.1105, 0.0), (0.1725, -0.0880, 0.1870), BLACK),
        Solid("box", (0.02, 0.0005, 0.012), (0.13, -0.111, 0.15), STEEL, collides=False),
    )
    door = ThingPart(
        "microdoorroot",
        solids=(
            box((0.1295, 0.0120, 0.0925), (0.1295, -0.0130, 0.0), WHITE),
            Solid("box", (0.085, 0.0005, 0.06), (0.115, -0.0253, 0.0), BLACK, collides=False),
            Solid("capsule", (0.01, 0.065), (0.2375, -0.0540, 0.0), STEEL),
            box((0.008, 0.0145, 0.008), (0.2375, -0.0395, 0.065), STEEL),
            box((0.008, 0.0145, 0.008), (0.2375, -0.0395, -0.065), STEEL),
        ),
        joint=Joint("microjoint", "hinge", (0.0, 0.0, 1.0), (-2.094, 0.0), damping=0.5),
        mass=0.26,
        inertia=0.006,  # a plate of 0.26 kg and 26 cm about its edge
        at=(-0.1725, -0.088, 0.096),
    )
    regions = (
        Region("top_side", (0.0, 0.01, 0.2), (0.12, 0.0835, 0.005)),
        Region("heating_region", (0.0, 0.01, 0.096), (0.12, 0.0835, 0.08)),
    )
    return Thing(
        "microwave",
        ThingPart("object", shell, regions, parts=(door,)),
        mass=3.0,
        bottom=-0.06,
        top=0.06,
        radius=0.015,
    )


def stove() -> Thing:
    """A hot plate of 19 cm and, beside it, the knob that turns it on."""
    plate = (
        block((-0.095, -0.095, -0.02), (0.095, 0.095, 0.0255), BLACK),
        Solid("cylinder", (0.07, 0.0004), (0.0, 0.0, 0.0257), STEEL, collides=False),
    )
    burner = ThingPart(
        "burner",
        solids=plate,
        regions=(Region("cook_region", (0.0, 0.0, 0.0), (0.075, 0.075, 0.0025)),),
        at=(0.15, 0.0, 0.0),
        lamps=(Lamp("burner", (0.0, 0.0, 0.0265), 0.0625, RED),),
    )
    knob = ThingPart(
        "button",
        solids=(
            upright(0.045, 0.0004, 0.0128, STEEL),
            box((0.009, 0.04, 0.0125), (0.0, 0.0, 0.0253), WHITE),
        ),
        joint=Joint("button", "hinge", (0.0, 0.0, 1.0), (-0.005, 2.1), damping=1.0),
        mass=3.0,
        inertia=1.0,
        turned=(math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)),
    )
    return Thing(
        "flat_stove",
        ThingPart("object", parts=(ThingPart("base", parts=(burner, knob)),)),
        mass=1.5,
        bottom=-0.045,
        top=0.045,
        radius=0.045,
    )


def wine_rack() -> Thing:
    """A sloping plank with a lip at its lower edge, on which a bottle lies along x; a second one
    below, and feet.
    """
    slope = (math.cos(RACK_TILT / 2), math.sin(RACK_TILT / 2), 0.0, 0.0)
    along, across = math.cos(RACK_TILT), math.sin(RACK_TILT)

    def shelf(y: float, z: float) -> list[Solid]:
        # The lip stands on the plank's lower edge, square to it.
        edge = (0.0, y - 0.0780 * along - 0.0132 * across, z - 0.0780 * across + 0.0132 * along)
        return [
            box((0.1344, 0.0789, 0.0045), (0.0, y, z), WOOD, turned=slope),
            box((0.1322, 0.0015, 0.0087), edge, WOOD, turned=slope),
        ]

    solids = [
        *shelf(-0.0061, 0.2512),
        block((-0.13, 0.004, 0.0), (-0.115, 0.018, 0.245), WOOD),
        block((0.115, 0.004, 0.0), (0.13, 0.018, 0.245), WOOD),
        block((-0.13, -0.12, -0.0022), (-0.115, 0.129, 0.0111), WOOD),
        block((0.115, -0.12, -0.0022), (0.13, 0.129, 0.0111), WOOD),
    ]
    tilted = (
        math.cos(math.radians(31.3)),
        -math.sin(math.radians(31.3)),
        0.0,
        0.0,
    )  # its z axis runs up the plank
    region = Region("top_region", (0.0, -0.08, 0.2174), (0.1009, 0.022, 0.0025), tilted)
    return single("wine_rack", solids, mass=1.0, regions=[region])


def shelf() -> Thing:
    """Two compartments, one above the other, open to the front; the lower is on the table."""
    solids = [
        block((-0.1609, -0.0792, 0.0002), (-0.1467, 0.1071, 0.2061), WOOD),
        block((0.1560, -0.0792, 0.0002), (0.1702, 0.1071, 0.2061), WOOD),
        block((-0.1609, 0.1071, 0.0002), (0.1702, 0.1117, 0.2061), WOOD),
        block((-0.1467, -0.0707, 0.0684), (0.1560, 0.1071, 0.0716), WOOD),
        block((-0.1706, -0.0787, 0.2061), (0.1806, 0.1115, 0.2103), WOOD),
    ]
    regions = [
        Region("top_side", (0.00499, 0.01567, 0.20685), (0.17562, 0.09438, 0.00147)),
        Region("top_region", (0.0054, 0.0169, 0.1367), (0.1509, 0.0856, 0.0674)),
        Region("bottom_region", (0.0056, 0.0169, 0.0141), (0.1558, 0.0856, 0.0353)),
    ]
    return single("wooden_two_layer_shelf", solids, mass=2.0, regions=regions)


def desk_caddy() -> Thing:
    """Four compartments for books: left and right over the whole depth, and one behind the other in
    the middle.
    """
    solids = [
        block((-0.0755, -0.2169, 0.0014), (0.0755, 0.2169, 0.0138), WOOD),
        *(
            block((-0.0755, y - 0.0035, 0.0138), (0.0755, y + 0.0035, 0.13), WOOD)
            for y in (-0.2130, -0.0700, 0.0700, 0.2130)
        ),
        block((0.0668, -0.2095, 0.0138), (0.0755, 0.2095, 0.13), WOOD),
        block((-0.0755, -0.2095, 0.0138), (-0.0668, 0.2095, 0.07), WOOD),
        block((-0.0036, -0.0665, 0.0138), (0.0024, 0.0665, 0.1), WOOD),
        # raised: the region behind begins 1.5 cm above the origin
        block((0.0024, -0.0665, 0.0138), (0.0668, 0.0665, 0.03), WOOD),
    ]
    regions = [
        Region("right_contain_region", (0.0063, -0.1434, 0.0656), (0.062, 0.0622, 0.0605)),
        Region("left_contain_region", (0.0063, 0.1455, 0.0656), (0.062, 0.0622, 0.0605)),
        Region("back_contain_region", (0.0336, -0.0006, 0.0856), (0.0278, 0.0622, 0.0605)),
        Region("front_contain_region", (-0.031, -0.0006, 0.0405), (0.0278, 0.0622, 0.036)),
    ]
    return single("desk_caddy", solids, mass=1.5, regions=regions)


ARTICULATED_FIXTURES: tuple[Thing, ...] = (
    cabinet("wooden_cabinet", (0.5, 0.32, 0.17), STEEL),
    cabinet("white_cabinet", WHITE, BLACK),
    microwave(),
    stove(),
)
TURBOSQUID_FIXTURES: tuple[Thing, ...] = (wine_rack(), shelf(), desk_caddy())
