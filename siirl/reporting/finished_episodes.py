"""Holds finished episodes until their reward is known, then records them as videos.

`rollout_files` does the same for text.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from envs.base import RECORDER_STREAM
from siirl.engine.rollout.workflow import Trajectory
from siirl.reporting.recorder import VideoRecorder, VideoSample


class Recorder(Protocol):
    """Records some of the episodes."""

    def keep(self, trajectories: Sequence[Trajectory], *, kind: str, step: int) -> None:
        """Keep the episodes to record; `kind` is `train` or `val`."""

    def write(self, rewards: Mapping[str, float]) -> None:
        """Record the kept episodes, with their reward from `rewards` (by uid)."""


class EpisodeRecorder:
    """Passes episodes with frames to the video recorder.

    Args:
        videos: Writes the files.
        reports_success: Whether the environment reports success.
        notice: `EnvSpec.notice`, for every video.
    """

    def __init__(self, *, videos: VideoRecorder, reports_success: bool, notice: str = "") -> None:
        self.videos = videos
        self.reports_success = reports_success
        self.notice = notice
        self.waiting: list[tuple[Trajectory, str, int]] = []

    def keep(self, trajectories: Sequence[Trajectory], *, kind: str, step: int) -> None:
        """Keep episodes with frames; `kind` is `train` or `val`."""
        self.waiting += [
            (trajectory, kind, step)
            for trajectory in trajectories
            if RECORDER_STREAM in trajectory.frames
        ]

    def write(self, rewards: Mapping[str, float]) -> None:
        """Record all kept episodes with their reward from `rewards`; filtered ones have none."""
        waiting, self.waiting = self.waiting, []
        for trajectory, kind, step in waiting:
            row = trajectory.row
            sample = VideoSample(
                uid=row["uid"],
                task=row["task_name"],
                instruction=trajectory.instruction,
                kind=kind,
                step=step,
                seed=row["seed"],
                success=row["complete"] if self.reports_success else None,
                reward=rewards.get(row["uid"]),
                notice=self.notice,
            )
            self.videos.record(trajectory.frames[RECORDER_STREAM], sample, trajectory.record)
