"""The scripted expert: what it grasps, and that it reaches goals of every kind that it can do, from true poses alone."""

import asyncio

import numpy as np
import pytest

from envs.libero.environment import LiberoEnv
from envs.libero.expert import expert, play


@pytest.fixture(scope="module")
def modules(make_simulator):
    """The expert's modules, which import MuJoCo and so need LIBERO to be imported first."""
    from envs.libero import expert_grasps, expert_motion, scene

    return expert_grasps, expert_motion, scene


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
