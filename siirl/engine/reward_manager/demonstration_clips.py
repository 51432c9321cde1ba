"""Reads the clips of demonstrations that count as successes from the start
(`reward.demonstrations`): an npz of `siirl warm-start --clips`, or a LeRobot data set.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.archives import DAMAGE, MEBIBYTE, check_archive
from siirl.errors import MissingAssetError

if TYPE_CHECKING:
    from siirl.data_coordinator.lerobot.robot_data_set import RobotDataSet  # pyarrow takes 35 MB

MOST_CLIP_BYTES = 512 * MEBIBYTE  # in memory: 1000 clips of 40 frames of 64 x 64 pixels take 490 MB


def load_demonstration_clips(
    file: str, *, tasks: Sequence[str] = (), every: int = 8
) -> dict[str, list[NDArray[np.uint8]]]:
    """Clips of successful demonstrations by task: uint8 [frames, height, width, 3].

    They come from the npz of `siirl warm-start --clips`, with keys `<task>/<number>`, or
    from the first camera of a LeRobot data set.

    Args:
        file: The npz, or the folder of the data set.
        tasks: Tasks of the environment; a data set's episodes of other tasks are left out.
        every: Distance between the frames of a clip from a data set (`reward.frame_every`).

    Raises:
        MissingAssetError: No such file.
        ValueError: Neither kind of file, or more than `MOST_CLIP_BYTES` unpacked.
    """
    if Path(file).is_dir():
        from siirl.data_coordinator.lerobot.robot_data_set import RobotDataSet, is_robot_data_set

        if is_robot_data_set(Path(file)):
            return _recorded_clips(RobotDataSet(Path(file)), tasks=tasks, every=every)
    if not Path(file).is_file():
        raise MissingAssetError(
            f"reward.demonstrations={file} does not exist. Make it: siirl warm-start "
            "--clips FILE, or set it to null."
        )
    check_archive(Path(file), most_bytes=MOST_CLIP_BYTES)
    clips: dict[str, list[NDArray[np.uint8]]] = {}
    try:
        with np.load(file) as archive:
            for key in sorted(archive.files):
                clips.setdefault(key.rsplit("/", 1)[0], []).append(_clip(archive[key], key))
    except (ValueError, *DAMAGE) as error:
        raise ValueError(
            f"reward.demonstrations={file} is damaged: {error}. Make it again: "
            "siirl warm-start --clips FILE."
        ) from error
    return clips


def _clip(frames: NDArray[Any], key: str) -> NDArray[np.uint8]:
    """`frames` of the archive's entry `key`, if they are pictures."""
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3 or not frames.size:
        raise ValueError(
            f"{key} is {frames.dtype} of the shape {frames.shape}, but a clip must be uint8 "
            "[frames, height, width, 3]"
        )
    return frames


def _recorded_clips(
    data: "RobotDataSet", *, tasks: Sequence[str], every: int
) -> dict[str, list[NDArray[np.uint8]]]:
    from siirl.data_coordinator.lerobot.task_names import tasks_of

    if not data.cameras:
        raise ValueError(f"{data.folder} has no camera, but clips are compared by their images.")
    names = tasks_of(data, tasks=tasks)
    episodes = [place.index for place in data.episodes if place.task in names]
    clips: dict[str, list[NDArray[np.uint8]]] = {}
    size = 0
    for episode in data.read(cameras=data.cameras[:1], every=every, state=None, episodes=episodes):
        size += episode.images.nbytes
        if size > MOST_CLIP_BYTES:
            raise ValueError(
                f"{data.folder} unpacks to more than {MOST_CLIP_BYTES >> 20} MiB: keep fewer "
                "episodes, or raise reward.frame_every."
            )
        clips.setdefault(names[episode.task], []).append(episode.images[:, 0])
    return clips
