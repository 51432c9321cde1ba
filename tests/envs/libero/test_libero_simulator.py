"""One task's simulator: LIBERO's own physics, episodes that do not depend on earlier ones,
and simulations that fail.
"""

import numpy as np
import pytest

from envs.base import EpisodeFailed
from envs.libero.suites import LiberoTask, suite_tasks
from tests.envs.libero.official_loop import OfficialLoop
from tests.envs.libero.placing import object_speed

UP = np.array([0.0, 0.0, 0.5, 0.0, 0.0, 0.0, -1.0])
DOWN = np.array([0.0, 0.0, -0.5, 0.0, 0.0, 0.0, 0.0], np.float32)


@pytest.fixture(scope="module")
def simulator(make_simulator):
    return make_simulator("object", 4)


def actions(count, *, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, 7)).astype(np.float32)


# a floor; a table with drawers, a knob and twice the contacts
@pytest.mark.parametrize(("suite", "number"), [("object", 4), ("goal", 7)])
def test_physics_and_proprioception_are_liberos_own_under_random_actions(
    make_simulator, stand_ins, suite, number
):
    simulator, loop = (
        make_simulator(suite, number),
        OfficialLoop(suite_tasks(suite)[number], stand_ins),
    )
    loop.begin()
    simulator.reset(0)
    for action in actions(20) + DOWN:
        loop.step(action)
        simulator.step(action)
        assert np.array_equal(loop.data.qpos, simulator.data.qpos)
        assert np.array_equal(loop.proprioception, simulator.proprioception)
    loop.close()


def test_arm_with_another_controller_is_refused(simulator, monkeypatch):
    from envs.libero.arm_control import ArmControl  # MuJoCo, which looks for OpenGL: after LIBERO

    monkeypatch.setattr(simulator.robot.controller, "impedance_mode", "variable")
    with pytest.raises(
        RuntimeError, match=r"this controller is \('OSC_POSE', 'variable', True, None, None\)"
    ):
        ArmControl(simulator.robot, simulator.model, simulator.data)


def test_fingers_of_another_gripper_are_refused(simulator, monkeypatch):
    from envs.libero.arm_control import ArmControl  # MuJoCo, which looks for OpenGL: after LIBERO

    monkeypatch.setattr(
        simulator.robot.gripper, "__class__", type("Jaco", (type(simulator.robot.gripper),), {})
    )
    with pytest.raises(RuntimeError, match="fingers are robosuite's PandaGripper, not Jaco"):
        ArmControl(simulator.robot, simulator.model, simulator.data)


def test_arm_whose_joints_lie_apart_is_refused(simulator, monkeypatch):
    from envs.libero.arm_control import ArmControl  # MuJoCo, which looks for OpenGL: after LIBERO

    monkeypatch.setattr(simulator.robot.controller, "qvel_index", [0, 1, 2, 4])
    with pytest.raises(
        RuntimeError, match=r"do not lie side by side in this model: \[0, 1, 2, 4\]"
    ):
        ArmControl(simulator.robot, simulator.model, simulator.data)


def test_used_simulator_gives_the_same_episode_as_a_fresh_one(simulator, stand_ins):
    def positions(some):
        some.reset(7)
        return [some.step(action) or some.data.qpos.copy() for action in actions(6, seed=1)]

    fresh = positions(type(simulator)(simulator.task, stand_ins))
    simulator.reset(8)
    [simulator.step(action) for action in actions(6, seed=2)]
    assert np.array_equal(positions(simulator), fresh)  # settles now
    assert np.array_equal(positions(simulator), fresh)  # comes back to the start that it kept


def test_building_leaves_numpys_global_generator_alone(simulator, stand_ins):
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    type(simulator)(simulator.task, stand_ins)
    assert np.random.random() == expected


def test_gripper_opens_while_things_settle_and_closes_with_plus_one(simulator):
    simulator.reset(0)
    opened = simulator.proprioception[6] - simulator.proprioception[7]
    for _ in range(12):
        simulator.step(np.array([0, 0, 0, 0, 0, 0, 1.0]))
    closed = simulator.proprioception[6] - simulator.proprioception[7]
    assert opened > 0.07  # metres between the fingers
    assert closed < 0.01


def test_positive_z_moves_the_gripper_up(simulator):
    simulator.reset(0)
    before = simulator.proprioception
    for _ in range(8):
        simulator.step(UP)
    rise = simulator.proprioception[:3] - before[:3]
    assert rise[2] > 0.03
    assert np.abs(rise[:2]).max() < 0.015


def test_objects_rest_after_settling(simulator):
    simulator.reset(0)
    assert object_speed(simulator) < 0.05


@pytest.mark.parametrize("number", [-1, 50])
def test_state_that_does_not_exist_is_refused(simulator, number):
    with pytest.raises(
        ValueError, match=rf"has no initial state {number}: it has 50, numbered from 0"
    ):
        simulator.reset(number)


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("qpos", np.nan),
        ("qvel", np.nan),
        ("qvel", 1e9),
    ],  # the last is finite, and MuJoCo gives up in the step and starts anew by itself
)
def test_simulation_that_diverges_is_an_error_and_the_next_episode_is_sound(simulator, what, value):
    simulator.reset(2)
    before = simulator.data.qpos.copy()
    getattr(simulator.data, what)[:] = value
    with pytest.raises(EpisodeFailed, match=r"LIBERO task 'pick_up_the_ketchup.*' diverged"):
        simulator.step(UP)
    simulator.reset(2)
    assert np.array_equal(simulator.data.qpos, before)


def test_states_that_do_not_fit_the_model_are_refused(simulator, stand_ins, monkeypatch):
    other = suite_tasks("goal")[0].initial_states
    monkeypatch.setattr(LiberoTask, "initial_states", property(lambda task: other))
    with pytest.raises(
        ValueError,
        match=r"have 79 numbers but its model has 110 \(time, 58 positions, 51 velocities\): the assets in .*Get them by: hf download",
    ):
        type(simulator)(simulator.task, stand_ins)


def test_collision_shapes_are_not_drawn(simulator):
    assert not (simulator.model.geom_group == 0).any()
