"""The benchmark's 130 tasks: by name and by number, and messages for wrong names. No simulator is
imported.
"""

import subprocess
import sys

import pytest

from envs.libero.suites import STEP_LIMITS, choose_tasks, suite_name, suite_tasks


def test_suites_have_10_10_10_10_and_90_tasks_with_names_of_their_own():
    counts = {suite: len(suite_tasks(suite)) for suite in STEP_LIMITS}
    assert counts == {"spatial": 10, "object": 10, "goal": 10, "10": 10, "90": 90}
    assert len({task.name for suite in STEP_LIMITS for task in suite_tasks(suite)}) == 130


def test_every_task_has_its_files():
    tasks = [task for suite in STEP_LIMITS for task in suite_tasks(suite)]
    assert all(task.definition.is_file() and task.initial_states.is_file() for task in tasks)


def test_step_limits_are_the_published_ones():
    assert STEP_LIMITS == {"spatial": 220, "object": 280, "goal": 300, "10": 520, "90": 400}


def test_tasks_are_numbered_as_in_the_benchmark():
    assert suite_tasks("object")[4].name == "pick_up_the_ketchup_and_place_it_in_the_basket"
    assert suite_tasks("goal")[7].name == "turn_on_the_stove"


@pytest.mark.parametrize(
    ("suite", "number", "instruction"),
    [
        ("goal", 7, "turn on the stove"),
        ("90", 0, "close the top drawer of the cabinet"),  # KITCHEN_SCENE10_...
        (
            "10",
            4,
            "put the white mug on the left plate and put the yellow and white mug on the right "
            "plate",
        ),  # LIVING_ROOM_SCENE5_...
    ],
)
def test_instruction_is_the_name_without_its_scene(suite, number, instruction):
    assert suite_tasks(suite)[number].instruction == instruction


@pytest.mark.parametrize("name", ["spatial", "libero_spatial", "Spatial", "LIBERO_SPATIAL"])
def test_suite_is_known_by_the_benchmarks_name_and_the_short_one(name):
    assert suite_name(name) == "spatial"


def test_long_is_the_suite_10():
    assert suite_name("long") == suite_name(10) == "10"


@pytest.mark.parametrize(
    ("suite", "tasks", "names"),
    [
        ("goal", ["7"], ["turn_on_the_stove"]),
        ("goal", [7, 8], ["turn_on_the_stove", "put_the_bowl_on_the_plate"]),
        ("goal", ["turn_on_the_stove"], ["turn_on_the_stove"]),
        (
            "goal+object",
            ["goal/7", "object/4"],
            ["turn_on_the_stove", "pick_up_the_ketchup_and_place_it_in_the_basket"],
        ),
        ("goal+object", ["turn_on_the_stove"], ["turn_on_the_stove"]),
    ],
)
def test_tasks_are_chosen_by_number_and_by_name(suite, tasks, names):
    assert [task.name for task in choose_tasks(suite, tasks)] == names


def test_all_tasks_of_all_chosen_suites_by_default():
    assert len(choose_tasks("spatial+goal", None)) == 20


@pytest.mark.parametrize(
    ("suite", "tasks", "sentence"),
    [
        (
            "spacial",
            None,
            r"Unknown LIBERO suite 'spacial'\. Did you mean 'spatial'\? Known: spatial, object, goal, 10, 90, long",
        ),
        (
            "goal",
            ["turn_on_the_stov"],
            r"Unknown LIBERO task 'turn_on_the_stov'\. Did you mean 'turn_on_the_stove'\?",
        ),
        ("goal", ["10"], r"Suite 'goal' has no task 10: it has 10, numbered 0 to 9"),
        (
            "goal+object",
            ["3"],
            r"Task number '3' names no suite: write goal/3 .*, or tasks=null for all tasks of them",
        ),
        (
            "goal",
            ["object/3"],
            r"Task 'object/3' is of suite 'object', but the suite of this environment is goal: write suite=goal\+object",
        ),
        ("goal", ["7", "turn_on_the_stove"], "has a task twice"),
        (
            "goal",
            [],
            r"one or more LIBERO tasks, got an empty one; null selects all tasks of the suite",
        ),
        ("goal", "turn_on_the_stove", "must be a list"),
    ],
)
def test_wrong_choice_is_refused_with_the_known_ones(suite, tasks, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose_tasks(suite, tasks)


def test_spec_needs_neither_mujoco_nor_robosuite(repository):
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); from envs.registry import "
        "env_spec; "
        "assert len(env_spec('libero', assets='stand_in').tasks) == 10; "
        "assert not {'mujoco', 'robosuite', 'libero', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=repository, check=True)
