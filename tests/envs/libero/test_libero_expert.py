"""The scripted expert: what it grasps, and that it reaches goals of every kind that it can do, from true poses alone."""

import asyncio

import numpy as np
import pytest

from envs.libero.environment import LiberoEnv
from envs.libero.expert import expert, in_order, play


@pytest.fixture(scope="module")
def modules(make_simulator):
    """The expert's modules, which import MuJoCo and so need LIBERO to be imported first."""
    from envs.libero import expert_grasps, expert_motion, scene

    return expert_grasps, expert_motion, scene


def test_lower_one_of_a_stack_has_its_place_first():
    upper, lower, third = ("on", "bowl_1", "bowl_2"), ("in", "bowl_2", "tray_contain"), ("on", "bowl_3", "bowl_1")
    assert in_order([third, upper, lower], {"tray_contain": "tray"}) == [lower, upper, third]


def test_vessel_has_its_place_before_what_goes_into_its_region():
    cup, tray = ("in", "cup", "tray_contain"), ("on", "tray", "table_left")
    assert in_order([cup, tray], {"tray_contain": "tray", "table_left": None}) == [tray, cup]


def test_drawer_is_opened_before_and_closed_after_something_is_put_in():
    close, put, turn = ("close", "drawer_region"), ("in", "bowl", "drawer_region"), ("turnon", "stove")
    assert in_order([close, put, turn], {"drawer_region": "cabinet"}) == [turn, put, close]


@pytest.mark.parametrize(
    ("suite", "number", "limit"),
    [
        ("object", 1, 150),  # a flat box that stands close to others: taken where the hand has room
        ("goal", 7, 100),  # a knob is turned
        ("goal", 0, 150),  # a drawer is pulled open
    ],
)
def test_goal_is_reached_from_a_training_state(make_simulator, suite, number, limit):
    steps = play(make_simulator(suite, number), state=0)
    assert steps is not None
    assert steps < limit


def test_policy_begins_a_new_plan_with_each_episode(stand_ins):
    env = LiberoEnv(tasks=[0], assets="stand_in", image_size=8, camera="agentview")
    [task] = env.spec.tasks
    policy = expert(task)

    async def first_actions():
        await env.reset(seed=0)
        actions = []
        for _ in range(3):
            actions.append(policy(env))
            await env.step(np.clip(actions[-1], -1, 1))
        return actions

    one, other = asyncio.run(first_actions()), asyncio.run(first_actions())
    asyncio.run(env.close())
    assert np.array_equal(one, other)
    assert (one[0].shape, one[0].dtype) == ((7,), np.float32)


def test_fingers_close_across_the_narrow_side_of_a_box(make_simulator, modules):
    grasps, _, scene = modules
    simulator = make_simulator("object", 1)
    simulator.reset(0)
    body = scene.object_body(simulator, "cream_cheese_1")
    found = grasps.grasps(simulator, body)[0]
    fingers = np.array([-np.sin(found.yaw), np.cos(found.yaw), 0.0])
    long_side = simulator.data.xmat[body].reshape(3, 3)[:, 0]  # 8.1 cm, against 4.3 and 1.8
    assert abs(fingers @ long_side) < 0.01
    assert found.point[2] == pytest.approx(simulator.data.xpos[body][2] + 0.003, abs=0.002)  # the tips just above the floor


def test_hand_over_free_ground_is_obstructed_by_nothing_and_by_a_can_in_its_palm(make_simulator, modules):
    grasps, _, scene = modules
    simulator = make_simulator("object", 0)
    simulator.reset(0)
    can = scene.object_body(simulator, "alphabet_soup_1")
    top = scene.Extent(simulator, can).top
    at = simulator.data.xpos[can]
    inside = grasps.Grasp(np.array([at[0], at[1], top - 0.06]), 0.0)
    beside = grasps.Grasp(np.array([at[0] + 1.0, at[1], top - 0.06]), 0.0)
    assert grasps.obstruction(simulator, beside, [can]) == 0.0
    assert grasps.obstruction(simulator, inside, [can]) > 1e-5  # cubic metres: 1.5 cm of the can's top in the palm, and the fingers


def test_action_keeps_the_direction_of_a_long_way(modules):
    _, motion, _ = modules
    action = motion.action(np.array([4.0, 2.0, 0.0]), np.array([3.0, 0.0, -3.0]), motion.CLOSED)
    assert action.tolist() == [1.0, 0.5, 0.0, 1.0, 0.0, -1.0, 1.0]


def test_microwave_is_a_cave_that_opens_to_its_front(make_simulator, modules):
    from envs.libero.expert_insert import cave

    _, _, scene = modules
    simulator = make_simulator("10", 9)
    simulator.reset(0)
    base = simulator.data.xpos[scene.object_body(simulator, "microwave_1")]
    found = cave(simulator, "microwave_1_heating_region")
    assert found is not None
    assert found.outwards == pytest.approx([0.0, -1.0, 0.0])
    assert found.edge == pytest.approx(0.088 - base[1], abs=1e-4)  # the front of its shell, measured outwards
    assert found.middle[0] == pytest.approx(base[0] + (-0.1435 + 0.0635) / 2, abs=1e-4)  # between its inner walls
    assert found.floor == pytest.approx(base[2] + 0.024, abs=1e-4)


@pytest.mark.parametrize(
    ("suite", "number", "region"), [("object", 0, "basket_1_contain_region"), ("goal", 3, "wooden_cabinet_1_top_region")]
)
def test_what_is_open_at_its_top_or_nowhere_is_no_cave(make_simulator, suite, number, region):
    """A basket, and a drawer that is shut."""
    from envs.libero.expert_insert import cave

    simulator = make_simulator(suite, number)
    simulator.reset(0)
    assert cave(simulator, region) is None


def test_mug_is_held_by_its_handle_and_not_beside_it(make_simulator, modules):
    grasps, _, scene = modules
    simulator = make_simulator("10", 9)
    simulator.reset(0)
    body = scene.object_body(simulator, "white_yellow_mug_1")
    held = grasps.by_handle(simulator, body)
    assert held is not None
    axes, origin = simulator.data.xmat[body].reshape(3, 3), simulator.data.xpos[body]
    assert held.away == pytest.approx(axes[:, 0], abs=1e-3)  # the handle's direction
    along, across, height = axes.T @ (held.grasp.point - origin)
    assert across == pytest.approx(0.0, abs=1e-3)
    # From the cup's outside, 3.4 cm from the origin, a finger's half width and the slack; the handle ends at 6.8 cm.
    assert along == pytest.approx(-0.0185 + 0.052 + 0.012 + 0.006, abs=2e-3)
    assert held.depth == pytest.approx(along + 0.0185 + 0.052, abs=2e-3)  # to the far side of the cup
    assert 0.02 < height < 0.0825  # of the handle's 2.1 to 8.2 cm


def test_plate_is_drawn_over_the_table_and_a_bowl_is_not(make_simulator):
    from envs.libero.expert_skills import slides

    simulator = make_simulator("goal", 5)
    simulator.reset(0)
    [(_, plate, place)] = simulator.env.parsed_problem["goal_state"]
    assert slides(simulator, plate, place)
    assert not slides(simulator, "akita_black_bowl_1", place)
    assert not slides(simulator, plate, "flat_stove_1_cook_region")
