"""The distance to a LIBERO goal, which oracles and benchmarks read: it falls along an expert's
episode to 0, and is reported where every task of an environment has one.
"""

import asyncio

import numpy as np
import pytest
from scipy.stats import spearmanr

from envs.libero.expert.script import pursue_goal
from envs.libero.libero_env import LiberoEnv
from envs.libero.suites import suite_tasks


def expert_distances(simulator):
    from envs.libero.goal_distance import goal_distance

    simulator.reset(0)
    plan, distances = pursue_goal(simulator), [goal_distance(simulator)]
    for _ in range(simulator.task.step_limit):
        success = simulator.step(next(plan))
        distances.append(goal_distance(simulator))
        if success:
            return distances
    raise AssertionError(f"The expert of {simulator.task.name} failed.")


@pytest.mark.parametrize(
    ("suite", "number", "least"),
    [
        ("object", 0, 0.9),
        ("spatial", 2, 0.9),
        ("10", 1, 0.9),  # two boxes into a basket
    ],
)
def test_distance_falls_to_zero_along_an_experts_episode(make_simulator, suite, number, least):
    distances = expert_distances(make_simulator(suite, number))
    assert distances[-1] == 0.0
    assert min(distances[:-1]) > 0.0
    assert 0.3 < distances[0] < 2.0  # metres
    assert spearmanr(np.arange(len(distances)), -np.array(distances))[0] > least


def test_distance_is_that_from_the_fingers_to_the_object_and_on_to_its_place(make_simulator):
    from envs.libero.goal_distance import goal_distance

    simulator = make_simulator("object", 0)
    simulator.reset(0)
    fingers = simulator.data.site_xpos[simulator.robot.eef_site_id]
    thing = simulator.data.body("alphabet_soup_1_main").xpos
    place = simulator.data.site("basket_1_contain_region").xpos
    legs = np.linalg.norm(thing - fingers) + np.linalg.norm(place - thing)
    assert goal_distance(simulator) == pytest.approx(legs)


def test_tasks_that_only_place_objects_are_told_from_their_definitions():
    by_suite = {
        suite: [task.number for task in suite_tasks(suite) if not task.only_places]
        for suite in ("spatial", "object", "goal", "10")
    }
    assert by_suite == {"spatial": [], "object": [], "goal": [0, 7], "10": [2, 3, 8, 9]}


@pytest.mark.parametrize(("tasks", "known"), [([1], True), ([1, 7], False)])
def test_distance_is_in_infos_only_if_all_tasks_of_the_environment_have_one(
    stand_ins, tasks, known
):
    env = LiberoEnv(suite="goal", tasks=tasks, assets="stand_in", image_size=8, camera="agentview")
    task = env.spec.tasks[0]

    async def infos():
        _, first = await env.reset(seed=0, options={"task": task})
        *_, second = await env.step(np.zeros(7, np.float32))
        return first, second

    found = ["oracle_distance" in info for info in asyncio.run(infos())]
    asyncio.run(env.close())
    assert env.spec.tasks_with_distance == (task,)
    assert found == [known, known]
