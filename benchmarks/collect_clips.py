"""Clips of experts and of failures from Meta-World, with the oracle's distance at each frame:
`python -m benchmarks.collect_clips`.

They train the tiny video encoder (`python -m vjepa.train_tiny`) and serve
`benchmarks.reward_progress`. Failures come from experts that are disturbed in six ways, or from a
trained policy. Actions of experts are found on a simulator without images and then replayed in
chunks of 8, because the environment renders once per call. Left out: demonstrations for the warm
start (siirl.warm_start).
"""

# Axes: N clip, F frame of all clips end to end, T step of an episode, A action dimension.

import argparse
import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, FrameRequest
from envs.metaworld.metaworld_env import ACTION_SIZE, DEFAULT_TASKS, MetaWorldEnv, expert
from envs.metaworld.metaworld_simulator import MetaWorldSimulator

CLIP_TASKS = (
    "drawer-open", "door-open", "button-press", "push", "reach", "window-open",
    "faucet-open", "drawer-close", "handle-press", "plate-slide", "pick-place", "coffee-button",
)  # fmt: skip
WARM_START_TASKS = (*DEFAULT_TASKS, "window-open")  # that assets/tiny_vla has seen
FRAMES = FrameRequest(every=8, size=64)  # the stream that a training run asks for
MAX_STEPS = 120  # the environment's default limit

Disturb = Callable[[NDArray[np.float32], int], NDArray[np.float64]]
"""Maps the expert's action and the step to the action taken."""


@dataclass(frozen=True)
class Clip:
    """One episode: frames uint8 [T, 64, 64, 3], and at each frame the oracle's distance to the goal
    in metres.
    """

    task: str
    kind: str
    seed: int
    frames: NDArray[np.uint8]
    distances: NDArray[np.float64]
    success: bool


def _tremor(rng: np.random.Generator) -> Callable[[], NDArray[np.float64]]:
    """Smooth random actions: an autoregressive walk, so that the gripper wanders instead of
    shivering in place.
    """
    state = np.zeros(ACTION_SIZE)

    def draw() -> NDArray[np.float64]:
        nonlocal state
        state = 0.8 * state + 0.6 * rng.normal(size=ACTION_SIZE)
        return state

    return draw


def expert_like(rng: np.random.Generator) -> Disturb:
    """The expert with a little noise; succeeds nearly always."""
    return lambda action, step: action + 0.1 * rng.normal(size=ACTION_SIZE)


def stalling(rng: np.random.Generator) -> Disturb:
    """The expert until a random step, then wandering about."""
    stop, tremor = int(rng.uniform(0, 0.7 * MAX_STEPS)), _tremor(rng)
    return lambda action, step: (
        action + 0.1 * rng.normal(size=ACTION_SIZE) if step < stop else 0.4 * tremor()
    )


def biased(rng: np.random.Generator) -> Disturb:
    """The expert with a constant push to one side from a random step on: it misses, as a poor
    policy does.
    """
    start, push, tremor = (
        int(rng.uniform(0, 60)),
        rng.normal(size=ACTION_SIZE) * rng.uniform(0.2, 1.0),
        _tremor(rng),
    )
    return lambda action, step: (
        (0.5 * action + push * [1, 1, 1, 0] if step >= start else action) + 0.2 * tremor()
    )


def freezing(rng: np.random.Generator) -> Disturb:
    """The expert until a random step, then nearly still: stuck."""
    stop = int(rng.uniform(0, 0.7 * MAX_STEPS))
    return lambda action, step: (
        action + 0.1 * rng.normal(size=ACTION_SIZE)
        if step < stop
        else 0.05 * rng.normal(size=ACTION_SIZE)
    )


def wandering(rng: np.random.Generator) -> Disturb:
    """No expert at all."""
    tremor = _tremor(rng)
    return lambda action, step: 0.7 * tremor()


def _errands(rng: np.random.Generator) -> Callable[[], NDArray[np.float64]]:
    """Straight moves of 5 to 25 steps in random directions, one after the other: they reach all of
    the workspace, quickly.
    """
    left, direction = 0, np.zeros(ACTION_SIZE)

    def draw() -> NDArray[np.float64]:
        nonlocal left, direction
        if left == 0:
            left, direction = int(rng.integers(5, 26)), rng.normal(size=ACTION_SIZE)
            direction *= rng.uniform(0.3, 1.0) / np.abs(direction).max()
        left -= 1
        return direction

    return draw


