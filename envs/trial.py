"""Plays the first step of an episode before a job starts, so that a mistake is one sentence.

The results are checked as a running job checks them (`envs.answer_checks`). A second reset with the
same seed shows whether `reset` uses its seed; it is left out where the first one was slow.

Left out: environments that siirl or Gymnasium tests (`envs.registry` decides); chats, whose reset
may need a prompt's row; environments with `replayable=False`, because a reset may move a real
robot; and pictures.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.answer_checks import fault_of_reset, fault_of_step
from envs.base import (
    RESET_VALUES,
    STEP_VALUES,
    Environment,
    EpisodeFailed,
    Misbehaved,
    answer_of,
)
from envs.checked_values import in_turn
from envs.checker import random_actions
from envs.mistakes import place_of, refused_call, user_code
from envs.replay_samples import difference, sample
from envs.text import MESSAGES

SEED = 0
SLOW_S = 2.0  # a reset that takes longer is not repeated


async def try_first_step(environment: Environment) -> str:
    """Reset a new environment, apply one random action, and close it.

    Returns:
        A warning if a second reset with the same seed gives another observation, otherwise "".

    Raises:
        Misbehaved: A method raised, or a result violates the contract.
    """
    spec = environment.spec
    if not spec.replayable or MESSAGES in getattr(spec.observation_space, "spaces", ()):
        return ""
    differs = None
    try:
        begin = time.monotonic()
        observation = await _reset(environment)
        took_s = time.monotonic() - begin
        first = copy.deepcopy(sample(observation))
        await _step(environment, observation)
        if took_s <= SLOW_S:
            differs = difference(first, sample(await _reset(environment)), where="observation")
    except EpisodeFailed:  # this episode cannot be scored, but others may be
        pass
    with user_code(lambda raised: Misbehaved(f"its close raised {raised}.")):
        await environment.close()
    if differs is None:
        return ""
    return (
        f"two resets with seed={SEED} gave different observations: {differs}. Held-out episodes "
        "before and after training will not be the same, and an episode cannot be replayed after "
        "its simulator failed: reset must seed all its generators from `seed`."
    )


async def _reset(environment: Environment) -> Any:
    options = {"task": environment.spec.tasks[0]}
    method, remedy = environment.reset, "give it the arguments seed=None, options=None"
    result = await _called(method, RESET_VALUES, remedy, seed=SEED, options=options)
    _require(fault_of_reset(tuple(result), spec=environment.spec), method)
    return result[0]


async def _step(environment: Environment, observation: Any) -> None:
    (action,) = random_actions(environment.spec, seed=SEED, steps=1)
    method, remedy = environment.step, "give it one argument, the action"
    result = await _called(method, STEP_VALUES, remedy, in_turn(action, observation))
    *values, info = result
    if isinstance(info, Mapping):
        info = {**info, "executed": 1}
    _require(fault_of_step((*values, info), spec=environment.spec, num_actions=1), method)


async def _called(
    method: Callable[..., Any], values: Sequence[str], remedy: str, *arguments: Any, **named: Any
) -> Any:
    refused = refused_call(method, *arguments, **named)
    if refused is not None:
        raise Misbehaved(f"{refused}: {remedy}.")
    call = f"{method.__qualname__}{place_of(method)}"
    with user_code(
        lambda raised: Misbehaved(f"its first {method.__name__} raised {raised}."),
        passed=(EpisodeFailed, Misbehaved),
    ):
        return await answer_of(method(*arguments, **named), call=call, values=values)


def _require(fault: str | None, method: Callable[..., Any]) -> None:
    if fault is not None:
        raise Misbehaved(f"its first {method.__name__}: {fault}{place_of(method)}.")
