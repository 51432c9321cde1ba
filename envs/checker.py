"""`check_env` tests an environment against the contract of `envs.base`; run it before training.

    from envs.checker import check_env
    check_env(MyEnvironment())

It plays short episodes with random actions and one to its end, and raises AssertionError for the
first violation. Left out: the meaning of the task, and faults that need another process or machine.
"""

import asyncio
import copy
import pickle
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.base import (
    Environment,
    EnvSpec,
    FrameRequest,
    Frames,
    Info,
    Observation,
    acting_agents,
)

CHECK_STEPS = 12  # of the compared episodes
CHUNK = 5
STREAMS = {"often": FrameRequest(every=1, size=24), "seldom": FrameRequest(every=4, size=16)}


def check_env(env: Environment, *, seed: int = 0) -> None:
    """Check a freshly made environment, and close it.

    Raises:
        AssertionError: The first violation, in one sentence.
    """
    asyncio.run(_check_and_close(env, seed=seed))


async def _check_and_close(env: Environment, *, seed: int) -> None:
    try:
        await _check(env, seed=seed)
    finally:
        await env.close()
    await env.close()  # a second time


async def _check(env: Environment, *, seed: int) -> None:
    _check_spec(env.spec)
    actions = _random_actions(env.spec, seed=seed)
    await _must_raise(env.step(actions[0]), RuntimeError, "step before reset")
    reference = await _play(env, seed=seed, actions=actions, chunk=1)
    await _check_own_buffers(env, seed=seed, actions=actions)
    if env.spec.replayable:
        await _play(
            env, seed=seed + 1, actions=actions[::-1], chunk=1
        )  # another episode in between must leave no trace
        again = await _play(env, seed=seed, actions=actions, chunk=1)
        _require_equal(
            again,
            reference,
            "the same seed and actions gave another episode: it must not depend on what ran before",
        )
        if not any(_waits(played[0]) for played in reference):
            chunked = await _play(env, seed=seed, actions=actions, chunk=CHUNK)
            _check_chunks(chunked, reference)
    await _check_every_task(env, seed=seed)
    await _check_refusals(env, seed=seed, actions=actions)
    await _check_frames(env, seed=seed, actions=actions)
    await _check_end(env, seed=seed)


def _check_spec(spec: EnvSpec) -> None:
    _require(isinstance(spec, EnvSpec), f"spec must be an EnvSpec, got {type(spec).__name__}")
    _require(
        len(spec.tasks) > 0 and len(set(spec.tasks)) == len(spec.tasks),
        f"spec.tasks must be distinct names, got {spec.tasks}",
    )
    _require(
        isinstance(spec.observation_space, gymnasium.Space),
        "spec.observation_space must be a gymnasium space",
    )
    _require(
        isinstance(spec.action_space, gymnasium.Space),
        "spec.action_space must be a gymnasium space",
    )
    _require(
        spec.max_episode_steps >= 1,
        f"spec.max_episode_steps must be at least 1, got {spec.max_episode_steps}",
    )
    _require(spec.num_agents >= 1, f"spec.num_agents must be at least 1, got {spec.num_agents}")
    _require_picklable(spec, "spec")


async def _play(env: Environment, *, seed: int, actions: Sequence[Any], chunk: int) -> list[Any]:
    """Resets, plays `actions` in chunks (1: by `step`), checks and copies every value."""
    observation, info = await _reset(env, seed=seed)
    played: list[Any] = [copy.deepcopy((observation, info))]
    acted: set[int] = set()
    for start in range(0, len(actions), chunk):
        part = actions[start : start + chunk]
        acted.update(acting_agents(observation, spec=env.spec))
        turn = _in_turn(part[0], observation)
        result = await (env.step(turn) if chunk == 1 else env.step_chunk(part))
        _check_step(env.spec, result)
        _check_unearned(env.spec, result[1], acted)
        observation = result[0]
        played.append(copy.deepcopy(result))
        if result[2] or result[3]:
            break
    return played


