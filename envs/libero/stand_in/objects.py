"""Stand-ins for the benchmark's 26 movable objects, each of a few primitives.

Figures from the benchmark's assets (github.com/Lifelong-Robot-Learning/LIBERO,
libero/libero/assets, MIT): outer dimensions, height of the origin above the bottom, upward axis,
containing regions, and the three sites that placement uses. Shapes, colours and masses are our own:
colours distinguish the objects named in instructions, and masses are a few times the assets' 2 to
140 grams, because a touch would throw such light objects. Every object to grasp has a part narrower
than the gripper's 8 cm opening: a rim, a handle or the whole thing.
"""

from envs.libero.stand_in.geometry import (
    Colour,
    Region,
    Solid,
    Thing,
    block,
    bowl,
    box,
    lying,
    single,
    tray,
    upright,
)

WHITE: Colour = (0.92, 0.92, 0.9)
BLACK: Colour = (0.1, 0.1, 0.11)
RED: Colour = (0.75, 0.1, 0.08)
YELLOW: Colour = (0.93, 0.78, 0.12)
ORANGE: Colour = (0.95, 0.5, 0.05)
GREEN: Colour = (0.2, 0.5, 0.2)
BLUE: Colour = (0.15, 0.3, 0.7)
BROWN: Colour = (0.36, 0.2, 0.1)
CREAM: Colour = (0.95, 0.9, 0.7)
STEEL: Colour = (0.62, 0.63, 0.65)
WOOD: Colour = (0.68, 0.48, 0.28)
WICKER: Colour = (0.76, 0.6, 0.38)


def can(name: str, body: Colour, label: Colour, *, bottom: float, mass: float = 0.1) -> Thing:
    """A tin of 6.2 cm across; its own upward axis is y."""
    band = Solid(
        "cylinder",
        (0.0312, 0.022),
        (0.0, -0.0005, 0.0),
        label,
        lying(0.031, 0.0, 1.0, label).turned,
        collides=False,
    )
    return single(
        name, [lying(0.031, -0.0386, 0.0376, body), band], mass=mass, bottom=bottom, top=0.04
    )


def packet(
    name: str,
    half: tuple[float, float, float],
    colour: Colour,
    stripe: Colour,
    *,
    z: float = 0.0,
    bottom: float = -0.06,
    top: float = 0.04,
    radius: float = 0.025,
) -> Thing:
    """A flat box with a stripe on top."""
    paint = box(
        (half[0] * 0.6, half[1] * 0.5, 0.0003), (0.0, 0.0, z + half[2]), stripe, collides=False
    )
    return single(
        name,
        [box(half, (0.0, 0.0, z), colour), paint],
        mass=0.06,
        bottom=bottom,
        top=top,
        radius=radius,
    )


def bottle(
    name: str,
    body: Colour,
    cap: Colour,
    *,
    half_x: float,
    half_z: float,
    low: float,
    shoulder: float,
    high: float,
) -> Thing:
    """A flat bottle with a cap; its own upward axis is y."""
    return single(
        name,
        [
            block((-half_x, low, -half_z), (half_x, shoulder, half_z), body),
            lying(0.011, shoulder, high, cap),
        ],
        mass=0.1,
    )


def carton(name: str, colour: Colour, roof: Colour, *, radius: float) -> Thing:
    """A drinks carton with a gable; its own upward axis is y."""
    solids = [
        block((-0.0265, -0.0698, -0.0263), (0.0265, 0.04, 0.0263), colour),
        block((-0.0265, 0.04, -0.008), (0.0265, 0.0614, 0.008), roof),
    ]
    return single(name, solids, mass=0.1, radius=radius)


def mug(
    name: str,
    colour: Colour,
    band: Colour,
    *,
    low: float,
    high: float,
    cup_x: float,
    cup: float,
    handle_x: float,
) -> Thing:
    """A cup whose axis stands at `cup_x`, with a flat handle that reaches to `handle_x`."""
    side = 1.0 if handle_x > cup_x else -1.0
    wall = cup_x + side * (cup - 0.004)
    half = (abs(handle_x - wall) / 2, 0.006, (high - low) * 0.3)
    handle = box(half, ((wall + handle_x) / 2, 0.0, (low + high) / 2), band)
    vessel = bowl(
        low=low, high=high, foot=cup * 0.9, rim=cup, thickness=0.005, colour=colour, x=cup_x
    )
    return single(name, [*vessel, handle], mass=0.12)


def book(
    name: str, cover: Colour, *, low: tuple[float, float, float], high: tuple[float, float, float]
) -> Thing:
    """A book standing on its edge, with its spine at one side."""
    pages = block(
        (low[0] + 0.002, low[1] + 0.004, high[2] - 0.0005),
        (high[0] - 0.002, high[1], high[2] + 0.0003),
        WHITE,
    )
    return single(
        name,
        [block(low, high, cover), Solid("box", pages.size, pages.at, WHITE, collides=False)],
        mass=0.12,
    )


def frying_pan() -> Thing:
    """A pan of 20 cm with a handle of 16 cm along x."""
    solids = bowl(
        low=0.0008, high=0.04, foot=0.082, rim=0.098, thickness=0.005, colour=BLACK, sides=16
    )
    return single(
        "chefmate_8_frypan",
        [*solids, block((0.093, -0.011, 0.03), (0.2593, 0.011, 0.046), BROWN)],
        mass=0.2,
    )


