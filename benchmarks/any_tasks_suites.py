"""Tasks and settings of `benchmarks.any_tasks`: four suites, drawn by a committed seed.

- `metaworld`: eight trios of the tasks whose scripted expert succeeds within the demo's 120 steps
  in nine of ten episodes (`any_tasks_experts.json`), without the five that the shipped policies
  were tuned on. The first two trios are tasks that earlier defaults did not improve. Two further
  trios were drawn after all defaults and the length of 120 steps were chosen, of tasks that no run
  had used.
- `libero`: ten tasks of the suites with one skill, in two groups of five as in the preset, on
  stand-ins; without those of the shipped policy and those whose expert failed an episode
  (`libero_expert.json`).
- `text`: other sums, other operations, sorting and base conversion, in two trios that the seed
  draws. A task has the smallest size with a thousand exercises, so that held-out questions are
  distinct; the shipped model was tuned on sums of two digits, so sums have the next size.
- `control`: the tasks of Gymnasium's classic control with few actions. `trainer=classic_control`
  has the values of CartPole; no setting was chosen on the others. Pendulum is left out because its
  settings in `benchmarks.control_tasks` were tuned.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
EXPERTS = RESULTS / "any_tasks_experts.json"
LIBERO_EXPERTS = RESULTS / "libero_expert.json"
TUNED = {"drawer-open", "button-press", "button-press-topdown", "window-open", "door-open"}
LIBERO_TUNED = {f"object/{number}" for number in (0, 1, 4, 7, 9)}
LIBERO_SUITES = ("spatial", "object", "goal")
TEXT = ("sums-3", "differences-2", "products-2", "modular-1", "bases-3", "sorting-5")
STUCK = (
    ("plate-slide", "coffee-push", "door-close"),
    ("hammer", "coffee-button", "handle-pull-side"),
)
DRAW_SEED, FRESH_SEED = 20261124, 20261130
EPISODE_STEPS = 120  # env=metaworld's
TRIOS, FRESH_TRIOS = 8, 2
PLAYED = {"faucet-close", "handle-press", "stick-pull", "shelf-place"}  # in trials of the software

Group = tuple[str, ...]
"""Tasks that one policy learns together."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Groups of tasks, and the words of the commands that any user of them needs."""

    groups: tuple[Group, ...]
    environment: tuple[str, ...]
    """Of warm start, training and evaluation; `{tasks}` is the group."""
    train: tuple[str, ...] = ()
    """Of training alone."""
    evaluate: tuple[str, ...] = ()
    """Of evaluation alone."""
    episodes: int = 50
    """Held-out episodes of each task."""
    measure: str = "success"
    """Or `return`, where an environment has no flag of success."""
    one_process: bool = False
    """No Ray, so that processor time is counted."""

    def words(self, group: Group) -> list[str]:
        """The environment's words for a group."""
        return [word.format(tasks=",".join(group)) for word in self.environment]


def suites() -> dict[str, Suite]:
    """The suites by name."""
    one_process = ("cluster=local", "env.num_servers=1")
    return {
        "metaworld": Suite(
            groups=metaworld_trios(json.loads(EXPERTS.read_text())),
            environment=("env=metaworld", "env.tasks=[{tasks}]"),
        ),
        "libero": Suite(
            groups=libero_groups(json.loads(LIBERO_EXPERTS.read_text())["tasks"]),
            environment=(
                *("env=libero", "env.assets=stand_in", "env.tasks=[{tasks}]"),
                f"env.suite={'+'.join(LIBERO_SUITES)}",
                "env.states=split",  # as in training; an evaluation alone would play all states
            ),
            episodes=10,
        ),
        "text": Suite(
            groups=text_trios(),
            environment=("env=math", "env.tasks=[{tasks}]", *one_process),
            train=("pipeline=grpo",),
            episodes=200,
            one_process=True,
        ),
        "control": Suite(
            groups=(
                *(("CartPole-v1",), ("Acrobot-v1",)),
                *(("MountainCar-v0",), ("MountainCarContinuous-v0",)),
            ),
            environment=("env=gymnasium", "env.id={tasks}", *one_process),
            train=("pipeline=ppo", "trainer=classic_control"),
            episodes=20,
            measure="return",
            one_process=True,
        ),
    }


def metaworld_trios(experts: Mapping[str, Sequence[int | None]]) -> tuple[Group, ...]:
    """The eight trios, then those that were drawn later.

    Args:
        experts: Steps to success of ten episodes of each task's expert; None: not within 500.
    """
    able = [
        task
        for task, steps in sorted(experts.items())
        if sum(step is not None and step <= EPISODE_STEPS for step in steps) >= 0.9 * len(steps)
    ]
    stuck = {task for trio in STUCK for task in trio}
    others = [task for task in able if task not in TUNED | stuck]
    drawn = random.Random(DRAW_SEED).sample(others, 3 * (TRIOS - len(STUCK)))
    unused = [task for task in others if task not in {*drawn, *PLAYED}]
    fresh = random.Random(FRESH_SEED).sample(unused, 3 * FRESH_TRIOS)
    return (*STUCK, *_grouped(drawn, size=3), *_grouped(fresh, size=3))


def libero_groups(experts: Mapping[str, Mapping[str, Any]]) -> tuple[Group, ...]:
    """Two groups of five tasks, as `suite/number`.

    Args:
        experts: `steps` to success of each task's expert, None for a failure, and the number of
            `diverged` episodes.
    """
    able = [
        task
        for task, found in sorted(experts.items())
        if task.partition("/")[0] in LIBERO_SUITES
        and None not in found["steps"]
        and not found["diverged"]
        and task not in LIBERO_TUNED
    ]
    return _grouped(random.Random(DRAW_SEED).sample(able, 10), size=5)


def text_trios() -> tuple[Group, ...]:
    """Two trios; the seed decides on who learns with whom."""
    return _grouped(random.Random(DRAW_SEED).sample(TEXT, len(TEXT)), size=3)


def _grouped(drawn: Sequence[str], *, size: int) -> tuple[Group, ...]:
    return tuple(tuple(drawn[first : first + size]) for first in range(0, len(drawn), size))
