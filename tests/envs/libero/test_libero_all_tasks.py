"""All 130 tasks on stand-ins: initial states settle, and every goal is reached when things are put where it wants them.

Slow: 130 models and 65,000 control steps, about fifteen minutes on a core of one's own. In parts:

    pytest -m slow tests/envs/libero/test_libero_all_tasks.py -k "first_state"              # every task from one state
    pytest -m slow tests/envs/libero/test_libero_all_tasks.py -k "first_state and object"   # of one suite
    pytest -m slow tests/envs/libero/test_libero_all_tasks.py -k "states10-19"              # ten states of every task
"""

import pytest

from envs.libero.initial_states import STATES
from envs.libero.suites import STEP_LIMITS, choose_tasks
from tests.envs.libero.placing import fulfil_goal, object_speed

SETTLED = 0.05  # metres or radians a second, after the benchmark's ten settling steps
PART = 10  # states of one test
TASKS = choose_tasks("+".join(STEP_LIMITS), None)
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.suite}/{task.number}")


@pytest.fixture(scope="module")
def built(stand_ins):
    """From task to simulator; only the last one is kept, for 130 take 13 GB."""
    from envs.libero.folders import import_libero

    import_libero()
    from envs.libero.simulator import TaskSimulator

    kept = {}

    def build(task):
        if task.name not in kept:
            kept.clear()
            kept[task.name] = TaskSimulator(task, stand_ins)
        return kept[task.name]

    return build


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_task
def test_first_state_settles_steps_and_the_goal_can_be_reached(task, built):
    simulator = built(task)
    assert speeds(simulator, range(1)) == {}
    simulator.reset(0)
    assert fulfil_goal(simulator)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, STATES, PART), ids=lambda first: f"states{first}-{first + PART - 1}")
@each_task
def test_states_settle_and_step(task, first, built):
    assert speeds(built(task), range(first, first + PART)) == {}


def speeds(simulator, numbers):
    """States after whose settling something still moves, and how fast; each takes a step."""
    found = {}
    for number in numbers:
        simulator.reset(number)
        found[number] = object_speed(simulator)
        simulator.step([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
    return {number: speed for number, speed in found.items() if speed >= SETTLED}