def moka_pot() -> Thing:
    """An octagonal coffee pot with a handle along +y and a spout along -y."""
    solids = [
        upright(0.0405, -0.0661, -0.002, STEEL),
        upright(0.03, -0.002, 0.006, STEEL),
        upright(0.036, 0.006, 0.066, STEEL),
        upright(0.007, 0.066, 0.0857, BLACK),
        block((-0.0066, 0.034, 0.05), (0.0066, 0.0912, 0.062), BLACK),
        block((-0.0066, 0.078, -0.01), (0.0066, 0.0912, 0.05), BLACK),
        block((-0.01, -0.0563, 0.05), (0.01, -0.034, 0.064), STEEL),
    ]
    return single("moka_pot", solids, mass=0.2)


def basket() -> Thing:
    """An open square basket of 17 cm."""
    solids = tray(
        (-0.0841, -0.0785, 0.0042), (0.0841, 0.0785, 0.1457), thickness=0.01, colour=WICKER
    )
    region = Region("contain_region", (0.0, 0.0, 0.0718), (0.0611, 0.0611, 0.0695))
    return single("basket", solids, mass=0.3, regions=[region])


def wooden_tray() -> Thing:
    """An open tray of 30 by 17 cm."""
    solids = tray(
        (-0.1416, -0.0876, -0.001), (0.1556, 0.0789, 0.0809), thickness=0.007, colour=WOOD
    )
    region = Region("contain_region", (0.0086, -0.0047, 0.0426), (0.1355, 0.0784, 0.0404))
    return single("wooden_tray", solids, mass=0.3, regions=[region])


def plate() -> Thing:
    """A round plate of 14 cm with a raised rim."""
    solids = bowl(
        low=-0.0025, high=0.0164, foot=0.048, rim=0.069, thickness=0.005, colour=WHITE, sides=16
    )
    ring = Solid("cylinder", (0.04, 0.0002), (0.0, 0.0, 0.0026), RED, collides=False)
    return single("plate", [*solids, ring], mass=0.15)


HOPE_OBJECTS: tuple[Thing, ...] = (
    can("alphabet_soup", RED, WHITE, bottom=-0.04),
    can("tomato_sauce", RED, GREEN, bottom=-0.06),
    single(
        "bbq_sauce",
        [
            box((0.0235, 0.0146, 0.0425), (0.0, 0.0, -0.0121), BROWN),
            upright(0.011, 0.0304, 0.0525, RED),
        ],
        mass=0.08,
        top=0.06,
        radius=0.015,
    ),
    packet("butter", (0.0381, 0.0198, 0.0087), YELLOW, WHITE, bottom=-0.02, top=0.02, radius=0.02),
    packet("chocolate_pudding", (0.0401, 0.0232, 0.0137), BROWN, CREAM, z=0.0006),
    packet("cookies", (0.031, 0.0413, 0.0094), BLUE, YELLOW),
    packet(
        "cream_cheese", (0.0406, 0.0213, 0.0089), WHITE, BLUE, bottom=-0.025, top=0.025, radius=0.03
    ),
    bottle(
        "ketchup",
        RED,
        WHITE,
        half_x=0.0282,
        half_z=0.0182,
        low=-0.0724,
        shoulder=0.045,
        high=0.0732,
    ),
    carton("milk", WHITE, BLUE, radius=0.03),
    carton("orange_juice", ORANGE, GREEN, radius=0.025),
    bottle(
        "salad_dressing",
        CREAM,
        GREEN,
        half_x=0.0264,
        half_z=0.0178,
        low=-0.0727,
        shoulder=0.03,
        high=0.0728,
    ),
    bottle(
        "new_salad_dressing",
        CREAM,
        GREEN,
        half_x=0.0264,
        half_z=0.0178,
        low=-0.0227,
        shoulder=0.08,
        high=0.1228,
    ),
)
SCANNED_OBJECTS: tuple[Thing, ...] = (
    single(
        "akita_black_bowl",
        bowl(low=0.0016, high=0.0521, foot=0.032, rim=0.0538, thickness=0.004, colour=BLACK),
        mass=0.08,
    ),
    single(
        "white_bowl",
        bowl(low=0.0006, high=0.0351, foot=0.026, rim=0.0408, thickness=0.004, colour=WHITE),
        mass=0.06,
    ),
    single(
        "glazed_rim_porcelain_ramekin",
        bowl(low=0.0007, high=0.0427, foot=0.037, rim=0.0447, thickness=0.004, colour=CREAM),
        mass=0.08,
    ),
    basket(),
    plate(),
    frying_pan(),
)
TURBOSQUID_OBJECTS: tuple[Thing, ...] = (
    book("black_book", BLACK, low=(-0.0148, -0.0673, 0.0022), high=(0.0139, 0.043, 0.1366)),
    book("yellow_book", YELLOW, low=(-0.0101, -0.0488, 0.002), high=(0.0134, 0.0489, 0.1242)),
    moka_pot(),
    mug(
        "porcelain_mug",
        WHITE,
        WHITE,
        low=0.0024,
        high=0.1085,
        cup_x=0.0148,
        cup=0.0445,
        handle_x=-0.0647,
    ),
    mug(
        "red_coffee_mug",
        RED,
        RED,
        low=-0.0018,
        high=0.1308,
        cup_x=-0.0155,
        cup=0.0445,
        handle_x=0.0622,
    ),
    mug(
        "white_yellow_mug",
        WHITE,
        YELLOW,
        low=-0.0001,
        high=0.1031,
        cup_x=-0.0185,
        cup=0.052,
        handle_x=0.0684,
    ),
    single(
        "wine_bottle",
        [upright(0.0215, 0.0011, 0.1, GREEN), upright(0.009, 0.1, 0.158, RED)],
        mass=0.12,
    ),
    wooden_tray(),
)
