"""From finished episodes to what a person looks at: they wait here until their reward is known, so
that it can stand beside them.

Videos here, text in `rollout_files`.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from siirl.engine.rollout.workflow import RECORDER_STREAM, Trajectory
from siirl.reporting.recorder import VideoRecorder, VideoSample


class Recorder(Protocol):
    """Shows some of the episodes."""

    def keep(self, trajectories: Sequence[Trajectory], *, kind: str, step: int) -> None:
        """Remember what is to be shown; `kind` is `train` or `val`."""

    def write(self, rewards: Mapping[str, float]) -> None:
        """Show what is remembered, with the reward where `rewards` (by uid) has one."""


class EpisodeRecorder:
    """Hands episodes that brought frames to the video recorder.

    Args:
        videos: Writes the files.
        reports_success: Whether the environment says what success is.
        notice: `EnvSpec.notice`, for every video.
    """

    def __init__(self, *, videos: VideoRecorder, reports_success: bool, notice: str = "") -> None:
        self.videos, self.reports_success, self.notice = videos, reports_success, notice
        self.waiting: list[tuple[Trajectory, str, int]] = []

    def keep(self, trajectories: Sequence[Trajectory], *, kind: str, step: int) -> None:
        """Remember those that brought frames; `kind` is `train` or `val`."""
        self.waiting += [
            (trajectory, kind, step)
            for trajectory in trajectories
            if RECORDER_STREAM in trajectory.frames
        ]

    def write(self, rewards: Mapping[str, float]) -> None:
        """Have all videos made, with the reward where `rewards` (by uid) has one; a filtered
        episode has none.
        """
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
