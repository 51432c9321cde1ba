"""The scripted expert: its grasps, and goals of every supported kind, from true poses alone."""

import asyncio

import numpy as np
import pytest

from envs.libero.expert.script import expert, in_order, is_time, play
from envs.libero.libero_env import LiberoEnv


@pytest.fixture(scope="module")
def modules(make_simulator):
    """The expert's modules, which import MuJoCo and so need LIBERO to be imported first."""
    from envs.libero import scene
    from envs.libero.expert import grasps, motion

    return grasps, motion, scene


def test_lower_one_of_a_stack_has_its_place_first():
    upper, lower, third = (
        ("on", "bowl_1", "bowl_2"),
        ("in", "bowl_2", "tray_contain"),
        ("on", "bowl_3", "bowl_1"),
    )
    assert in_order([third, upper, lower], {"tray_contain": "tray"}) == [lower, upper, third]


def test_vessel_has_its_place_before_what_goes_into_its_region():
    cup, tray = ("in", "cup", "tray_contain"), ("on", "tray", "table_left")
    assert in_order([cup, tray], {"tray_contain": "tray", "table_left": None}) == [tray, cup]


def test_drawer_is_opened_before_and_closed_after_something_is_put_in():
    close, put, turn = (
        ("close", "drawer_region"),
        ("in", "bowl", "drawer_region"),
        ("turnon", "stove"),
    )
    assert in_order([close, put, turn], {"drawer_region": "cabinet"}) == [turn, put, close]


def test_drawer_that_stays_empty_is_closed_before_one_above_it_is_opened():
    close, pull = ("close", "cabinet_bottom_region"), ("open", "cabinet_top_region")
    assert in_order([pull, close], {}) == [close, pull]


@pytest.mark.parametrize(
    ("suite", "number", "limit"),
    [
        ("object", 1, 150),  # a flat box that stands close to others: taken where the hand has room
        ("goal", 7, 100),  # a knob is turned
        ("goal", 0, 150),  # a drawer is pulled open
        ("90", 22, 150),  # the lowest drawer is pushed shut, below the handles of two others
        ("10", 1, 300),  # a packet behind a carton, which the hand passes over
        ("10", 8, 350),  # two pots on one stove
        ("goal", 3, 250),  # a bowl that stands below the drawer that is opened for it
    ],
)
def test_goal_is_reached_from_a_training_state(make_simulator, suite, number, limit):
    steps = play(make_simulator(suite, number), state=0)
    assert steps is not None
    assert steps < limit


def test_drawer_is_not_closed_before_its_bowl_is_in_it(make_simulator):
    """So that a bowl that slipped from the fingers can be put in with the next attempt."""
    simulator = make_simulator("10", 3)
    simulator.reset(0)
    close, put = in_order(simulator.env.parsed_problem["goal_state"], {})[::-1]
    assert (close[0], put[0]) == ("close", "in")
    assert not is_time(simulator, close, before=[put])
    assert is_time(simulator, put, before=[])
    assert is_time(simulator, close, before=[])


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
    # the tips just above the floor
    assert found.point[2] == pytest.approx(simulator.data.xpos[body][2] + 0.003, abs=0.002)


def test_hand_over_free_ground_is_obstructed_by_nothing_and_by_a_can_in_its_palm(
    make_simulator, modules
):
    grasps, _, scene = modules
    simulator = make_simulator("object", 0)
    simulator.reset(0)
    can = scene.object_body(simulator, "alphabet_soup_1")
    top = scene.BoundingBox(simulator, can).top
    at = simulator.data.xpos[can]
    inside = grasps.Grasp(np.array([at[0], at[1], top - 0.06]), 0.0)
    beside = grasps.Grasp(np.array([at[0] + 1.0, at[1], top - 0.06]), 0.0)
    assert grasps.obstruction(simulator, beside, [can]) == 0.0
    # cubic metres: 1.5 cm of the can's top in the palm, and the fingers
    assert grasps.obstruction(simulator, inside, [can]) > 1e-5


def test_action_keeps_the_direction_of_a_long_way(modules):
    _, motion, _ = modules
    action = motion.action(np.array([4.0, 2.0, 0.0]), np.array([3.0, 0.0, -3.0]), motion.CLOSED)
    assert action.tolist() == [1.0, 0.5, 0.0, 1.0, 0.0, -1.0, 1.0]


