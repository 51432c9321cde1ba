"""LIBERO's five suites and 130 tasks: names, numbers, instructions, published step limits, and
sizes.

Imports no simulator. Names and order are the installed package's (its order 0, by which papers
number tasks). They are read from its table of tasks, a file of plain data, without importing the
package.
"""

import functools
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.libero.folders import package_folder
from envs.names import listed, nearest

STEP_LIMITS = {"spatial": 220, "object": 280, "goal": 300, "10": 520, "90": 400}
"""Environment steps of an episode, without settling: the longest demonstration of each suite plus a
margin, as in the evaluation script of OpenVLA and OpenVLA-OFT
(experiments/robot/libero/run_libero_eval.py: longest demonstration 193, 254, 270, 505, 373)."""
# control steps without motion after each reset, because objects drop a few centimetres (the same
# script)
SETTLE_STEPS = 10
ACTION_SIZE = 7  # the gripper's motion and rotation, and the fingers
PROPRIOCEPTION_SIZE = 8  # the gripper's position and rotation, and two fingers
ALIASES = {"long": "10"}
PREFIX = "libero_"


@dataclass(frozen=True)
class LiberoTask:
    """One task of the benchmark."""

    name: str
    """The benchmark's own name, which names its definition file."""
    suite: str
    """Key of `STEP_LIMITS`."""
    number: int
    """Position in the suite, from 0."""
    instruction: str
    """The policy's instruction; the benchmark derives it from the name."""

    @property
    def step_limit(self) -> int:
        """Steps after which an episode of the published protocol ends."""
        return STEP_LIMITS[self.suite]

    @property
    def definition(self) -> Path:
        """The task's BDDL file in the installed package."""
        return package_folder() / "bddl_files" / (PREFIX + self.suite) / f"{self.name}.bddl"

    @property
    def only_places(self) -> bool:
        """Whether its goal is only to put objects in or on something."""
        goal = self.definition.read_text(encoding="utf-8").partition("(:goal")[2]
        return {verb.lower() for verb in re.findall(r"\((\w+) \w", goal)} <= {"in", "on"}

    @property
    def initial_states(self) -> Path:
        """The file of its 50 initial states in the installed package."""
        return package_folder() / "init_files" / (PREFIX + self.suite) / f"{self.name}.pruned_init"


def suite_name(name: object) -> str:
    """Return a suite's canonical name, for example of `libero_spatial`, `Spatial` or `long`.

    Raises:
        ValueError: No suite has this name.
    """
    short = str(name).lower().removeprefix(PREFIX)
    short = ALIASES.get(short, short)
    if short not in STEP_LIMITS:
        known = (*STEP_LIMITS, *ALIASES)
        raise ValueError(
            f"Unknown LIBERO suite {name!r}.{nearest(short, known)} Known: {listed(short, known)}."
        )
    return short


def suite_tasks(suite: str) -> tuple[LiberoTask, ...]:
    """The tasks of a suite (a canonical name), in the benchmark's order."""
    return _tasks()[suite]


def choose_tasks(suite: str, tasks: Sequence[str | int] | None) -> tuple[LiberoTask, ...]:
    """Return a run's tasks.

    Args:
        suite: A suite by any name that `suite_name` knows, or several with + between them.
        tasks: Each a task's name, or its number in the suite (`suite/number` with several suites);
            None for all tasks.

    Raises:
        ValueError: An unknown suite, an unknown task or number, or one that is named twice.
    """
    names = list(dict.fromkeys(suite_name(part) for part in str(suite).split("+")))
    offered = [task for name in names for task in suite_tasks(name)]
    if tasks is None:
        return tuple(offered)
    if isinstance(tasks, str) or not tasks:
        given = repr(tasks) if isinstance(tasks, str) else "an empty one"
        raise ValueError(
            f"tasks must be a list of one or more LIBERO tasks, got {given}; null selects all "
            "tasks of the suite."
        )
    chosen = [_find(str(task), offered=offered, suites=names) for task in tasks]
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"tasks has a task twice: {', '.join(map(str, tasks))}.")
    return tuple(chosen)


def _find(task: str, *, offered: Sequence[LiberoTask], suites: Sequence[str]) -> LiberoTask:
    suite, _, rest = task.rpartition("/")
    within = [other for other in offered if not suite or other.suite == suite_name(suite)]
    if suite and not within:
        asked = suite_name(suite)
        remedy = f"write suite={'+'.join([*suites, asked])}"
        raise ValueError(
            f"Task {task!r} is of suite {asked!r}, but the suite of this environment is "
            f"{', '.join(suites)}: {remedy}."
        )
    if rest.isdecimal():
        return _numbered(int(rest), task=task, within=within)
    for other in within:
        if other.name == rest:
            return other
    names = [other.name for other in within]
    raise ValueError(
        f"Unknown LIBERO task {task!r}.{nearest(rest, names)} The chosen suite has: "
        f"{listed(rest, names)}; and "
        "their numbers from 0."
    )


def _numbered(number: int, *, task: str, within: Sequence[LiberoTask]) -> LiberoTask:
    suites = sorted({other.suite for other in within})
    if len(suites) > 1:
        raise ValueError(
            f"Task number {task!r} names no suite: write {suites[0]}/{number} (suites of this "
            f"run: {', '.join(suites)}), or tasks=null for all tasks of them."
        )
    if number >= len(within):
        raise ValueError(
            f"Suite {suites[0]!r} has no task {number}: it has {len(within)}, numbered 0 to "
            f"{len(within) - 1}."
        )
    return within[number]


@functools.cache
def _tasks() -> dict[str, tuple[LiberoTask, ...]]:
    path = package_folder() / "benchmark" / "libero_suite_task_map.py"
    specification = importlib.util.spec_from_file_location("libero_suite_task_map", path)
    assert specification is not None and specification.loader is not None, path
    table = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(table)
    tasks = {}
    for suite in STEP_LIMITS:
        names = table.libero_task_map[PREFIX + suite]
        tasks[suite] = tuple(
            LiberoTask(name, suite, number, _instruction(name)) for number, name in enumerate(names)
        )
    return tasks


def _instruction(name: str) -> str:
    """`KITCHEN_SCENE10_close_the_top_drawer` has the scene before the sentence."""
    words = name.split("_")
    if name[0].isupper():
        words = words[
            next(place for place, word in enumerate(words) if word.startswith("SCENE")) + 1 :
        ]
    return " ".join(words)
