"""`check_env` tests an environment against the contract of `envs.base`; run it before training.

    from envs.checker import check_env
    check_env(MyEnvironment())

It plays short episodes with random actions and one to its end, and raises AssertionError for the
first violation. Left out: the meaning of the task, and faults that need another process or machine.
"""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.base import Environment, EnvSpec, FrameRequest, Frames, Info, Observation, acting_agents
from envs.checked_values import (
    check_observation,
    check_spec,
    check_step,
    check_unearned,
    in_turn,
    must_raise,
    require,
    require_equal,
    require_picklable,
    same,
    waits,
)

CHECK_STEPS = 12  # length of the compared episodes
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
    check_spec(env.spec)
    actions = random_actions(env.spec, seed=seed)
    await must_raise(env.step(actions[0]), RuntimeError, "step before reset")
    reference = await _play(env, seed=seed, actions=actions, chunk=1)
    await _check_own_buffers(env, seed=seed, actions=actions)
    if env.spec.replayable:
        # another episode in between must leave no trace
        await _play(env, seed=seed + 1, actions=actions[::-1], chunk=1)
        again = await _play(env, seed=seed, actions=actions, chunk=1)
        require_equal(
            again,
            reference,
            "the same seed and actions gave another episode: an episode must not depend on earlier "
            "ones",
        )
        if not any(waits(played[0]) for played in reference):
            chunked = await _play(env, seed=seed, actions=actions, chunk=CHUNK)
            _check_chunks(chunked, reference)
    await _check_every_task(env, seed=seed)
    await _check_refusals(env, seed=seed, actions=actions)
    await _check_frames(env, seed=seed, actions=actions)
    await _check_end(env, seed=seed)


async def _play(env: Environment, *, seed: int, actions: Sequence[Any], chunk: int) -> list[Any]:
    """Resets, plays `actions` in chunks (1: by `step`), checks and copies every value."""
    observation, info = await _reset(env, seed=seed)
    played: list[Any] = [copy.deepcopy((observation, info))]
    acted: set[int] = set()
    for start in range(0, len(actions), chunk):
        part = actions[start : start + chunk]
        acted.update(acting_agents(observation, spec=env.spec))
        turn = in_turn(part[0], observation)
        result = await (env.step(turn) if chunk == 1 else env.step_chunk(part))
        check_step(env.spec, result)
        check_unearned(env.spec, result[1], acted)
        observation = result[0]
        played.append(copy.deepcopy(result))
        if result[2] or result[3]:
            break
    return played


async def _reset(
    env: Environment, *, seed: int, options: Mapping[str, Any] | None = None
) -> tuple[Observation, Info]:
    result: Any = await env.reset(seed=seed, options=options)
    require(
        isinstance(result, tuple) and len(result) == 2,
        f"reset must return (observation, info), got {result!r}",
    )
    observation, info = result
    check_observation(env.spec, observation, "reset", ended=False)
    require(isinstance(info, dict), f"info of reset must be a dict, got {info!r}")
    require("task" in info, "info of reset must name the `task`")
    require_picklable(result, "the result of reset")
    return observation, info


async def _check_own_buffers(env: Environment, *, seed: int, actions: Sequence[Any]) -> None:
    kept: list[tuple[Observation, Observation]] = []
    observation, _ = await env.reset(seed=seed)
    for action in actions[:CHUNK]:
        kept.append((observation, copy.deepcopy(observation)))
        turn = in_turn(action, observation)
        observation, _, terminated, truncated, _ = await env.step(turn)
        if terminated or truncated:
            break
    for returned, copied in kept:
        require(
            same(returned, copied),
            "a later step changed an observation that was returned before: return a new array",
        )


def _check_chunks(chunked: list[Any], single: list[Any]) -> None:
    position = 0
    for observation, reward, terminated, truncated, info in chunked[1:]:
        executed = info.get("executed")
        require(
            isinstance(executed, int) and 1 <= executed <= CHUNK,
            f"info of step_chunk must have `executed`, got {executed!r}",
        )
        steps = single[1 + position : 1 + position + executed]
        position += executed
        require(
            len(steps) == executed, "step_chunk executed more actions than the episode had steps"
        )
        require(
            bool(np.allclose(reward, sum(np.asarray(step[1]) for step in steps))),
            "step_chunk must return the sum of its rewards",
        )
        last = steps[-1]
        require_equal(
            (observation, terminated, truncated),
            (last[0], *last[2:4]),
            "step_chunk and the same steps differ",
        )
        require(
            same(info.get("success"), last[4].get("success")),
            "step_chunk and the same steps differ in success",
        )
    require(
        position == len(single) - 1,
        "step_chunk stopped before the end of its actions or of the episode",
    )


