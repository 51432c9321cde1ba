"""`env=libero` beside LIBERO's own environment in the published loop: equal bit for bit."""

import asyncio
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest

from envs.base import IMAGES, PROPRIOCEPTION
from envs.libero.expert.script import pursue_goal
from envs.libero.suites import choose_tasks, suite_tasks
from siirl.env_server.pool import EnvPool
from tests.envs.libero.official_loop import OfficialLoop

EPISODES = 3
PLAYED = "goal/7"
# The last one begins with an open drawer.
PLAYED_SLOWLY = [
    *("object/1", "object/6", "goal/0", "goal/1", "spatial/1", "spatial/3", "spatial/7"),
    *("10/5", "10/3"),
]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in PLAYED_SLOWLY]
FOUR_SUITES = choose_tasks("spatial+object+goal+10", None)
EVERY_TASK = [f"{task.suite}/{task.number}" for task in FOUR_SUITES]
SIZE = 32
CHUNK = 8


@pytest.fixture
def official(stand_ins):
    """The official loop by a task's suite and number."""
    made = []

    def make(suite, number, **arguments):
        made.append(OfficialLoop(suite_tasks(suite)[number], stand_ins, **arguments))
        return made[-1]

    yield make
    for loop in made:
        loop.close()


def split(name):
    suite, number = name.split("/")
    return suite, int(number)


def assert_equal(simulator, loop):
    assert np.array_equal(simulator.model.body_pos, loop.model.body_pos)
    assert np.array_equal(simulator.model.body_quat, loop.model.body_quat)
    assert np.array_equal(simulator.data.qpos, loop.data.qpos)
    assert np.array_equal(simulator.data.qvel, loop.data.qvel)
    assert np.array_equal(simulator.proprioception, loop.proprioception)


def test_cabinet_has_its_place_of_each_official_episode(make_simulator):
    """Read off hf-libero 0.1.4's OffScreenRenderEnv after `env.seed(0)` and one to three resets."""
    simulator = make_simulator("goal", 0)
    cabinet = simulator.model.body("wooden_cabinet_1_main").id
    places = {}
    for state in (2, 0, 1):
        simulator.reset(state)
        places[state] = simulator.model.body_pos[cabinet, :2].round(4).tolist()
    assert places == {0: [0.0396, -0.2340], 1: [0.0226, -0.2437], 2: [0.0259, -0.2476]}


def test_fixture_is_loaded_where_its_file_has_it(make_simulator):
    """LIBERO's slide_cabinet.xml: 12.5 cm up, unlike any of the 130 tasks' fixtures."""
    from envs.libero.placements import LoadedFixture

    root = ET.fromstring('<body name="object" pos="0 0 .125"/>')
    fixture = SimpleNamespace(root_body="wooden_cabinet_1_main", get_obj=lambda: root)
    model = make_simulator("goal", 0).model
    loaded = LoadedFixture.of(model, fixture)
    cabinet = model.body("wooden_cabinet_1_main").id
    assert loaded == (cabinet, (0.0, 0.0, 0.125), (1.0, 0.0, 0.0, 0.0))


@pytest.mark.parametrize("name", [PLAYED, *SLOW])
def test_expert_succeeds_on_both_sides_at_the_same_step(name, make_simulator, official):
    simulator, loop = make_simulator(*split(name)), official(*split(name))
    for episode in range(EPISODES):
        loop.begin()
        simulator.reset(episode)
        assert_equal(simulator, loop)
    plan, success = pursue_goal(simulator), False
    for _ in range(simulator.task.step_limit):
        action = next(plan)
        success = simulator.step(action)
        assert loop.step(action) == (float(success), success)
        assert_equal(simulator, loop)
        if success:
            break
    assert success


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_TASK)
def test_first_episodes_of_every_task_begin_as_officially(name, make_simulator, official):
    simulator, loop = make_simulator(*split(name)), official(*split(name))
    for episode in range(EPISODES):
        loop.begin()
        simulator.reset(episode)
        assert np.array_equal(simulator.model.body_pos, loop.model.body_pos)
        assert np.array_equal(simulator.model.body_quat, loop.model.body_quat)


def expert_actions(simulator, state):
    simulator.reset(state)
    plan, actions = pursue_goal(simulator), []
    while not (actions and simulator.step(actions[-1])):
        actions.append(next(plan))
    return actions


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
def test_published_episode_through_the_pool_is_the_official_one(make_simulator, official):
    """Images too, where the renderer leaves nothing out; the second episode is played first."""
    suite, number = "goal", 7  # a stove that glows when it is on
    loop = official(suite, number, image_size=SIZE)
    actions = expert_actions(make_simulator(suite, number), 1)
    chunks = [actions[begin : begin + CHUNK] for begin in range(0, len(actions), CHUNK)]
    arguments = {"suite": suite, "tasks": [number], "assets": "stand_in", "states": "all"}
    arguments |= {"image_size": SIZE, "render_quality": "full"}
    servers = {"num_servers": 1, "cluster": "local", "deadline_s": 600.0}

    async def play():
        async with EnvPool("libero", arguments, **servers) as pool, pool.slot() as slot:
            second, _ = await slot.reset(seed=1)
            results = [await slot.step_chunk(chunk) for chunk in chunks]
            first, _ = await slot.reset(seed=0)
            return first, second, results

    def assert_seen(observation):
        assert np.array_equal(observation[PROPRIOCEPTION], loop.proprioception)
        assert np.array_equal(observation[IMAGES], loop.images)

    first, second, results = asyncio.run(play())
    for observation in (first, second):
        loop.begin()
        assert_seen(observation)
    for chunk, (observation, reward, terminated, _, info) in zip(chunks, results, strict=True):
        theirs = [loop.step(action) for action in chunk]
        assert info["executed"] == len(chunk)
        assert theirs[-1] == (reward, terminated)
        assert_seen(observation)
    assert terminated
