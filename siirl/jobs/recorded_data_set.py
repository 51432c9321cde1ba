"""Writes the recorded episodes of a run as a LeRobot data set, by simulating them again.

A recording keeps seed and actions; the data set needs an observation for each of them. An episode
that ends differently from its recording is skipped and named. Left out: failures, and environments
without images and proprioception.
"""

import argparse
import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, Environment
from envs.registry import make_env
from siirl.data_coordinator.lerobot.data_set_writer import DataSetWriter
from siirl.data_coordinator.lerobot.robot_data_set import RobotEpisode
from siirl.errors import ConfigError, MissingAssetError, SiirlError
from siirl.params.parser import parse_first
from siirl.params.plug_ins import import_user_modules
from siirl.reporting.agent_folders import run_of_recordings
from siirl.reporting.recorder import write_video
from siirl.reporting.run_folder import CONFIG_FILE
from siirl.terminal.exit_status import FAILED
from siirl.terminal.printable import printable
from siirl.terminal.terminal_lines import say

Row = dict[str, Any]
CAMERA = "observation.images.camera_{number}"


def write_recorded(
    flags: argparse.Namespace,
    rows: Sequence[Row],
    *,
    recording_of: Callable[[Path, Row], tuple[NDArray[Any], Mapping[str, Any]]],
) -> int:
    """Write the data set `flags.lerobot`; 0 if every success ended as recorded.

    Args:
        flags: `folder`, `overrides`, `lerobot`, `lerobot_version`, `fps`.
        rows: Recorded episodes of the run.
        recording_of: Returns an episode's executed actions and its reset options.

    Raises:
        ConfigError: An environment that does not fit, or a folder with files.
        MissingAssetError: No recorded success.
    """
    successes = [row for row in rows if row["success"]]
    if flags.uid is not None:
        successes = [row for row in successes if row["uid"] == flags.uid]
    if not successes:
        raise MissingAssetError(
            f"{flags.folder} recorded no success{f' {flags.uid}' if flags.uid else ''} to write as "
            "demonstrations: raise trainer.record_val_episodes or trainer.record_episodes."
        )
    if flags.fps < 1:
        raise ConfigError(f"--fps {flags.fps} must be at least 1: frames per second.")
    run, group = run_of_recordings(flags.folder)
    config = parse_first(flags.overrides, config_file=run / CONFIG_FILE, group=group)
    import_user_modules(config.user_modules)
    environment = make_env(config.env.name, **config.env.constructor_kwargs())
    writer: DataSetWriter | None = None
    others: list[str] = []
    try:
        for row in successes:
            actions, options = recording_of(flags.folder, row)
            episode = asyncio.run(simulate(environment, row, actions, options))
            if episode is None:
                others.append(row["uid"])
                continue
            writer = writer or _writer(flags, environment, cameras=episode.images.shape[1])
            writer.add(episode, task_name=row["task"])
    except SiirlError:
        raise
    except ValueError as error:
        raise ConfigError(f"--lerobot {flags.lerobot}: {error}") from error
    finally:
        asyncio.run(environment.close())
    if writer is not None:
        writer.close()
        print(printable(f"{len(successes) - len(others)} episodes  {flags.lerobot}"))
    if not others:
        return 0
    say(
        f"siirl: {len(others)} episodes ended differently and are left out: "
        f"{', '.join(others[:5])}. Seed and actions fix an episode only for the same environment "
        "and the same version of the simulator."
    )
    return FAILED


def _writer(flags: argparse.Namespace, environment: Environment, *, cameras: int) -> DataSetWriter:
    return DataSetWriter(
        flags.lerobot,
        cameras=[CAMERA.format(number=number) for number in range(cameras)],
        fps=flags.fps,
        write_video=functools.partial(write_video, frames_per_second=flags.fps),
        version=flags.lerobot_version,
        robot_type=environment.spec.name,
    )


async def simulate(
    environment: Environment, row: Row, actions: NDArray[Any], options: Mapping[str, Any]
) -> RobotEpisode | None:
    """Play an episode step by step; None if it ends differently from its recording.

    Raises:
        ValueError: Observations without images or proprioception, or discrete actions.
    """
    spec = environment.spec
    parts = (
        set(spec.observation_space.spaces)
        if isinstance(spec.observation_space, gymnasium.spaces.Dict)
        else set()
    )
    if not {IMAGES, PROPRIOCEPTION} <= parts or not isinstance(
        spec.action_space, gymnasium.spaces.Box
    ):
        raise ValueError(
            f"{spec.name!r} needs observations of pictures and proprioception, and continuous "
            "actions: a data set of demonstrations has all three."
        )
    observation, info = await environment.reset(
        seed=row["seed"], options={**options, "task": row["task"]}
    )
    images = []
    states = []
    steps = 0
    ended = False
    for action in actions:
        if ended:
            return None
        images.append(observation[IMAGES])
        states.append(observation[PROPRIOCEPTION])
        observation, _, terminated, truncated, info = await environment.step(action)
        steps, ended = steps + 1, terminated or truncated
    if (info.get("success"), steps) != (row["success"], row["environment_steps"]):
        return None
    return RobotEpisode(
        index=0,
        task=str(observation[INSTRUCTION]) if INSTRUCTION in parts else row["task"],
        images=np.stack(images),
        state=np.stack(states).astype(np.float32),
        actions=np.asarray(actions, np.float32),
    )
