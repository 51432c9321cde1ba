"""The simulator is Meta-World's own physics, and its episodes depend on the seed alone."""

import hashlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.policies import ENV_POLICY_MAP
from metaworld.types import Task
from scipy.stats import spearmanr

from envs.metaworld.metaworld_simulator import MetaWorldSimulator
from envs.metaworld.suite import INSTRUCTIONS, VERSION_SUFFIX

DEFAULT = ("drawer-open", "door-open", "button-press")
HISTORY = (
    "basketball",
    "hammer",
    "push",
)  # whose Python objects keep more from one episode to the next than the others'
# Experts that lift and step aside before they act: their way to the goal is not a straight one.
DETOURS = {"door-lock": 0.2, "door-unlock": 0.5, "drawer-close": 0.5, "handle-press": 0.3}

# an expert's motion is clipped, as Meta-World does
pytestmark = pytest.mark.filterwarnings("ignore:Constant")


def expert_action(task, state):
    return np.clip(ENV_POLICY_MAP[task + VERSION_SUFFIX]().get_action(state), -1.0, 1.0).astype(
        np.float32
    )


def play(simulator, *, seed, steps):
    """Joint positions and success after each of the expert's steps."""
    simulator.reset(seed=seed)
    places, successes = [simulator.data.qpos.copy()], [False]
    for _ in range(steps):
        successes.append(simulator.step(expert_action(simulator.task, simulator.state)))
        places.append(simulator.data.qpos.copy())
    return np.array(places), successes


def check_against_metaworld(task, *, seed, steps):
    """Meta-World's environment with the same draw, set as its benchmarks set it, moves in the same
    way to the last bit.
    """
    simulator = MetaWorldSimulator(task)
    simulator.reset(seed=seed)
    reference = ALL_V3_ENVIRONMENTS[task + VERSION_SUFFIX]()
    draw = {
        "env_cls": type(reference),
        "rand_vec": simulator._env._last_rand_vec.copy(),
        "partially_observable": False,
    }
    reference.set_task(Task(env_name=task + VERSION_SUFFIX, data=pickle.dumps(draw)))
    observation, _ = reference.reset()
    assert np.array_equal(reference.data.qpos, simulator.data.qpos)
    for _ in range(steps):
        action = expert_action(task, observation)
        observation, _, _, _, info = reference.step(action)
        success = simulator.step(action)
        assert np.array_equal(reference.data.qpos, simulator.data.qpos)
        assert np.array_equal(observation[:7], simulator.state[:7])
        # a quaternion: ours is not SciPy's
        assert np.allclose(observation[7:11], simulator.state[7:11], atol=1e-9)
        assert success == bool(info["success"])


def test_instructions_cover_metaworld_exactly():
    assert {task + VERSION_SUFFIX for task in INSTRUCTIONS} == set(ALL_V3_ENVIRONMENTS)


def test_instructions_tell_tasks_apart():
    assert len(set(INSTRUCTIONS.values())) == len(INSTRUCTIONS)


@pytest.mark.parametrize("task", [*DEFAULT, "push"])
def test_physics_is_metaworlds_to_the_last_bit(task):
    check_against_metaworld(task, seed=3, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(INSTRUCTIONS))
def test_physics_of_every_task_is_metaworlds_to_the_last_bit(task):
    check_against_metaworld(task, seed=1, steps=60)


@pytest.mark.parametrize("task", [*DEFAULT, *HISTORY])
def test_episode_does_not_depend_on_what_ran_before(task):
    used, fresh = MetaWorldSimulator(task), MetaWorldSimulator(task)
    for other in (5, 6):
        play(used, seed=other, steps=15)
    for simulator in (used, used):  # the second time from the start that it kept
        assert np.array_equal(
            play(simulator, seed=7, steps=15)[0], play(fresh, seed=7, steps=15)[0]
        )


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(INSTRUCTIONS))
def test_no_episode_of_any_task_depends_on_what_ran_before(task):
    used = MetaWorldSimulator(task)
    play(used, seed=5, steps=40)
    assert np.array_equal(
        play(used, seed=7, steps=40)[0], play(MetaWorldSimulator(task), seed=7, steps=40)[0]
    )


