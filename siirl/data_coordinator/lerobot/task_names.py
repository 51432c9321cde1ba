"""Matches the instructions of a LeRobot data set with the tasks of an environment.

A data set written by siirl stores the environment's names. In others an instruction matches a name
with the same words: `pick up the milk` is LIBERO's `pick_up_the_milk`.
"""

import re
from collections.abc import Mapping, Sequence

from envs.names import listed_tasks
from siirl.data_coordinator.lerobot.robot_data_set import RobotDataSet

LISTED = 8  # instructions in a message


def tasks_of(data: RobotDataSet, *, tasks: Sequence[str]) -> Mapping[str, str]:
    """The environment's task of each instruction in the data set that has one.

    Raises:
        ValueError: No instruction matches; the message lists the instructions.
    """
    by_words = {_words(task): task for task in tasks}
    named = data.task_names
    instructions = dict.fromkeys(place.task for place in data.episodes)
    found = {
        instruction: by_words.get(_words(named.get(instruction, instruction)))
        for instruction in instructions
    }
    matched = {instruction: task for instruction, task in found.items() if task is not None}
    if not matched:
        raise ValueError(
            f"{data.folder} has no episode of the tasks {listed_tasks(tasks)}. Its instructions "
            f"are {'; '.join(list(instructions)[:LISTED]) or 'none'}. Set env.tasks to tasks with "
            "the same words."
        )
    return matched


def _words(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