async def _check_every_task(env: Environment, *, seed: int) -> None:
    for task in env.spec.tasks:
        _, info = await _reset(env, seed=seed, options={"task": task})
        require(
            info["task"] == task, f"reset for task {task!r} returns info['task']={info['task']!r}"
        )


async def _check_refusals(env: Environment, *, seed: int, actions: Sequence[Any]) -> None:
    await must_raise(
        env.reset(seed=seed, options={"task": "no such task"}),
        ValueError,
        "reset for an unknown task",
    )
    await must_raise(
        env.reset(seed=seed, options={"no such option": 1}),
        ValueError,
        "reset with an unknown option",
    )
    opening, _ = await env.reset(seed=seed)
    await must_raise(env.step_chunk([]), ValueError, "step_chunk without actions")
    if waits(opening):
        silent = [None] * env.spec.num_agents
        await must_raise(env.step(silent), ValueError, "step without an action of an acting agent")
        await must_raise(env.step(actions[0]), ValueError, "step with an action out of turn")
    for what, action in _bad_actions(env.spec.action_space):
        bad = action if env.spec.num_agents == 1 else [action] * env.spec.num_agents
        await must_raise(env.step(in_turn(bad, opening)), ValueError, f"step with {what}")
    if env.spec.replayable:
        turn = in_turn(actions[0], opening)
        refused = await env.step(turn)
        await env.reset(seed=seed)
        clean = await env.step(turn)
        require_equal(refused[:4], clean[:4], "an action that was refused changed the episode")


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
        await must_raise(
            env.reset(seed=seed, options={"frames": STREAMS}),
            ValueError,
            "reset with frames in an environment without images",
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
        require(
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
    require(fits, "render must return uint8 [height, width, 3]")


def _frames(info: Info, stream: str) -> Frames:
    part = info.get("frames", {}).get(stream)
    require(
        isinstance(part, Frames),
        f"info must have `frames` with the stream {stream!r} that was requested at reset, got "
        f"{part!r}",
    )
    size = STREAMS[stream].size
    shape = (len(part.steps), size, size, 3)
    require(part.images.dtype == np.uint8, f"frames must be uint8, got {part.images.dtype}")
    require(
        part.images.shape == shape,
        f"frames of size {size} for steps {part.steps} must have shape {shape}, got "
        f"{part.images.shape}",
    )
    return part


async def _check_end(env: Environment, *, seed: int) -> None:
    limit = env.spec.max_episode_steps
    actions = random_actions(env.spec, seed=seed, steps=limit)
    observation, _ = await env.reset(seed=seed)
    if waits(observation):
        ended = await _play_turns(env, observation, actions)
    else:
        result = await env.step_chunk(actions)
        check_step(env.spec, result)
        _, _, terminated, truncated, info = result
        ended = terminated or truncated
        require(
            info["executed"] <= limit,
            f"the episode had {info['executed']} steps, more than spec.max_episode_steps={limit}",
        )
    require(ended, f"the episode did not end within spec.max_episode_steps={limit}")
    await must_raise(env.step(actions[0]), RuntimeError, "step after the end of the episode")


async def _play_turns(env: Environment, observation: Observation, actions: Sequence[Any]) -> bool:
    """Play an episode whose agents act in turn, one step at a time; whether it ended."""
    for action in actions:
        result = await env.step(in_turn(action, observation))
        check_step(env.spec, result)
        observation, _, terminated, truncated, _ = result
        if terminated or truncated:
            return True
    return False


def random_actions(spec: EnvSpec, *, seed: int, steps: int = CHECK_STEPS) -> list[Any]:
    """Actions of `steps` steps; a list of one per agent if there are several."""
    space = copy.deepcopy(spec.action_space)
    space.seed(seed)
    if spec.num_agents == 1:
        return [space.sample() for _ in range(steps)]
    return [[space.sample() for _ in range(spec.num_agents)] for _ in range(steps)]