def test_episode_is_the_same_in_another_process(repository):
    code = (
        "import hashlib, numpy as np; from envs.metaworld.metaworld_simulator import "
        "MetaWorldSimulator; s = "
        "MetaWorldSimulator('door-open'); s.reset(seed=11);"
        "[s.step(np.full(4, 0.3, np.float32)) for _ in range(20)]; "
        "print(hashlib.sha256(s.data.qpos.tobytes()).hexdigest())"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.strip()
    simulator = MetaWorldSimulator("door-open")
    simulator.reset(seed=11)
    for _ in range(20):
        simulator.step(np.full(4, 0.3, np.float32))
    assert there == hashlib.sha256(simulator.data.qpos.tobytes()).hexdigest()


def test_touch_is_what_metaworld_calls_touch():
    simulator = MetaWorldSimulator("pick-place")
    simulator.reset(seed=0)
    env, touched = simulator._env, []
    for _ in range(50):
        simulator.step(expert_action("pick-place", simulator.state))
        touched.append(env.touching_main_object)
        assert touched[-1] == type(env).touching_object(env, env._get_id_main_object())
    assert set(touched) == {False, True}


def test_seeds_place_things_differently():
    simulator = MetaWorldSimulator("drawer-open")
    starts = set()
    for seed in range(4):
        simulator.reset(seed=seed)
        starts.add(tuple(simulator.state[4:7]))
    assert len(starts) == 4


def test_observation_after_reset_shows_where_things_are():
    simulator = MetaWorldSimulator("drawer-open")
    simulator.reset(seed=0)
    before = simulator.state[4:7]
    simulator.step(np.zeros(4, np.float32))
    assert np.abs(simulator.state[4:7] - before).max() < 1e-3


@pytest.mark.parametrize("task", DEFAULT)
def test_expert_succeeds(task):
    _, successes = play(MetaWorldSimulator(task), seed=0, steps=95)
    assert any(successes)


def expert_distances(task):
    """Oracle distances along the first successful episode of the expert."""
    simulator = MetaWorldSimulator(task)
    for seed in range(5):
        simulator.reset(seed=seed)
        distances = [simulator.oracle_distance]
        for _ in range(200):
            success = simulator.step(expert_action(task, simulator.state))
            distances.append(simulator.oracle_distance)
            if success:
                return distances
    raise AssertionError(f"The expert of {task} failed five times.")


def check_oracle(task, *, least):
    distances = expert_distances(task)
    assert spearmanr(np.arange(len(distances)), -np.array(distances))[0] > least
    assert distances[-1] == pytest.approx(min(distances), abs=0.05)


@pytest.mark.parametrize("task", DEFAULT)
def test_oracle_distance_falls_along_an_experts_episode(task):
    check_oracle(task, least=0.8)


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(INSTRUCTIONS))
def test_oracle_distance_of_every_task_falls_along_an_experts_episode(task):
    check_oracle(task, least=DETOURS.get(task, 0.7))


def test_divergence_is_an_error():
    simulator = MetaWorldSimulator("drawer-open")
    simulator.reset(seed=0)
    simulator.data.qvel[:] = 1e12
    with pytest.raises(RuntimeError, match=r"'drawer-open' diverged \(mjWARN_BAD"):
        simulator.step(np.zeros(4, np.float32))


def test_simulator_recovers_from_divergence_at_reset():
    simulator = MetaWorldSimulator("drawer-open")
    expected, _ = play(simulator, seed=0, steps=3)
    simulator.data.qvel[:] = 1e12
    with pytest.raises(RuntimeError):
        simulator.step(np.zeros(4, np.float32))
    assert np.array_equal(play(simulator, seed=0, steps=3)[0], expected)
