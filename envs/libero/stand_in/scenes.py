"""Stand-ins for the benchmark's five scenes: floor, walls, lamps and the table, each of a few
primitives, and plain textures.

LIBERO's arenas look for bodies, geoms and textures by name, and place the tables themselves. Those
names, the heights of the two tables that are not placed (living room and study) and the sizes of
table tops come from the benchmark's scene files (github.com/Lifelong-Robot-Learning/LIBERO,
libero/libero/assets/scenes, MIT). Furniture in the background is left out.
"""

from xml.etree import ElementTree as ET

from envs.libero.stand_in.geometry import Colour, Solid, block, geoms, numbers, upright

FLOOR_TEXTURES: dict[str, tuple[Colour, Colour]] = {
    "light-gray-floor-tile.png": ((0.78, 0.78, 0.77), (0.7, 0.7, 0.69)),
    "gray_ceramic_tile.png": ((0.6, 0.6, 0.62), (0.52, 0.52, 0.54)),
    "seamless_wood_planks_floor.png": ((0.62, 0.47, 0.33), (0.54, 0.4, 0.27)),
}
WALL_TEXTURES: dict[str, tuple[Colour, Colour]] = {
    "light-gray-plaster.png": ((0.85, 0.85, 0.84), (0.83, 0.83, 0.82)),
    "yellow_linen_wall_texture.png": ((0.88, 0.82, 0.62), (0.86, 0.8, 0.6)),
}
"""Maps a file name, fixed by LIBERO's table of styles, to the two colours of its pattern."""
TABLE_WOOD: Colour = (0.72, 0.55, 0.38)
DARK_WOOD: Colour = (0.45, 0.3, 0.2)
SEEN = {"group": "1", "contype": "0", "conaffinity": "0"}
LAMP = {
    "diffuse": "0.8 0.8 0.8",
    "specular": "0.3 0.3 0.3",
    "directional": "false",
    "castshadow": "false",
}
LAMPS = (((1.0, 1.0, 4.0), (0.0, -0.15, -1.0)), ((-3.0, -3.0, 4.0), (0.0, -0.15, -1.0)))
# MuJoCo's default stiffness, as in the benchmark's floor. The initial states put bottles 3 cm deep
# into the living room's table. Its own contact, as stiff as the objects', would throw them 60 cm
# into the air, and they would not come down within the settling steps.
TABLE_CONTACT = {"friction": "0.95 0.3 0.1"}
LIVING_ROOM_TOP = 0.4368
STUDY_TOP = 0.8851


def scenes() -> dict[str, str]:
    """File name to MJCF text."""
    return {
        "libero_floor_base_style.xml": _scene(floor_in_body=True),
        "libero_tabletop_base_style.xml": _scene(table=_placed_table()),
        "libero_kitchen_tabletop_base_style.xml": _scene(table=_placed_table()),
        "libero_living_room_tabletop_base_style.xml": _scene(
            table=_fixed_table("living_room_table", _living_room_table()), floor_in_body=True
        ),
        "libero_study_base_style.xml": _scene(table=_fixed_table("study_table", _study_table())),
    }


def _scene(*, table: ET.Element | None = None, floor_in_body: bool = False) -> str:
    model = ET.Element("mujoco", model="scene")
    asset = ET.SubElement(model, "asset")
    for name, file, material in (
        ("texplane", next(iter(FLOOR_TEXTURES)), "floorplane"),
        ("tex-wall", next(iter(WALL_TEXTURES)), "walls_mat"),
    ):
        ET.SubElement(asset, "texture", name=name, type="2d", file=f"../textures/{file}")
        ET.SubElement(
            asset,
            "material",
            name=material,
            texture=name,
            texrepeat="3 3",
            texuniform="true",
            reflectance="0",
            specular="0.2",
        )
    world = ET.SubElement(model, "worldbody")
    ground = ET.SubElement(world, "body", name="floor", pos="0 0 0") if floor_in_body else world
    ET.SubElement(
        ground,
        "geom",
        name="floor",
        type="plane",
        pos="0 0 0",
        size="3 3 0.125",
        condim="3",
        group="1",
        material="floorplane",
    )
    for name, at, half in (
        ("wall_rear_visual", (-2.0, 0.0, 1.5), (0.01, 3.0, 1.5)),
        ("wall_front_visual", (3.0, 0.0, 1.5), (0.01, 3.0, 1.5)),
        ("wall_left_visual", (0.5, 3.0, 1.5), (2.5, 0.01, 1.5)),
        ("wall_right_visual", (0.5, -3.0, 1.5), (2.5, 0.01, 1.5)),
    ):
        ET.SubElement(
            world,
            "geom",
            {
                **SEEN,
                "name": name,
                "type": "box",
                "pos": numbers(at),
                "size": numbers(half),
                "material": "walls_mat",
            },
        )
    if table is not None:
        world.append(table)
    for number, (at, towards) in enumerate(LAMPS, start=1):
        ET.SubElement(
            world,
            "light",
            {**LAMP, "name": f"light{number}", "pos": numbers(at), "dir": numbers(towards)},
        )
    ET.indent(model)
    return ET.tostring(model, encoding="unicode")


def _placed_table() -> ET.Element:
    """The table whose size and height LIBERO sets: it looks for these names."""
    body = ET.Element("body", name="table", pos="0 0 0.4")
    unset = {"pos": "0 0 0", "size": "0.4 0.4 0.4", "type": "box"}
    ET.SubElement(body, "geom", unset, name="table_collision", group="0", friction="1 0.005 0.0001")
    wood = {**SEEN, "rgba": numbers((*TABLE_WOOD, 1.0))}
    ET.SubElement(body, "geom", {**unset, **wood, "name": "table_visual"})
    ET.SubElement(
        body, "site", name="table_top", pos="0 0 0.4", size="0.001 0.001 0.001", rgba="0 0 0 0"
    )
    for leg in range(1, 5):
        ET.SubElement(
            body,
            "geom",
            {
                **wood,
                "name": f"table_leg{leg}_visual",
                "type": "cylinder",
                "pos": "0 0 0",
                "size": "0.05 0.1",
            },
        )
    return body


def _fixed_table(name: str, solids: list[Solid]) -> ET.Element:
    body = ET.Element("body", name=name, pos="0 0 0")
    for solid in solids:
        for attributes in geoms(solid, density=500.0, contact=TABLE_CONTACT):
            ET.SubElement(body, "geom", attributes)
    return body


def _living_room_table() -> list[Solid]:
    return [
        block((-0.82, -0.80, LIVING_ROOM_TOP - 0.024), (0.34, 0.90, LIVING_ROOM_TOP), DARK_WOOD),
        block((-0.69, -0.60, 0.0), (0.19, 0.70, LIVING_ROOM_TOP - 0.024), DARK_WOOD),
    ]


def _study_table() -> list[Solid]:
    legs = [
        upright(0.03, 0.0, STUDY_TOP - 0.07, DARK_WOOD, x=x, y=y)
        for x in (-0.5, 0.5)
        for y in (-0.7, 0.7)
    ]
    return [block((-0.69, -1.39, STUDY_TOP - 0.07), (0.69, 1.39, STUDY_TOP), TABLE_WOOD), *legs]
