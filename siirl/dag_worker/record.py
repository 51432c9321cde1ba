"""From finished episodes to videos: frames wait here until their reward is known, so that it can stand in the picture."""

from collections.abc import Mapping, Sequence

from siirl.dag_worker.recorder import VideoRecorder, VideoSample
from siirl.engine.rollout.workflow import RECORDER_STREAM, Trajectory


class EpisodeRecorder:
    """Hands episodes that brought frames to the video recorder.

    Args:
        videos: Writes the files.
        reports_success: Whether the environment says what success is.
    """

    def __init__(self, *, videos: VideoRecorder, reports_success: bool) -> None:
        self.videos, self.reports_success = videos, reports_success
        self.waiting: list[tuple[Trajectory, str, int]] = []

    def keep(self, trajectories: Sequence[Trajectory], *, kind: str, step: int) -> None:
        """Remember those that brought frames; `kind` is `train` or `val`."""
        self.waiting += [(trajectory, kind, step) for trajectory in trajectories if RECORDER_STREAM in trajectory.frames]

    def write(self, rewards: Mapping[str, float]) -> None:
        """Have all videos made, with the reward where `rewards` (by uid) has one; a filtered episode has none."""
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
            )
            self.videos.record(trajectory.frames[RECORDER_STREAM], sample)