async def _reset(
    env: Environment, *, seed: int, options: Mapping[str, Any] | None = None
) -> tuple[Observation, Info]:
    result: Any = await env.reset(seed=seed, options=options)
    _require(
        isinstance(result, tuple) and len(result) == 2,
        f"reset must return (observation, info), got {result!r}",
    )
    observation, info = result
    _check_observation(env.spec, observation, "reset", ended=False)
    _require(isinstance(info, dict), f"info of reset must be a dict, got {info!r}")
    _require("task" in info, "info of reset must name the `task`")
    _require_picklable(result, "the result of reset")
    return observation, info


def _check_step(spec: EnvSpec, result: Any) -> None:
    _require(
        isinstance(result, tuple) and len(result) == 5,
        f"step must return five values, got {result!r}",
    )
    observation, reward, terminated, truncated, info = result
    _check_observation(spec, observation, "step", ended=bool(terminated) or bool(truncated))
    rewards = [reward] if spec.num_agents == 1 else reward
    for value in rewards:
        _require(
            isinstance(value, (int, float)) and np.isfinite(value),
            f"a reward must be a finite float, got {value!r}",
        )
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        _require(
            isinstance(flag, bool),
            f"{name} must be a bool, got {flag!r} of type {type(flag).__name__}",
        )
    _require(isinstance(info, dict), f"info of step must be a dict, got {info!r}")
    if spec.reports_success and not (spec.leaves_ungraded and info.get("success", False) is None):
        _require(
            isinstance(info.get("success"), bool),
            f"info of step must have `success`, a bool, got {info.get('success')!r}",
        )
    _require_picklable(result, "the result of step")


def _check_unearned(spec: EnvSpec, reward: Any, acted: set[int]) -> None:
    """Before its first action an agent has done nothing that a reward could be for."""
    if spec.num_agents == 1:
        return
    for agent, value in enumerate(reward):
        _require(
            agent in acted or value == 0,
            f"agent {agent} got the reward {value!r} before its first action",
        )


def _waits(observation: Observation) -> bool:
    return isinstance(observation, (list, tuple)) and any(entry is None for entry in observation)


def _in_turn(action: Any, observation: Observation) -> Any:
    """The action, with None for agents that wait."""
    if not _waits(observation):
        return action
    return [
        None if seen is None else entry for entry, seen in zip(action, observation, strict=True)
    ]


def _check_observation(spec: EnvSpec, observation: Observation, where: str, *, ended: bool) -> None:
    observations = [observation] if spec.num_agents == 1 else observation
    _require(
        len(observations) == spec.num_agents,
        f"{where} must return one observation an agent ({spec.num_agents})",
    )
    _require(
        ended or bool(acting_agents(observation, spec=spec)),
        f"after {where} every agent's observation is None, so no agent acts, but the episode has "
        "not ended",
    )
    for entry in observations:
        if entry is not None or spec.num_agents == 1:
            _check_member(spec.observation_space, entry, f"the observation of {where}")


def _check_member(space: spaces.Space[Any], value: Any, what: str) -> None:
    if isinstance(space, spaces.Dict):
        _require(isinstance(value, Mapping), f"{what} must be a dict, got {type(value).__name__}")
        _require(
            set(value) == set(space.spaces),
            f"{what} has the keys {sorted(value)}, its space {sorted(space.spaces)}",
        )
        for key, part in space.spaces.items():
            _check_member(part, value[key], f"{key!r} in {what}")
        return
    if isinstance(space, spaces.Box):
        _require(
            isinstance(value, np.ndarray), f"{what} must be an array, got {type(value).__name__}"
        )
        _require(
            value.dtype == space.dtype, f"{what} has dtype {value.dtype}, its space {space.dtype}"
        )
        _require(
            value.shape == space.shape, f"{what} has shape {value.shape}, its space {space.shape}"
        )
        _require(bool(np.isfinite(value).all()), f"{what} is not finite")
    _require(space.contains(value), f"{what} is not in its space {space}")


async def _check_own_buffers(env: Environment, *, seed: int, actions: Sequence[Any]) -> None:
    kept: list[tuple[Observation, Observation]] = []
    observation, _ = await env.reset(seed=seed)
    for action in actions[:CHUNK]:
        kept.append((observation, copy.deepcopy(observation)))
        turn = _in_turn(action, observation)
        observation, _, terminated, truncated, _ = await env.step(turn)
        if terminated or truncated:
            break
    for returned, copied in kept:
        _require(
            _same(returned, copied),
            "a later step changed an observation that was returned before: return a new array",
        )


