"""Demonstrations for behaviour cloning from a LeRobot data set that fits the environment.

Images are scaled to the environment's size. Actions must be in the environment's action space, and
proprioception must have its length: nothing is converted. Left out: data sets of another robot.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from envs.names import listed_tasks
from siirl.data_coordinator.lerobot.robot_data_set import ACTION, STATE, RobotDataSet
from siirl.data_coordinator.lerobot.task_names import tasks_of
from siirl.errors import ConfigError, SiirlError
from siirl.files.paths import find
from siirl.imitation.behaviour_cloning import Demonstration

FLAG = "--lerobot"
TOLERANCE = 1e-3
"""Largest distance of an action from the action space that rounding explains; such actions are
clipped."""


def read_demonstrations(
    path: str,
    spec: EnvSpec,
    *,
    cameras: Sequence[str] | None = None,
    most: Sequence[tuple[str | None, int]] = (),
) -> list[Demonstration]:
    """Read the episodes of the environment's tasks.

    Args:
        path: Folder of a data set, or `hf://owner/name`.
        spec: Spec of the environment that the policy will act in.
        cameras: Cameras of the data set in the order of the environment's; None: the first ones.
        most: Largest number of episodes, for all tasks or by task.

    Raises:
        ConfigError: Not a data set, or one that does not fit.
        MissingAssetError: `hf://` without an answer.
    """
    place = f"{FLAG} {path}"
    try:
        data = RobotDataSet(find(path, key=FLAG))
        chosen = _check_features(data, spec, cameras=cameras, place=place)
        names = tasks_of(data, tasks=spec.tasks)
        episodes = _episodes(data, names, most=most, spec=spec, place=place)
        height, width = _shape(spec, IMAGES)[1:3]
        return [
            Demonstration(
                task=names[episode.task],
                seed=episode.index,
                pixel_values=episode.images,
                proprioception=episode.state,
                instructions=(episode.task,) * len(episode.actions),
                actions=_within(episode.actions, spec, episode.index, place),
            )
            for episode in data.read(cameras=chosen, size=(height, width), episodes=episodes)
        ]
    except SiirlError:
        raise
    except ValueError as error:
        raise ConfigError(f"{FLAG}: {error}") from error


def _check_features(
    data: RobotDataSet, spec: EnvSpec, *, cameras: Sequence[str] | None, place: str
) -> list[str]:
    """The cameras to read.

    Raises:
        ConfigError: Other cameras, proprioception or actions than the environment's.
    """
    needed = _shape(spec, IMAGES)[0]
    chosen = list(data.cameras[:needed] if cameras is None else cameras)
    unknown = [camera for camera in chosen if camera not in data.cameras]
    if unknown or len(chosen) != needed:
        raise ConfigError(
            f"{place} has the cameras {', '.join(data.cameras) or 'none'}, but {spec.name!r} "
            f"needs {needed}: name them in its order by --lerobot-cameras."
        )
    for name, size in (
        (STATE, _shape(spec, PROPRIOCEPTION)[0]),
        (ACTION, (spec.action_space.shape or (0,))[0]),
    ):
        found = int(np.prod(data.features.get(name, (0,))))
        if found != size:
            raise ConfigError(
                f"{place} has {found} numbers of {name}, but environment {spec.name!r} has {size}: "
                "the data set is for another robot."
            )
    return chosen


def _shape(spec: EnvSpec, part: str) -> tuple[int, ...]:
    assert isinstance(spec.observation_space, gymnasium.spaces.Dict), "check_robot has seen it"
    return spec.observation_space[part].shape or ()


def _within(actions: NDArray[np.float32], spec: EnvSpec, episode: int, place: str) -> Any:
    """The actions clipped to the action space.

    Raises:
        ConfigError: They lie further outside than rounding explains.
    """
    space = spec.action_space
    assert isinstance(space, gymnasium.spaces.Box), "its shape was compared"
    outside = np.maximum(space.low - actions, actions - space.high).max()
    if outside > TOLERANCE:
        raise ConfigError(
            f"{place}: actions of episode {episode} from {actions.min():.3g} to "
            f"{actions.max():.3g} lie outside of {spec.name!r}'s {space}: convert the data set to "
            "the environment's actions."
        )
    return np.clip(actions, space.low, space.high)


def _episodes(
    data: RobotDataSet,
    names: Mapping[str, str],
    *,
    most: Sequence[tuple[str | None, int]],
    spec: EnvSpec,
    place: str,
) -> list[int]:
    """Numbers of the episodes to read."""
    limits = dict(most)
    if unknown := sorted(task for task in limits if task is not None and task not in spec.tasks):
        raise ConfigError(
            f"--demonstrations {unknown[0]}={limits[unknown[0]]}: unknown task {unknown[0]!r}; the "
            f"tasks (env.tasks) are {listed_tasks(spec.tasks)}."
        )
    numbers: dict[str, list[int]] = {}
    for episode in data.episodes:
        if episode.task in names:
            numbers.setdefault(names[episode.task], []).append(episode.index)
    chosen: list[int] = []
    for task, found in numbers.items():
        limit = limits.get(task, limits.get(None, len(found)))
        chosen += found[:limit]
    return chosen
