"""Initial states in which two objects overlap, on stand-ins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.libero_states import SETTLED, left_speed

PLACES = st.floats(-0.06, 0.06, allow_subnormal=False)


@pytest.mark.parametrize(
    ("suite", "number", "state", "things"),
    [
        (
            "spatial",
            0,
            18,
            ("akita_black_bowl_1", "plate_1"),
        ),  # a bowl stood in the plate's rim; both flew off the table at 7 m/s
        ("spatial", 0, 27, ("akita_black_bowl_1", "plate_1")),
        (
            "90",
            4,
            5,
            ("akita_black_bowl_1", "chocolate_pudding_1"),
        ),  # so deep in its side that the shortest way out is up
    ],
)
def test_state_whose_things_overlap_settles_near_where_its_file_has_it(
    make_simulator, suite, number, state, things
):
    simulator = make_simulator(suite, number)
    assert left_speed(simulator, state) < SETTLED
    simulator.reset(state)
    wanted = simulator.states[state][1 : 1 + simulator.model.nq]
    for name in things:
        joint = simulator.model.joint(simulator.env.objects_dict[name].joints[-1])
        place = slice(joint.qposadr[0], joint.qposadr[0] + 2)
        assert np.abs(simulator.data.qpos[place] - wanted[place]).max() < 0.012  # metres


def test_state_without_overlap_is_what_its_file_says(make_simulator):
    from envs.libero.overlaps import part_objects

    simulator = make_simulator("spatial", 0)
    simulator.set_state(simulator.states[0])
    before = simulator.data.qpos.copy()
    assert not part_objects(simulator.model, simulator.data)
    assert np.array_equal(simulator.data.qpos, before)


CAN = '<body pos="{} {} {}"><freejoint/><geom type="cylinder" size="0.02 0.03"/></body>'


def scene(*bodies):
    import mujoco

    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody>{''.join(bodies)}</worldbody></mujoco>"
    )
    return model, mujoco.MjData(model)


@settings(max_examples=40, deadline=None)
@given(
    places=st.lists(
        st.tuples(PLACES, PLACES),
        min_size=2,
        max_size=4,
        unique_by=lambda place: (round(place[0], 3), round(place[1], 3)),
    )
)
def test_things_are_parted_level_and_nothing_else_changes(places):
    from envs.libero.overlaps import TOUCHING_M, part_objects

    model, data = scene(*(CAN.format(x, y, 0.03 + 0.001 * i) for i, (x, y) in enumerate(places)))
    data.qvel[:] = 0.25
    begun = data.qpos.copy().reshape(-1, 7)
    overlap = max(
        0.04 - np.hypot(x1 - x2, y1 - y2)
        for i, (x1, y1) in enumerate(places)
        for x2, y2 in places[:i]
    )
    assert part_objects(model, data) == (overlap > TOUCHING_M)
    now = data.qpos.reshape(-1, 7)
    assert all(
        np.hypot(*(now[i, :2] - now[j, :2])) > 0.04 - TOUCHING_M - 1e-9
        for i in range(len(now))
        for j in range(i)
    )
    assert np.array_equal(now[:, 2:], begun[:, 2:])
    assert (data.qvel == 0.25).all()


@pytest.mark.parametrize("aside", [0.0, 0.005, 0.015])
def test_thing_that_lies_on_another_stays_where_it_is(aside):
    """A can of 6 cm on another, a millimetre deep in it."""
    from envs.libero.overlaps import part_objects

    model, data = scene(CAN.format(0.0, 0.0, 0.03), CAN.format(aside, 0.0, 0.089))
    begun = data.qpos.copy()
    assert not part_objects(model, data)
    assert np.array_equal(data.qpos, begun)


@pytest.mark.parametrize("aside", [0.0, 0.01])
def test_bowl_that_lies_in_a_plate_stays_in_it(make_simulator, aside):
    """Its bottom is 0.8 mm deep in the plate's, which is 5 mm thick."""
    from envs.libero.overlaps import part_objects

    simulator = make_simulator("spatial", 0)
    simulator.set_state(simulator.states[0])
    bowl, plate = (
        simulator.model.joint(simulator.env.objects_dict[name].joints[-1]).qposadr[0]
        for name in ("akita_black_bowl_1", "plate_1")
    )
    simulator.data.qpos[bowl : bowl + 3] = simulator.data.qpos[plate : plate + 3] + np.array(
        [aside, 0.0, 0.0009]
    )
    begun = simulator.data.qpos.copy()
    assert not part_objects(simulator.model, simulator.data)
    assert np.array_equal(simulator.data.qpos, begun)


@pytest.mark.parametrize("height", [0.031, 0.06])
def test_things_in_one_another_are_parted_where_one_is_exactly_above_the_other(height):
    from envs.libero.overlaps import TOUCHING_M, part_objects

    model, data = scene(CAN.format(0.0, 0.0, 0.03), CAN.format(0.0, 0.0, height))
    assert part_objects(model, data)
    now = data.qpos.reshape(-1, 7)
    assert np.hypot(*(now[0, :2] - now[1, :2])) > 0.04 - TOUCHING_M


def test_thing_in_a_fixtures_side_leaves_by_that_side_and_one_sunk_into_its_top_stays():
    from envs.libero.overlaps import GAP_M, part_objects

    drawer = '<body pos="0 0 0.03"><joint type="slide" axis="1 0 0"/><geom type="box" size="0.1 0.1 0.03"/></body>'
    model, data = scene(drawer, CAN.format(0.115, 0.0, 0.03), CAN.format(0.0, 0.0, 0.087))
    begun = data.qpos.copy()
    assert part_objects(model, data)
    # of the drawer 1, of each can 7
    assert np.allclose(data.qpos - begun, [0, 0.005 + GAP_M] + [0] * 13, atol=1e-4)
