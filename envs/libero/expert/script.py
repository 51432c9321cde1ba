"""Scripted expert on true poses: places things, and opens, closes and turns parts, with the
benchmark's actions.

It plans from the collision shapes of the loaded assets, one goal predicate after another. It skips
predicates that hold, and retries failures with another grasp. docs/libero.md has its success rates.

    policy = expert(task_name)
    action = policy(env)     # float32 [7]; a new plan begins with each episode

MuJoCo is imported when an expert is made, not with this module: it would look for OpenGL too early.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from envs.libero.folders import import_libero
from envs.libero.libero_env import LiberoEnv

if TYPE_CHECKING:
    from envs.libero.libero_simulator import LiberoSimulator

Action = NDArray[np.float32]
WAIT_STEPS = 20  # with open fingers, until the released thing is at rest


def expert(task: str) -> Callable[[LiberoEnv], Action]:
    """Return the expert of a task; it reads `env.simulator`, which no policy may."""
    import_libero()
    plan: Iterator[Action] = iter(())

    def policy(env: LiberoEnv) -> Action:
        nonlocal plan
        if env.steps == 0:
            plan = pursue_goal(env.simulator)
        return next(plan)

    return policy


def pursue_goal(simulator: "LiberoSimulator") -> Iterator[Action]:
    """Yield actions forever: cycle over the goal's predicates until the environment succeeds."""
    from envs.libero.expert.motion import OPEN, hold

    parts = {name: region.parent_name for name, region in simulator.env.object_sites_dict.items()}
    goal, attempt = in_order(simulator.env.parsed_problem["goal_state"], parts), 0
    while True:
        for place, predicate in enumerate(goal):
            if not simulator.env._eval_predicate(predicate) and is_time(
                simulator, predicate, before=goal[:place]
            ):
                yield from _fulfil(simulator, predicate, attempt)
        yield from hold(OPEN, WAIT_STEPS)
        attempt += 1


def is_time(
    simulator: "LiberoSimulator", predicate: Sequence[str], *, before: Sequence[Sequence[str]]
) -> bool:
    """Whether it is time to close a part: only after all earlier predicates hold; matters for
    second attempts.
    """
    return predicate[0] != "close" or all(simulator.env._eval_predicate(other) for other in before)


def in_order(goal: Sequence[Sequence[str]], parts: Mapping[str, str | None]) -> list[Sequence[str]]:
    """A goal's predicates (verb, thing) or (verb, thing, target), in an order in which they can be
    fulfilled.

    Closing comes first if an open drawer above would be in the way, and last if something is put
    inside. Opening and turning precede all placements. A thing is placed before others are put in
    or on it.

    Args:
        goal: The goal's predicates, in any order.
        parts: Maps a region to the thing that contains it.
    """
    placements = [predicate for predicate in goal if len(predicate) == 3]
    place_of = {thing: place for place, (_, thing, _) in enumerate(placements)}
    under = [parts.get(target) or target for _, _, target in placements]
    order = TopologicalSorter(
        {place: [place_of[thing]] if thing in place_of else [] for place, thing in enumerate(under)}
    ).static_order()
    filled = {*under, *(target for _, _, target in placements)}
    shut = [
        predicate for predicate in goal if predicate[0] == "close" and predicate[1] not in filled
    ]
    before = [predicate for predicate in goal if len(predicate) == 2 and predicate[0] != "close"]
    after = [predicate for predicate in goal if predicate[0] == "close" and predicate[1] in filled]
    return [*shut, *before, *(placements[place] for place in order), *after]


def _fulfil(
    simulator: "LiberoSimulator", predicate: Sequence[str], attempt: int
) -> Iterator[Action]:
    from envs.libero.expert import skills
    from envs.libero.expert.insert import cave, insert

    verb, subject, *target = predicate
    match verb:
        case "on" if skills.slides(simulator, subject, target[0]):
            yield from skills.slide(simulator, subject, target[0], attempt=attempt)
        case "in" if (place := cave(simulator, target[0])) is not None:
            yield from insert(simulator, subject, place)
        case "in" | "on":
            if skills.is_shut(simulator, target[0]):
                yield from skills.pull_open(simulator, target[0])
            yield from skills.place(simulator, subject, target[0], attempt=attempt)
        case "open":
            yield from skills.pull_open(simulator, subject)
        case "close":
            yield from skills.close(simulator, subject)
        case "turnon" | "turnoff":
            yield from skills.turn(simulator, subject, on=verb == "turnon")
        case _:
            raise ValueError(f"The scripted expert knows no predicate {verb!r}.")


def play(simulator: "LiberoSimulator", state: int) -> int | None:
    """Return the steps to success from an initial state, without images; None at the limit."""
    simulator.reset(state)
    plan = pursue_goal(simulator)
    for step in range(1, simulator.task.step_limit + 1):
        if simulator.step(next(plan)):
            return step
    return None