def test_microwave_is_a_cave_that_opens_to_its_front(make_simulator, modules):
    from envs.libero.expert.insert import cave

    _, _, scene = modules
    simulator = make_simulator("10", 9)
    simulator.reset(0)
    base = simulator.data.xpos[scene.object_body(simulator, "microwave_1")]
    found = cave(simulator, "microwave_1_heating_region")
    assert found is not None
    assert found.outwards == pytest.approx([0.0, -1.0, 0.0])
    # the front of its shell, measured outwards
    assert found.edge == pytest.approx(0.088 - base[1], abs=1e-4)
    # between its inner walls
    assert found.middle[0] == pytest.approx(base[0] + (-0.1435 + 0.0635) / 2, abs=1e-4)
    assert found.floor == pytest.approx(base[2] + 0.024, abs=1e-4)


@pytest.mark.parametrize(
    ("suite", "number", "region"),
    [("object", 0, "basket_1_contain_region"), ("goal", 3, "wooden_cabinet_1_top_region")],
)
def test_anything_open_at_its_top_or_nowhere_is_not_a_cave(make_simulator, suite, number, region):
    """A basket, and a drawer that is shut."""
    from envs.libero.expert.insert import cave

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
    # From the cup's outside, 3.4 cm from the origin, a finger's half width and the slack; the
    # handle ends at 6.8 cm.
    assert along == pytest.approx(-0.0185 + 0.052 + 0.012 + 0.006, abs=2e-3)
    # to the far side of the cup
    assert held.depth == pytest.approx(along + 0.0185 + 0.052, abs=2e-3)
    assert 0.02 < height < 0.0825  # of the handle's 2.1 to 8.2 cm


def test_plate_is_drawn_over_the_table_and_a_bowl_is_not(make_simulator):
    from envs.libero.expert.skills import slides

    simulator = make_simulator("goal", 5)
    simulator.reset(0)
    [(_, plate, place)] = simulator.env.parsed_problem["goal_state"]
    assert slides(simulator, plate, place)
    assert not slides(simulator, "akita_black_bowl_1", place)
    assert not slides(simulator, plate, "flat_stove_1_cook_region")


def test_hand_on_its_way_to_a_packet_meets_the_carton_beside_it_and_to_another_packet_nothing(
    make_simulator, modules
):
    from envs.libero.expert.clearance import around_hand, highest_met

    grasps, _, scene = modules
    simulator = make_simulator("10", 1)
    simulator.reset(0)
    hand, _ = scene.gripper_pose(simulator)

    def met(name):
        body = scene.object_body(simulator, name)
        grasp = grasps.grasps(simulator, body)[0]
        others = [other for other in simulator.env.obj_body_id.values() if other != body]
        return highest_met(
            simulator,
            around_hand(simulator),
            hand,
            grasp.point + np.array([0, 0, 0.1]),
            yaw=grasp.yaw,
            bodies=others,
        )

    assert met("cream_cheese_1") == pytest.approx(
        scene.BoundingBox(simulator, scene.object_body(simulator, "milk_1")).top
    )
    assert met("butter_1") is None


def test_second_pot_has_its_place_beside_the_first_and_the_first_in_the_middle(
    make_simulator, modules
):
    import mujoco

    from envs.libero.expert.clearance import free_place

    _, _, scene = modules
    simulator = make_simulator("10", 8)
    simulator.reset(0)
    data = simulator.data
    middle = data.site("flat_stove_1_cook_region").xpos[:2].copy()
    first, second = (
        simulator.env.objects_dict[name].joints[0] for name in ("moka_pot_1", "moka_pot_2")
    )
    hand, _ = scene.gripper_pose(simulator)
    data.joint(second).qpos[:3] = hand - [
        0.0,
        0.085,
        0.056,
    ]  # held by its handle, which is 8.5 cm from its axis
    data.joint(second).qpos[3:] = [1.0, 0.0, 0.0, 0.0]
    body = scene.object_body(simulator, "moka_pot_2")

    def place():
        mujoco.mj_forward(simulator.model, data)
        return free_place(
            simulator, body, "flat_stove_1_cook_region", "flat_stove_1", surface=0.93, yaw=0.0
        )

    assert place() == pytest.approx(middle)
    data.joint(first).qpos[:3] = [*middle, 0.99]
    found = place()
    assert np.linalg.norm(found - middle) > 2 * 0.0405  # the pots' radius
    # and within the region, which is 15 cm square
    assert np.abs(found - middle).max() == pytest.approx(0.85 * 0.075)


def test_hand_that_leans_has_its_palm_behind_its_fingers(modules):
    _, motion, _ = modules
    opening, half = np.array([0.0, 1.0, 0.0]), np.sqrt(0.5)
    closing, _, forwards = motion.leaning(opening, np.pi / 4).T
    # down and towards the drawer that opens along +y
    assert forwards == pytest.approx([0.0, -half, -half])
    assert abs(closing @ [1.0, 0.0, 0.0]) == pytest.approx(1.0)
    assert motion.leaning(opening, 0.0)[:, 2] == pytest.approx([0.0, 0.0, -1.0])
