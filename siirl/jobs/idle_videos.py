"""Videos of episodes that achieve nothing; a trajectory reward must not reward them.

They are made from the frames of a step's real episodes. Left out: behaviour that only a simulation
can show, such as hovering beside the target.
"""

# F frame

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Video = NDArray[Any]
"""Frames [F, height, width, 3]; or a number for each frame."""
STOPS = tuple(eighth / 8 for eighth in range(1, 8))  # shares of a failure
FAILURES_STOPPED = 4  # per task
BEST_STOP = "best stop"


class RealEpisode(NamedTuple):
    """A real episode of the step."""

    task: str
    success: bool
    video: Video


class IdleVideo(NamedTuple):
    """A video that counts as a failure of `task`."""

    kind: str
    task: str
    video: Video
    original: int = 0
    """Number of the failure that it stops; of videos of one failure the highest reward counts."""


def idle_videos(episodes: Sequence[RealEpisode]) -> Iterator[IdleVideo]:
    """Idle videos of every task that has a failure.

    - covered camera: black frames;
    - nothing moves: the first frame, for the length of a failure;
    - best stop: a failure that freezes at one of seven frames;
    - another task: a success of each other task.
    """
    for task in sorted({episode.task for episode in episodes}):
        failures = [one.video for one in episodes if one.task == task and not one.success]
        if not failures:
            continue
        yield IdleVideo("covered camera", task, np.zeros_like(failures[0]))
        yield IdleVideo("nothing moves", task, _frozen(failures[0], after=1))
        for number, failure in enumerate(failures[:FAILURES_STOPPED]):
            for after in sorted({max(1, int(share * len(failure))) for share in STOPS}):
                yield IdleVideo(BEST_STOP, task, _frozen(failure, after=after), number)
        for other in sorted({episode.task for episode in episodes} - {task}):
            success = next((one for one in episodes if one.task == other and one.success), None)
            if success is not None:
                yield IdleVideo("another task", task, success.video)


def _frozen(video: Video, *, after: int) -> Video:
    """The first `after` frames, the last of them repeated to the length of `video`."""
    return np.concatenate(
        (video[:after], np.repeat(video[after - 1 : after], len(video) - after, 0))
    )
