"""All 130 tasks on stand-ins: initial states settle, and every goal is reached when objects are
placed as it requires.

Slow: 130 models, about ten minutes on an idle core. In parts:

    # every task from its first state
    pytest -m slow tests/envs/libero/test_libero_all_tasks.py -k "goal_can_be_reached"
    # of one suite
    pytest -m slow tests/envs/libero/test_libero_all_tasks.py -k "goal_can_be_reached and object"
    # three more states of every task
    pytest -m slow tests/envs/libero/test_libero_all_tasks.py -k "drawn_states"

All 6,500 states: `python -m benchmarks.libero_states`, which goes on where it was cut off.
"""

import random

import pytest

from benchmarks.libero_states import SETTLED, left_speed
from envs.libero.initial_states import STATES
from envs.libero.suites import STEP_LIMITS, choose_tasks
from tests.envs.libero.placing import fulfil_goal

DRAWN = 3  # states of each task
TASKS = choose_tasks("+".join(STEP_LIMITS), None)
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.suite}/{task.number}")


@pytest.fixture(scope="module")
def built(stand_ins):
    """Simulators by task; only the last one is kept, because 130 take 13 GB."""
    from envs.libero.folders import import_libero

    import_libero()
    from envs.libero.libero_simulator import LiberoSimulator

    kept = {}

    def build(task):
        if task.name not in kept:
            kept.clear()
            kept[task.name] = LiberoSimulator(task, stand_ins)
        return kept[task.name]

    return build


@pytest.mark.slow
@each_task
def test_first_state_settles_and_the_goal_can_be_reached(task, built):
    simulator = built(task)
    assert left_speed(simulator, 0) < SETTLED
    simulator.reset(0)
    assert fulfil_goal(simulator)


@pytest.mark.slow
@each_task
def test_drawn_states_settle(task, built):
    drawn = random.Random(task.name).sample(range(1, STATES), DRAWN)
    speeds = {state: left_speed(built(task), state) for state in drawn}
    assert {
        state: speed for state, speed in speeds.items() if speed is None or speed >= SETTLED
    } == {}