def drifting(rng: np.random.Generator) -> Disturb:
    """No expert: straight moves to nowhere."""
    errand = _errands(rng)
    return lambda action, step: errand()


def straying(rng: np.random.Generator) -> Disturb:
    """The expert until a random step, then straight moves to nowhere."""
    stop, errand = int(rng.uniform(0, 0.7 * MAX_STEPS)), _errands(rng)
    return lambda action, step: (
        action + 0.1 * rng.normal(size=ACTION_SIZE) if step < stop else errand()
    )


def hovering(rng: np.random.Generator) -> Disturb:
    """The expert's way to the object, and then a stay beside it."""
    stop = int(rng.uniform(8, 25))
    return lambda action, step: (
        action.astype(np.float64)
        if step < stop
        else 0.1 * rng.normal(size=ACTION_SIZE) * [1, 1, 1, 0]
    )


def knocking(rng: np.random.Generator) -> Disturb:
    """The expert's way to the object, and then sweeps through its place."""
    stop = int(rng.uniform(8, 25))
    sweep: NDArray[np.float64] = np.append(rng.normal(size=2), [0.0, 0.0])
    sweep /= np.abs(sweep).max()
    return lambda action, step: (
        action.astype(np.float64)
        if step < stop
        else sweep * (1 if (step - stop) // 10 % 2 == 0 else -1)
    )


KINDS: dict[str, Callable[[np.random.Generator], Disturb]] = {
    "expert": expert_like,
    "stalling": stalling,
    "biased": biased,
    "freezing": freezing,
    "wandering": wandering,
    "drifting": drifting,
    "straying": straying,
    "hovering": hovering,
    "knocking": knocking,
}
ADVERSARIES = ("hovering", "knocking")
"""Kinds that no encoder was trained on, and that a reward should not pay."""
FAILING_KINDS = tuple(kind for kind in KINDS if kind not in ("expert", *ADVERSARIES))


def expert_actions(
    *, simulator: MetaWorldSimulator, seed: int, disturb: Disturb
) -> NDArray[np.float32]:
    """Actions [T, A] of the disturbed expert, up to success or the limit, without rendering."""
    simulator.reset(seed=seed)
    policy, actions = expert(simulator.task), []
    for step in range(MAX_STEPS):
        disturbed = disturb(policy(simulator), step)  # type: ignore[arg-type]
        action = np.clip(disturbed, -1.0, 1.0).astype(np.float32)
        actions.append(action)
        if simulator.step(action):
            break
    return np.stack(actions)


async def replay(
    *, env: MetaWorldEnv, task: str, kind: str, seed: int, actions_TA: NDArray[np.float32]
) -> Clip:
    """The episode of `actions_TA` with its frames."""
    _, info = await env.reset(seed=seed, options={"task": task, "frames": {"encoder": FRAMES}})
    frames, distances = [info["frames"]["encoder"].images], [info["oracle_distance"]]
    for start in range(0, len(actions_TA), FRAMES.every):
        _, _, terminated, truncated, info = await env.step_chunk(
            list(actions_TA[start : start + FRAMES.every])
        )
        frames.append(info["frames"]["encoder"].images)
        distances.append(info["oracle_distance"])
        if terminated or truncated:
            break
    return Clip(
        task, kind, seed, np.concatenate(frames), np.array(distances), bool(info["success"])
    )


async def collect(*, tasks: Sequence[str], counts: dict[str, int], first_seed: int) -> list[Clip]:
    """`counts[kind]` clips of every task and kind; the seed fixes the scene and the disturbance."""
    env, clips = MetaWorldEnv(tasks, max_episode_steps=MAX_STEPS), []
    for task in tasks:
        simulator, seed = MetaWorldSimulator(task), first_seed
        for kind, count in counts.items():
            for _ in range(count):
                actions_TA = expert_actions(
                    simulator=simulator, seed=seed, disturb=KINDS[kind](np.random.default_rng(seed))
                )
                clips.append(
                    await replay(env=env, task=task, kind=kind, seed=seed, actions_TA=actions_TA)
                )
                seed += 1
        print(f"{task}: {seed - first_seed} clips")
    await env.close()
    return clips


async def roll_out(
    *, policy: Any, env: MetaWorldEnv, task: str, seed: int, sampling_seed: int | None = None
) -> Clip:
    """An episode of a trained policy, its actions sampled at temperature 1 as in training; by
    `seed`, or a seed of their own.
    """
    observation, info = await env.reset(
        seed=seed, options={"task": task, "frames": {"encoder": FRAMES}}
    )
    instruction_ids = torch.from_numpy(policy.tokenize_instruction(observation[INSTRUCTION]))[None]
    generator = torch.Generator().manual_seed(seed if sampling_seed is None else sampling_seed)
    frames, distances, ended = [info["frames"]["encoder"].images], [info["oracle_distance"]], False
    while not ended:
        with torch.inference_mode():
            logits_TV = policy(
                pixel_values=torch.from_numpy(observation[IMAGES])[None],
                proprioception=torch.from_numpy(observation[PROPRIOCEPTION])[None],
                instruction_ids=instruction_ids,
            ).logits[0]
        tokens_T = torch.multinomial(logits_TV.softmax(-1), 1, generator=generator)[:, 0].numpy()
        actions_KA = policy.action_tokenizer.decode(
            tokens_T.reshape(policy.chunk_length, -1)
        ).astype(np.float32)
        observation, _, terminated, truncated, info = await env.step_chunk(list(actions_KA))
        frames.append(info["frames"]["encoder"].images)
        distances.append(info["oracle_distance"])
        ended = terminated or truncated
    return Clip(
        task, "policy", seed, np.concatenate(frames), np.array(distances), bool(info["success"])
    )


async def collect_policy(
    *, folder: Path, tasks: Sequence[str], count: int, first_seed: int
) -> list[Clip]:
    """`count` episodes of every task by the policy in `folder`."""
    from siirl.models.policy_loader import load_policy  # only here: clips of experts need no policy

    env, policy = MetaWorldEnv(tasks, max_episode_steps=MAX_STEPS), load_policy(folder).eval()
    clips = []
    for task in tasks:
        clips += [
            await roll_out(policy=policy, env=env, task=task, seed=first_seed + number)
            for number in range(count)
        ]
        print(f"{task}: {count} clips of the policy")
    await env.close()
    return clips


def save_clips(path: Path, clips: Sequence[Clip]) -> None:
    """One npz: `frames` [F, 64, 64, 3] and `distances` [F] end to end, `lengths`, `tasks`, `kinds`,
    `seeds`, `success` [N].
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        frames=np.concatenate([clip.frames for clip in clips]),
        distances=np.concatenate([clip.distances for clip in clips]),
        lengths=np.array([len(clip.frames) for clip in clips]),
        tasks=np.array([clip.task for clip in clips]),
        kinds=np.array([clip.kind for clip in clips]),
        seeds=np.array([clip.seed for clip in clips]),
        success=np.array([clip.success for clip in clips]),
    )


def load_clips(path: Path) -> Iterator[Clip]:
    """The clips that `save_clips` wrote."""
    with np.load(path) as data:
        columns = {name: data[name] for name in data.files}
    ends = np.cumsum(columns["lengths"])
    for row, (start, end) in enumerate(zip(ends - columns["lengths"], ends, strict=True)):
        task, kind, seed = (
            str(columns["tasks"][row]),
            str(columns["kinds"][row]),
            int(columns["seeds"][row]),
        )
        yield Clip(
            task,
            kind,
            seed,
            columns["frames"][start:end],
            columns["distances"][start:end],
            bool(columns["success"][row]),
        )


def main() -> None:
    """Collect clips as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="npz to write")
    parser.add_argument("--tasks", nargs="+", default=list(CLIP_TASKS))
    parser.add_argument("--experts", type=int, default=30, help="expert clips a task")
    parser.add_argument("--failures", type=int, default=15, help="clips a task of each disturbance")
    parser.add_argument(
        "--kinds", nargs="+", choices=FAILING_KINDS, default=FAILING_KINDS, help="disturbances"
    )
    parser.add_argument(
        "--policy",
        type=Path,
        help="policy folder: clips of its own episodes instead of disturbed experts",
    )
    parser.add_argument("--episodes", type=int, default=40, help="episodes a task of the policy")
    parser.add_argument("--first-seed", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if arguments.policy is not None:
        job = collect_policy(
            folder=arguments.policy,
            tasks=arguments.tasks,
            count=arguments.episodes,
            first_seed=arguments.first_seed,
        )
    else:
        counts = {"expert": arguments.experts, **dict.fromkeys(arguments.kinds, arguments.failures)}
        job = collect(tasks=arguments.tasks, counts=counts, first_seed=arguments.first_seed)
    clips = asyncio.run(job)
    save_clips(arguments.output, clips)
    print(
        f"{len(clips)} clips, {sum(clip.success for clip in clips)} of them successful, in "
        f"{arguments.output}"
    )


if __name__ == "__main__":
    main()
