"""Initial states in which one thing begins inside another, on stand-ins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.libero_states import SETTLED, left_speed

PLACES = st.floats(-0.06, 0.06, allow_subnormal=False)


@pytest.mark.parametrize("state", [18, 27])  # a bowl stood in the plate's rim; both flew off the table at 7 m/s
def test_state_whose_things_overlap_settles_near_where_its_file_has_it(make_simulator, state):
    simulator = make_simulator("spatial", 0)
    assert left_speed(simulator, state) < SETTLED
    simulator.reset(state)
    wanted = simulator.states[state][1 : 1 + simulator.model.nq]
    for name in ("akita_black_bowl_1", "plate_1"):
        joint = simulator.model.joint(simulator.env.objects_dict[name].joints[-1])
        place = slice(joint.qposadr[0], joint.qposadr[0] + 2)
        assert np.abs(simulator.data.qpos[place] - wanted[place]).max() < 0.01  # metres


def test_state_without_overlap_is_what_its_file_says(make_simulator):
    from envs.libero.overlaps import part_objects

    simulator = make_simulator("spatial", 0)
    simulator.set_state(simulator.states[0])
    before = simulator.data.qpos.copy()
    assert not part_objects(simulator.model, simulator.data)
    assert np.array_equal(simulator.data.qpos, before)


@settings(max_examples=40, deadline=None)
@given(places=st.lists(st.tuples(PLACES, PLACES), min_size=2, max_size=4, unique_by=lambda place: (round(place[0], 3), round(place[1], 3))))
def test_things_are_parted_level_and_nothing_else_moves(places):
    import mujoco

    from envs.libero.overlaps import TOUCHING_M, part_objects

    can = '<body pos="{} {} {}"><freejoint/><geom type="cylinder" size="0.02 0.03"/></body>'
    cans = "".join(can.format(x, y, 0.03 + 0.001 * i) for i, (x, y) in enumerate(places))
    wall = '<body pos="0 0 0.03"><joint type="hinge"/><geom type="box" size="0.05 0.001 0.03"/></body>'  # not free: stays
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{wall}{cans}</worldbody></mujoco>")
    data = mujoco.MjData(model)
    data.qvel[:] = 0.25
    begun = data.qpos.copy()
    moved = part_objects(model, data)
    overlap = max(0.04 - np.hypot(x1 - x2, y1 - y2) for i, (x1, y1) in enumerate(places) for x2, y2 in places[:i])
    assert moved == (overlap > TOUCHING_M)
    free = data.qpos[1:].reshape(-1, 7)
    assert all(np.hypot(*(free[i, :2] - free[j, :2])) > 0.04 - TOUCHING_M - 1e-9 for i in range(len(free)) for j in range(i))
    assert data.qpos[0] == begun[0]
    assert np.array_equal(free[:, 2:], begun[1:].reshape(-1, 7)[:, 2:])
    assert (data.qvel == 0.25).all()