def _check_chunks(chunked: list[Any], single: list[Any]) -> None:
    position = 0
    for observation, reward, terminated, truncated, info in chunked[1:]:
        executed = info.get("executed")
        _require(
            isinstance(executed, int) and 1 <= executed <= CHUNK,
            f"info of step_chunk must have `executed`, got {executed!r}",
        )
        steps = single[1 + position : 1 + position + executed]
        position += executed
        _require(
            len(steps) == executed, "step_chunk executed more actions than the episode had steps"
        )
        _require(
            bool(np.allclose(reward, sum(np.asarray(step[1]) for step in steps))),
            "step_chunk must return the sum of its rewards",
        )
        last = steps[-1]
        _require_equal(
            (observation, terminated, truncated),
            (last[0], *last[2:4]),
            "step_chunk and the same steps differ",
        )
        _require(
            _same(info.get("success"), last[4].get("success")),
            "step_chunk and the same steps differ in success",
        )
    _require(
        position == len(single) - 1,
        "step_chunk stopped before the end of its actions or of the episode",
    )


async def _check_every_task(env: Environment, *, seed: int) -> None:
    for task in env.spec.tasks:
        _, info = await _reset(env, seed=seed, options={"task": task})
        _require(
            info["task"] == task, f"reset for task {task!r} returns info['task']={info['task']!r}"
        )


async def _check_refusals(env: Environment, *, seed: int, actions: Sequence[Any]) -> None:
    await _must_raise(
        env.reset(seed=seed, options={"task": "no such task"}),
        ValueError,
        "reset for an unknown task",
    )
    await _must_raise(
        env.reset(seed=seed, options={"no such option": 1}),
        ValueError,
        "reset with an unknown option",
    )
    opening, _ = await env.reset(seed=seed)
    await _must_raise(env.step_chunk([]), ValueError, "step_chunk without actions")
    if _waits(opening):
        silent = [None] * env.spec.num_agents
        await _must_raise(env.step(silent), ValueError, "step without an action of who acts")
        await _must_raise(env.step(actions[0]), ValueError, "step with an action out of turn")
    for what, action in _bad_actions(env.spec.action_space):
        bad = action if env.spec.num_agents == 1 else [action] * env.spec.num_agents
        await _must_raise(env.step(_in_turn(bad, opening)), ValueError, f"step with {what}")
    if env.spec.replayable:
        turn = _in_turn(actions[0], opening)
        refused = await env.step(turn)
        await env.reset(seed=seed)
        clean = await env.step(turn)
        _require_equal(refused[:4], clean[:4], "an action that was refused changed the episode")


def _bad_actions(space: spaces.Space[Any]) -> list[tuple[str, Any]]:
    if isinstance(space, spaces.Discrete):
        return [
            ("an action above the last one", int(space.start + space.n)),
            ("a fraction for an action", 0.5),
        ]
    if not isinstance(space, spaces.Box):
        return []
    inside = np.zeros(space.shape, space.dtype)
    bad = [
        ("an action of the wrong shape", np.zeros((*space.shape, 2), space.dtype)),
        ("words for an action", "left"),
    ]
    if space.dtype.kind == "f":
        bad.append(("an action with NaN", np.full_like(inside, np.nan)))
    if space.dtype.kind == "f" and np.isfinite(space.high).all():
        bad.append(("an action above its bounds", (space.high + 1).astype(space.dtype)))
    return bad


