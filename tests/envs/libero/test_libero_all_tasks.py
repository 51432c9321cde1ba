"""All 130 tasks on stand-ins: every initial state settles, and every goal is reached when things are put where it wants them.

Slow: 130 models and 65,000 control steps, about fifteen minutes on one core.
"""

import pytest

from envs.libero.suites import STEP_LIMITS, choose_tasks
from tests.envs.libero.placing import fulfil_goal, object_speed

SETTLED = 0.05  # metres or radians a second, after the benchmark's ten settling steps
TASKS = choose_tasks("+".join(STEP_LIMITS), None)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.suite}/{task.number}")
def test_every_state_settles_and_the_goal_can_be_reached(task, stand_ins):
    from envs.libero.folders import import_libero

    import_libero()
    from envs.libero.simulator import TaskSimulator

    simulator = TaskSimulator(task, stand_ins)
    speeds = {}
    for number in range(len(simulator.states)):
        simulator.reset(number)
        speeds[number] = object_speed(simulator)
        simulator.step([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
    assert max(speeds.values()) < SETTLED, {number: speed for number, speed in speeds.items() if speed >= SETTLED}
    simulator.reset(0)
    assert fulfil_goal(simulator)