async def _check_frames(env: Environment, *, seed: int, actions: Sequence[Any]) -> None:
    if not env.spec.renders:
        await _must_raise(
            env.reset(seed=seed, options={"frames": STREAMS}),
            ValueError,
            "reset with frames where nothing can be seen",
        )
        return
    _, info = await _reset(env, seed=seed, options={"frames": STREAMS})
    taken = {stream: [_frames(info, stream)] for stream in STREAMS}
    steps, ended = 0, False
    for start in range(0, len(actions), CHUNK):
        *_, terminated, truncated, info = await env.step_chunk(actions[start : start + CHUNK])
        steps, ended = steps + info["executed"], terminated or truncated
        for stream in STREAMS:
            if stream in info.get("frames", {}):
                taken[stream].append(_frames(info, stream))
        if ended:
            break
    for stream, request in STREAMS.items():
        due = [
            step
            for step in range(steps + 1)
            if step % request.every == 0 or (ended and step == steps)
        ]
        got = [step for part in taken[stream] for step in part.steps]
        _require(
            got == due,
            f"a stream with one frame every {request.every} steps came with steps {got} instead "
            f"of {due}",
        )
    picture: Any = env.render()
    fits = (
        isinstance(picture, np.ndarray)
        and picture.dtype == np.uint8
        and picture.ndim == 3
        and picture.shape[2] == 3
    )
    _require(fits, "render must return uint8 [height, width, 3]")


def _frames(info: Info, stream: str) -> Frames:
    part = info.get("frames", {}).get(stream)
    _require(
        isinstance(part, Frames),
        f"info must have `frames` with the stream {stream!r} that reset was asked for, got "
        f"{part!r}",
    )
    size = STREAMS[stream].size
    shape = (len(part.steps), size, size, 3)
    _require(part.images.dtype == np.uint8, f"frames must be uint8, got {part.images.dtype}")
    _require(
        part.images.shape == shape,
        f"frames of size {size} for steps {part.steps} must have shape {shape}, got "
        f"{part.images.shape}",
    )
    return part


async def _check_end(env: Environment, *, seed: int) -> None:
    limit = env.spec.max_episode_steps
    actions = _random_actions(env.spec, seed=seed, steps=limit)
    observation, _ = await env.reset(seed=seed)
    if _waits(observation):
        ended = await _play_turns(env, observation, actions)
    else:
        result = await env.step_chunk(actions)
        _check_step(env.spec, result)
        _, _, terminated, truncated, info = result
        ended = terminated or truncated
        _require(
            info["executed"] <= limit,
            f"the episode had {info['executed']} steps, more than spec.max_episode_steps={limit}",
        )
    _require(ended, f"the episode did not end within spec.max_episode_steps={limit}")
    await _must_raise(env.step(actions[0]), RuntimeError, "step after the end of the episode")


async def _play_turns(env: Environment, observation: Observation, actions: Sequence[Any]) -> bool:
    """Play an episode whose agents act in turn, one step at a time; whether it ended."""
    for action in actions:
        result = await env.step(_in_turn(action, observation))
        _check_step(env.spec, result)
        observation, _, terminated, truncated, _ = result
        if terminated or truncated:
            return True
    return False


def _random_actions(spec: EnvSpec, *, seed: int, steps: int = CHECK_STEPS) -> list[Any]:
    space = copy.deepcopy(spec.action_space)
    space.seed(seed)
    if spec.num_agents == 1:
        return [space.sample() for _ in range(steps)]
    return [[space.sample() for _ in range(spec.num_agents)] for _ in range(steps)]


async def _must_raise(call: Coroutine[Any, Any, Any], kind: type[Exception], what: str) -> None:
    outcome: Any = (await asyncio.gather(call, return_exceptions=True))[0]
    if isinstance(outcome, kind):
        return
    if isinstance(outcome, KeyboardInterrupt):
        raise outcome
    if isinstance(outcome, BaseException):
        raise AssertionError(
            f"check_env: {what} must raise {kind.__name__}, but raised {outcome!r}."
        ) from outcome
    _fail(f"{what} must raise {kind.__name__}, but was accepted")


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return set(left) == set(right) and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(
            _same(a, b) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return np.array_equal(left, right)
    return bool(left == right)


def _require_equal(left: Any, right: Any, sentence: str) -> None:
    _require(_same(left, right), sentence)


def _require_picklable(value: Any, what: str) -> None:
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise AssertionError(
            f"{what} must be picklable, it travels between processes: {error}"
        ) from error


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        _fail(sentence)


def _fail(sentence: str) -> NoReturn:
    raise AssertionError(f"check_env: {sentence}.")
